"""Real transfers on every release that can make them: what the hotfix mends, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from pairs import RELEASES, Bench, assert_arrived, of_group, warnings_of, with_transfers

from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Pair

every_release = with_transfers()
scalar_releases = with_transfers(dispatch="needed")


@every_release
def test_state_arrives(patched: Pair) -> None:
    result = scenarios.run(patched, scenarios.SCENARIOS["equal"])

    assert_arrived(result.checks)
    assert result.statuses == "Success/Success", result.outcomes
    assert result.fine
    # Not by a state type of its own making: the build that has the defect was given what forks give it.
    assert patched.prefill.info["lists"] or result.state_types == ("dsv4",)


@every_release
def test_state_without_the_hotfix(release: str, bare: Pair) -> None:
    result = scenarios.run(bare, scenarios.SCENARIOS["equal"])

    dropped = RELEASES[release]["dispatch"] == "needed"
    assert (result.kv, result.state) == ("right", "lost" if dropped else "right")
    assert result.statuses == "Success/Success", result.outcomes


@every_release
@pytest.mark.parametrize("kind", ["dsv4", "swa", "nsa", "none"])
def test_same_as_without(release: str, patched: Pair, bare: Pair, kind: Any) -> None:
    """The engine is asked for the same writes in the same order, decode's pools and the statuses are the same."""
    if kind == "dsv4" and not patched.prefill.info["lists"]:
        pytest.skip("what the hotfix is there to change")
    seen = []
    for pair in (bare, patched):
        bench = Bench(pair, LayoutSpec(kind=kind, pages=12))
        pair.count(bench.prefill)
        if kind == "dsv4":
            requests = scenarios.dsv4_requests(pair, bench.prefill, bench.decode)[:1]
        else:
            state = None if kind == "none" else (2, 3)
            requests = [bench.request(state, None if state is None else (6, 5))]
        outcomes = bench.run(*requests)
        after = pair.snapshot(bench.process, bench.decode)
        seen.append((outcomes[0].statuses, pair.counted(bench.prefill, bench.decode), after))
        assert_arrived(bench.check(requests))

    (statuses, writes, pools), (patched_statuses, patched_writes, patched_pools) = seen
    assert statuses == patched_statuses == "Success/Success"
    assert writes == patched_writes
    assert pools.keys() == patched_pools.keys()
    for name, image in pools.items():
        assert bytes(image) == bytes(patched_pools[name]), name


@scalar_releases
@pytest.mark.parametrize(
    ("prefill_state", "decode_state"),
    [((1, 2, 3), (7, 6)), ((1, 2), (7, 6, 5)), ((), (7, 6)), ((1, 2), ())],
    ids=["prefill-longer", "decode-longer", "prefill-empty", "decode-empty"],
)
def test_lengths_differ(patched: Pair, prefill_state: tuple[int, ...], decode_state: tuple[int, ...]) -> None:
    bench = Bench(patched, LayoutSpec(pages=8))
    request = bench.request(prefill_state, decode_state)
    threads = patched.prefill.ask("threads")["transfer_worker"]
    mark = len(patched.prefill.log())

    (outcome,) = bench.run(request)

    assert outcome.statuses == "Success/Success", outcome
    assert_arrived(bench.check([request]))
    assert len(warnings_of(patched.prefill, mark)) == 1
    assert patched.prefill.ask("threads")["transfer_worker"] == threads


@every_release
def test_no_state_indices(patched: Pair) -> None:
    bench = Bench(patched, LayoutSpec(pages=8))
    request = bench.request(None, None)

    (outcome,) = bench.run(request)

    assert outcome.statuses == "Success/Success", outcome
    checks = bench.check([request])
    assert_arrived(checks)
    assert not any(check.changed for check in of_group(checks, "state"))
