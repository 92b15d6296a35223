"""Real faults while state is sent. Each fails its own request; prefill's threads and all other requests go on."""

from __future__ import annotations

import pytest
from pairs import Bench, assert_arrived, of_group, reconnect, with_transfers

from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Manager, Pair

DSV4 = LayoutSpec(pages=12)

some_releases = with_transfers("0.5.11", "0.5.12", "0.5.16", "0.5.19")


@pytest.fixture
def crowd(patched: Pair) -> Pair:
    """Prefill and three decode processes: "decode" for the faults, one to be killed, one that must not notice."""
    patched.add_decodes("other", "victim")
    return patched


def assert_prefill_serves(pair: Pair, prefill: Manager) -> None:
    """Good requests from the same manager to a process that had nothing to do with the fault."""
    process = pair.processes["other"]
    bench = Bench(pair, DSV4, DSV4, process, prefill_manager=prefill)
    requests = scenarios.dsv4_requests(pair, bench.prefill, bench.decode, process)
    outcomes = bench.run(*requests)
    assert {outcome.statuses for outcome in outcomes} == {"Success/Success"}, outcomes
    assert_arrived(bench.check(requests))


def threads(pair: Pair) -> int:
    return int(pair.prefill.ask("threads")["transfer_worker"])


@some_releases
def test_state_memory_not_registered(crowd: Pair) -> None:
    bench = Bench(crowd, DSV4, DSV4, crowd.decode, register_state=False)
    requests = scenarios.dsv4_requests(crowd, bench.prefill, bench.decode, bench.process)
    alive = threads(crowd)

    outcomes = bench.run(*requests, timeout=60)
    still_alive = threads(crowd)
    reconnect(crowd, bench.process)

    assert {outcome.statuses for outcome in outcomes} == {"Failed/Failed"}, outcomes
    assert not any(check.changed for check in of_group(bench.check(requests), "state"))
    assert still_alive == alive
    assert_prefill_serves(crowd, bench.prefill)


@some_releases
def test_exception_in_the_builds_sender(crowd: Pair) -> None:
    bench = Bench(crowd, DSV4, DSV4, crowd.decode)
    requests = scenarios.dsv4_requests(crowd, bench.prefill, bench.decode, bench.process)
    assert requests[1].prefill_state is not None
    pages = requests[1].prefill_state[0]
    crowd.prefill.ask("raise_in_sender", name=bench.prefill.name, message="injected: no such page", pages=pages)
    alive = threads(crowd)
    mark = len(crowd.prefill.log())

    outcomes = bench.run(*requests)

    statuses = [outcome.statuses for outcome in outcomes]
    assert statuses == ["Success/Success", "Failed/Failed", "Success/Success"], outcomes
    assert "injected: no such page" in outcomes[1].prefill_reason
    log = crowd.prefill.log()[mark:]
    assert log.count(", in raising\n") == 1, "the traceback, once"
    assert_arrived(bench.check([requests[0], requests[2]], strangers=[requests[1]]))
    assert threads(crowd) == alive
    crowd.prefill.ask("raise_in_sender", name=bench.prefill.name, message="", pages=[])
    assert_prefill_serves(crowd, bench.prefill)


@some_releases
def test_decode_killed_between_kv_and_state(crowd: Pair) -> None:
    victim = crowd.processes["victim"]
    bench = Bench(crowd, DSV4, DSV4, victim)
    requests = scenarios.dsv4_requests(crowd, bench.prefill, bench.decode, victim)[:1]
    alive = threads(crowd)
    crowd.prefill.ask("hold_state", name=bench.prefill.name)
    crowd.begin(bench.prefill, bench.decode, requests, victim)
    assert crowd.prefill.ask("wait_held", name=bench.prefill.name, patience=20)

    victim.kill()
    crowd.prefill.ask("release", name=bench.prefill.name)
    (outcome,) = crowd.wait([requests[0].room], victim, timeout=60)

    assert outcome.statuses == "Failed/Gone", outcome
    assert threads(crowd) == alive
    assert_prefill_serves(crowd, bench.prefill)
