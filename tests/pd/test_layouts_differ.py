"""The two sides were configured differently: right rows, or a clear failure of that request and of nothing else."""

from __future__ import annotations

import pytest
from pairs import RELEASES, Bench, assert_arrived, of_group, with_transfers

from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Pair

DSV4 = LayoutSpec(pages=12)
REFUSED = ("prefill-speculates", "decode-state-dtype", "decode-one-entry-more", "decode-online")


@pytest.fixture
def several(patched: Pair) -> Pair:
    """Prefill, two decode processes like it, and one that was started with online compression."""
    patched.add_decodes("other")
    patched.add_decodes("decode-online", **scenarios.ONLINE)
    return patched


@with_transfers()
def test_only_decode_speculates(release: str, patched: Pair) -> None:
    result = scenarios.run(patched, scenarios.SCENARIOS["decode-speculates"])

    stride = RELEASES[release]["stride"]
    if stride == "needed":
        assert result.statuses == "Success/Success", result.outcomes
        assert_arrived(result.checks)
    elif stride == "fixed upstream":
        # It compares item lengths when decode registers, and serves nothing to one that differs.
        assert result.statuses == "Failed/Failed", result.outcomes
        assert not any(check.changed for check in of_group(result.checks, "state"))
    else:
        # Prefill doesn't know decode's item lengths there: the one case the hotfix can neither mend nor refuse.
        assert (result.state, result.statuses) == ("misplaced", "Success/Success")


@with_transfers()
def test_only_decode_speculates_without_the_hotfix(release: str, bare: Pair) -> None:
    result = scenarios.run(bare, scenarios.SCENARIOS["decode-speculates"])

    row = RELEASES[release]
    if row["stride"] == "fixed upstream":
        assert result.statuses == "Failed/Failed", result.outcomes
    else:
        # A build that drops the state can't misplace it.
        wrong = "lost" if row["dispatch"] == "needed" else "misplaced"
        assert (result.state, result.statuses) == (wrong, "Success/Success")


@with_transfers("0.5.9", "0.5.11", "0.5.12", "0.5.14", "0.5.16", "0.5.19", "0.5.21")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(release: str, several: Pair, name: str) -> None:
    scenario = scenarios.SCENARIOS[name]
    process = several.processes[name] if scenario.decode_env else several.decode
    bench = Bench(several, scenario.prefill, scenario.decode, process)
    requests = scenarios.dsv4_requests(several, bench.prefill, bench.decode, process)

    outcomes = bench.run(*requests)

    assert {outcome.statuses for outcome in outcomes} == {"Failed/Failed"}, outcomes
    assert max(outcome.seconds for outcome in outcomes) < 2
    assert all("sglang_dsv4_hotfix" in outcome.prefill_reason for outcome in outcomes), outcomes
    checks = of_group(bench.check(requests), "state")
    assert not any(check.changed for check in checks)

    # The same two managers go on, with what they can do: a request without state.
    without_state = bench.request(None, None, aux=(5, 2))
    (outcome,) = bench.run(without_state)
    assert outcome.statuses == "Success/Success", outcome
    assert_arrived(bench.check([without_state], strangers=requests))

    # And prefill's manager serves another decode server, whose settings are its own.
    other = several.processes["other"]
    good = Bench(several, scenario.prefill, scenario.prefill, other, prefill_manager=bench.prefill)
    more = scenarios.dsv4_requests(several, good.prefill, good.decode, other)
    outcomes = good.run(*more)
    assert {outcome.statuses for outcome in outcomes} == {"Success/Success"}, outcomes
    assert_arrived(good.check(more))
