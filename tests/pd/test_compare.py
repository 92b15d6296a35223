"""The judge itself: transfers made in memory, right and wrong ones, and what it says about them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sglang_dsv4_hotfix.selftest import compare, layouts, patterns, scenarios
from sglang_dsv4_hotfix.selftest.compare import Image, Request, Tokens
from sglang_dsv4_hotfix.selftest.layouts import Buffer, LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Outcome

PREFILL = LayoutSpec(pages=6)
SPECULATING = dataclasses.replace(PREFILL, speculative=True)


def described(spec: LayoutSpec) -> list[Buffer]:
    kv, state = layouts.planned(spec)
    return [
        Buffer(entry.name, group, component, 0, entry.nbytes, entry.item_len, ring=entry.ring, row_len=entry.row_len)
        for group, component, plan in (("kv", -1, kv), ("state", 0, state), ("aux", -1, layouts.aux(spec)))
        for entry in plan
    ]


def filled(buffers: list[Buffer], salt: int) -> dict[str, Image]:
    images = {}
    for buffer in buffers:
        images[buffer.name] = np.zeros(buffer.nbytes, dtype=np.uint8)
        patterns.fill(images[buffer.name], f"{salt}/{buffer.name}")
    return images


class Transfer:
    """One request of 300 tokens, its state on prefill's pages 1, 2 and decode's 5, 4."""

    def __init__(self, decode: LayoutSpec) -> None:
        self.sources, self.targets = described(PREFILL), described(decode)
        self.sent, self.before = filled(self.sources, 1), filled(self.targets, 2)
        self.after = {name: image.copy() for name, image in self.before.items()}
        tokens = Tokens(300, 256, 0, (1, 2), (5, 4), 1, 2)
        self.request = Request(1, (1, 2), (4, 3), 0, 1, ((1, 2),), ((5, 4),), tokens)

    def write(self, group: str, stride: str = "decode", copies: int = 1) -> None:
        """Sends as the generic sender does, by item; `stride`: whose item length places it in decode's buffer."""
        targets = {buffer.name: buffer for buffer in self.targets}
        for source in self.sources:
            if source.group != group:
                continue
            step = (source if stride == "prefill" else targets[source.name]).item_len
            repeats = targets[source.name].item_len // source.item_len if copies > 1 else 1
            for first, second in self.request.pairs(source):
                data = self.sent[source.name][first * source.item_len : (first + 1) * source.item_len]
                for copy in range(repeats):
                    start = second * step + copy * source.item_len
                    self.after[source.name][start : start + source.item_len] = data

    def verdicts(self) -> dict[str, str]:
        checks = compare.check(self.sources, self.targets, self.sent, self.before, self.after, [self.request])
        return {
            group: compare.verdict(check for check in checks if check.group == group)
            for group in ("kv", "state", "aux")
        }


def test_every_byte_right() -> None:
    transfer = Transfer(PREFILL)
    for group in ("kv", "state", "aux"):
        transfer.write(group)

    assert transfer.verdicts() == {"kv": "right", "state": "right", "aux": "right"}


def test_nothing_sent_is_lost() -> None:
    transfer = Transfer(PREFILL)
    transfer.write("kv")

    assert transfer.verdicts() == {"kv": "right", "state": "lost", "aux": "lost"}


@pytest.mark.parametrize("where", [0, -1])
def test_one_foreign_byte_is_misplaced(where: int) -> None:
    transfer = Transfer(PREFILL)
    transfer.write("state")
    transfer.after["swa.3"][where] ^= 1  # pages 0 and 5; the last byte is of the request's own page 5

    assert transfer.verdicts()["state"] == ("misplaced" if where == 0 else "wrong")


def test_prefills_stride_in_wider_rings_is_misplaced() -> None:
    transfer = Transfer(SPECULATING)
    transfer.write("state", stride="prefill")

    assert transfer.verdicts()["state"] == "misplaced"


def test_one_copy_in_a_wider_ring_is_not_enough() -> None:
    transfer = Transfer(SPECULATING)
    transfer.write("state", stride="decode")

    checks = compare.check(
        transfer.sources, transfer.targets, transfer.sent, transfer.before, transfer.after, [transfer.request]
    )
    rings = [check for check in checks if check.unit == "position"]
    assert transfer.verdicts()["state"] == "wrong"
    assert all(0 < check.right < check.wanted or "128" not in check.name for check in rings)


def test_every_copy_of_a_wider_ring() -> None:
    transfer = Transfer(SPECULATING)
    transfer.write("state", stride="decode", copies=2)

    assert transfer.verdicts()["state"] == "right"


@pytest.mark.parametrize(
    ("statuses", "state", "wants", "may_refuse", "fine"),
    [
        ("Success", "right", "arrive", False, True),
        ("Success", "lost", "arrive", True, False),
        ("Success", "lost", "fail", False, False),
        ("Success", "right", "fail", False, False),
        ("Failed", "lost", "arrive", False, False),
        ("Failed", "lost", "arrive", True, True),
        ("Failed", "lost", "fail", False, True),
        ("Failed", "misplaced", "fail", False, False),
    ],
)
def test_judge(statuses: str, state: str, wants: scenarios.Wants, may_refuse: bool, fine: bool) -> None:
    scenario = scenarios.Scenario("x", "x", PREFILL, PREFILL, wants, may_refuse)
    transfer = Transfer(PREFILL)
    for group in ("kv", "aux"):
        transfer.write(group)
    if state != "lost":
        transfer.write("state")
    if state == "misplaced":
        transfer.after["swa.0"][0] ^= 1
    checks = compare.check(
        transfer.sources, transfer.targets, transfer.sent, transfer.before, transfer.after, [transfer.request]
    )

    result = scenarios.judge(scenario, checks, [Outcome(1, statuses, statuses, "", "", 0.1)])

    assert (result.state, result.fine) == (state, fine)


def test_refused_writes_come_last() -> None:
    chosen = scenarios.in_order(["state-write-refused", "decode-speculates", "state-write-refused", "equal"])

    assert [scenario.name for scenario in chosen] == ["decode-speculates", "equal", "state-write-refused"]


def test_sides_that_disagree_are_never_fine() -> None:
    scenario = scenarios.SCENARIOS["equal"]

    assert not scenarios.judge(scenario, [], [Outcome(1, "Success", "Failed", "", "", 0.1)]).fine
    assert not scenarios.judge(scenario, [], [Outcome(1, "Transferring", "WaitingForInput", "", "", 9.0)]).fine


def test_item_lengths_of_the_release() -> None:
    """The computed layout is the one that the pool class of 0.5.12 has: numbers measured there."""
    plain = [entry.item_len for entry in layouts.dsv4_state(PREFILL)]
    speculating = [entry.item_len for entry in layouts.dsv4_state(SPECULATING)]

    assert plain == [149760] * 6 + [65536, 524288] * 2 + [16384] * 2
    assert speculating == [149760] * 6 + [131072, 1048576] * 2 + [32768] * 2
    assert [entry.item_len for entry in layouts.dsv4_kv(PREFILL)] == [37440] * 2 + [8448] * 2 + [1728] * 2
