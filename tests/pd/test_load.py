"""Hundreds of rooms over four transfer queues, a third of them failing in two ways."""

from __future__ import annotations

import dataclasses

import pytest
from pairs import Bench, assert_arrived, with_transfers

from sglang_dsv4_hotfix.selftest.compare import Request
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Outcome, Pair

# Items small enough for a page of its own for every room. On prefill the last page is the one that raises.
SPEC = LayoutSpec(kind="nsa", pages=256, slots=128)
MISFIT = dataclasses.replace(SPEC, state_dtype="bfloat16")
POISON = SPEC.pages - 1
ROOMS = 300
GOOD = ("decode", "other", "third")


@pytest.fixture
def crowd(patched: Pair) -> Pair:
    patched.add_decodes(*GOOD, "misfit")
    return patched


@with_transfers("0.5.11", "0.5.16", "0.5.19")
def test_mixed_load(crowd: Pair) -> None:
    """Rooms go round: to each good decode process in turn, every third elsewhere. Of those, one half goes to a decode
    server with other item lengths, the other to a good one from a page whose sending raises."""
    benches = {"misfit": Bench(crowd, SPEC, MISFIT, crowd.processes["misfit"])}
    prefill = benches["misfit"].prefill
    for label in GOOD:
        benches[label] = Bench(crowd, SPEC, SPEC, crowd.processes[label], prefill_manager=prefill)
    crowd.prefill.ask("raise_in_sender", name=prefill.name, message="injected", pages=[POISON])
    alive = crowd.prefill.ask("threads")["transfer_worker"]
    assert alive >= 4

    rooms: dict[str, list[Request]] = {label: [] for label in benches}
    bad: set[int] = set()
    for number in range(ROOMS):
        fails = number % 3 == 2
        label = "misfit" if number % 6 == 5 else GOOD[number // 3 % len(GOOD)]
        page = len(rooms[label])
        state = POISON if fails and label != "misfit" else number % POISON
        kv = (number % POISON, (number + 1) % POISON)
        request = benches[label].request((state,), (page,), kv, (2 * page, 2 * page + 1), aux=(page, page))
        rooms[label].append(request)
        if fails:
            bad.add(request.room)

    # All at once: announced and queued before any is waited for.
    for label, requests in rooms.items():
        crowd.begin(prefill, benches[label].decode, requests, benches[label].process, timeout=60)
    outcomes: dict[int, Outcome] = {}
    for label, requests in rooms.items():
        for outcome in crowd.wait([request.room for request in requests], benches[label].process, timeout=60):
            outcomes[outcome.room] = outcome

    assert len(bad) == ROOMS // 3
    wrong = [o for o in outcomes.values() if o.statuses != ("Failed/Failed" if o.room in bad else "Success/Success")]
    assert len(outcomes) == ROOMS
    assert not wrong, wrong[:5]
    for label in GOOD:
        good = [request for request in rooms[label] if request.room not in bad]
        assert_arrived(benches[label].check(good, [request for request in rooms[label] if request.room in bad]))
    assert crowd.prefill.ask("threads")["transfer_worker"] == alive
