"""Whole transfers over the real engine on loopback. Runs in a release's python: prints JSON figures.

The upstream-fixed path is the same release with the state type "nsa", which its own method sends; ours is "dsv4".
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics

from benchmarks.timing import Figure, exponent, interleaved, median_interval, median_ratio, rounds_of
from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.compare import Request
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Block, Manager, Pair, worker_environment

OURS = LayoutSpec(kind="dsv4", pages=24, slots=16)
FIXED = dataclasses.replace(OURS, state_type="nsa")
WIDE = dataclasses.replace(OURS, speculative=True)
ROUNDS = 150
ROOMS = (8, 16, 32, 64, 128)


class Sides:
    """Two managers with the same pages, and one request's way from one to the other."""

    def __init__(self, pair: Pair, name: str, prefill: LayoutSpec, decode: LayoutSpec) -> None:
        self.pair = pair
        self.prefill: Manager = pair.make(pair.prefill, name, prefill)
        self.decode: Manager = pair.make(pair.decode, name, decode)
        pair.fill(pair.prefill, self.prefill, 1)
        pair.fill(pair.decode, self.decode, 2)
        pair.prefill.ask("time_state", name=name)

    def transfer(self) -> Request:
        (request, *_) = scenarios.dsv4_requests(self.pair, self.prefill, self.decode)
        (outcome,) = self.pair.run(self.prefill, self.decode, [request])
        assert outcome.statuses == "Success/Success", outcome
        return request

    def seconds(self) -> list[float]:
        """Of every state send so far, by the thread that sends: the method, ours around it, and the engine."""
        seconds: list[float] = self.pair.prefill.ask("state_seconds", name=self.prefill.name)
        return seconds

    def engine(self) -> list[tuple[Block, ...]]:
        """What one transfer asks of the engine: state batches only. What is asked must also arrive."""
        sent = self.pair.snapshot(self.pair.prefill, self.prefill)
        self.pair.fill(self.pair.decode, self.decode, 3)
        before = self.pair.snapshot(self.pair.decode, self.decode)
        self.pair.count(self.prefill)
        request = self.transfer()
        batches = self.pair.counted(self.prefill, self.decode)
        checks = self.pair.check(self.prefill, self.decode, sent, before, [request])
        assert all(check.right == check.wanted and not check.stray for check in checks), checks
        return [batch for batch in batches if not batch[0].target.startswith(("kv", "aux"))]


def _ring_bytes(batches: list[tuple[Block, ...]]) -> int:
    return sum(block.length for batch in batches for block in batch if not block.target.startswith("swa"))


def _bytes(batches: list[tuple[Block, ...]]) -> int:
    return sum(block.length for batch in batches for block in batch)


def main() -> None:
    figures: list[Figure] = []
    with Pair(env=worker_environment(hotfix="1")) as pair:
        sides = {
            "fixed": Sides(pair, "fixed", FIXED, FIXED),
            "again": Sides(pair, "again", FIXED, FIXED),
            "ours": Sides(pair, "ours", OURS, OURS),
            "wide": Sides(pair, "wide", OURS, WIDE),
        }
        for name in rounds_of(sides, ROUNDS):
            sides[name].transfer()
        # Without the first of each, in which the hotfix looks how the build pairs the buffers of a new peer.
        seconds = {name: side.seconds()[-ROUNDS + 1 :] for name, side in sides.items()}
        noise = median_ratio(seconds["again"], seconds["fixed"])
        low, high = median_interval([a / b for a, b in zip(seconds["again"], seconds["fixed"], strict=True)])
        ratio = median_ratio(seconds["ours"], seconds["fixed"])
        remark = f"A/A {noise:.3f}, known to lie in {low:.3f} to {high:.3f}; the goal is 1 and half of that"
        goal = 1 + (high - low) / 2
        figures.append(
            Figure("transfer", "dsv4, equal layouts: time of the state send to upstream-fixed", ratio, "", goal, remark)
        )

        fixed, ours, wide = (sides[name].engine() for name in ("fixed", "ours", "wide"))
        figures += [
            Figure("transfer", "dsv4, equal layouts: engine calls, difference", abs(len(ours) - len(fixed)), "", 0),
            Figure("transfer", "dsv4, equal layouts: bytes, difference", abs(_bytes(ours) - _bytes(fixed)), "", 0),
            Figure("transfer", "decode speculates: engine calls more", len(wide) - len(fixed), "", 1),
            Figure(
                "transfer",
                "decode speculates: ring bytes to equal layouts",
                _ring_bytes(wide) / _ring_bytes(fixed),
                "",
                2.0,
            ),
        ]
        figures.append(_rooms(pair, sides["wide"]))
    print(json.dumps([figure.to_json() for figure in figures]))


def _rooms(pair: Pair, side: Sides) -> Figure:
    """The exponent of the time for many rooms at once, decode speculating."""
    runs = {str(count): functools.partial(_run, pair, side, count) for count in ROOMS}
    seconds = interleaved(runs, 5)
    took = [statistics.median(seconds[str(count)]) for count in ROOMS]
    return Figure("growth", "time over rooms: exponent", exponent(ROOMS, took), "", 1.1)


def _run(pair: Pair, side: Sides, count: int) -> None:
    # Rooms may share pages: only time is measured here.
    (template, *_) = scenarios.dsv4_requests(pair, side.prefill, side.decode)
    requests = [dataclasses.replace(template, room=pair.new_room()) for _ in range(count)]
    outcomes = pair.run(side.prefill, side.decode, requests, timeout=120)
    assert all(outcome.statuses == "Success/Success" for outcome in outcomes)


if __name__ == "__main__":
    main()
