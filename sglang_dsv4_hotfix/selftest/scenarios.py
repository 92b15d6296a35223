"""What a pair can be asked to do, and what must be in decode's pools afterwards.

A scenario makes two managers, sends requests of DeepSeek-V4's shape and returns a `Result`. Nothing in it knows a
release or whether the hotfix is on: the verdict comes from the bytes and the statuses alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from sglang_dsv4_hotfix.selftest import compare, layouts
from sglang_dsv4_hotfix.selftest.compare import BufferCheck, Request, Tokens
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Manager, Outcome, Pair, Process

PREFILL_SALT = 1
DECODE_SALT = 2

# Tokens of the three requests: a window over two pages with both of its ends inside a page, a short prompt, and a
# window on one page.
LENGTHS = (612, 300, 700)

# The environment that switches online compression on for a worker.
ONLINE = {"SGLANG_OPT_USE_ONLINE_COMPRESS": "1"}

Wants = Literal["arrive", "fail"]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """`wants`: whether the state has to arrive, or the requests have to fail with nothing of decode's state written.

    A scenario that wants arrival accepts a clear failure too when `may_refuse`. `decode_env` are variables that the
    decode process needs before it imports SGLang.
    """

    name: str
    title: str
    prefill: LayoutSpec
    decode: LayoutSpec
    wants: Wants
    may_refuse: bool = False
    register_state: bool = True
    decode_env: tuple[tuple[str, str], ...] = ()


_DSV4 = LayoutSpec(kind="dsv4", pages=12)


def _decode(**changes: Any) -> LayoutSpec:
    return dataclasses.replace(_DSV4, **changes)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("equal", "same settings on both sides", _DSV4, _DSV4, "arrive"),
        Scenario(
            "decode-speculates", "only decode speculates", _DSV4, _decode(speculative=True), "arrive", may_refuse=True
        ),
        Scenario(
            "state-write-refused", "decode's state memory is not registered", _DSV4, _DSV4, "fail", register_state=False
        ),
        Scenario("prefill-speculates", "only prefill speculates", _decode(speculative=True), _DSV4, "fail"),
        Scenario(
            "decode-online",
            "only decode compresses online",
            _DSV4,
            _decode(online=True),
            "fail",
            decode_env=tuple(ONLINE.items()),
        ),
        Scenario("decode-state-dtype", "bfloat16 state on decode only", _DSV4, _decode(state_dtype="bfloat16"), "fail"),
        Scenario("decode-one-entry-more", "one more state buffer on decode", _DSV4, _decode(extra_entries=1), "fail"),
    )
}
DEFAULT = ("equal", "decode-speculates", "state-write-refused")


def in_order(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names, each once, those in which the engine refuses a write last.

    Decode's engine closes the connections on which it does, and the next transfer to it may fail for that alone
    (Mooncake 0.3.13.post1).
    """
    return sorted((SCENARIOS[name] for name in dict.fromkeys(names)), key=lambda scenario: not scenario.register_state)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a scenario found. `fine`: nothing is lost or misplaced without a word, and nothing failed that need not."""

    name: str
    title: str
    kv: str
    state: str
    statuses: str
    reason: str
    verdict: str
    fine: bool
    seconds: float
    checks: tuple[BufferCheck, ...]
    outcomes: tuple[Outcome, ...]
    state_types: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def dsv4_requests(
    pair: Pair,
    prefill: Manager,
    decode: Manager,
    process: Process | None = None,
    lengths: Sequence[int] = LENGTHS,
    shuffle: Callable[[list[int]], None] = lambda pages: None,
) -> list[Request]:
    """A request of each of `lengths` tokens, on other pages, slots and aux entries on decode than on prefill.

    Decode's SWA pages are its last ones, so that an address computed with too short an item lands on pages of nobody;
    `shuffle` may put each list of free pages into another order. Indices of components that belong to a request slot
    come from the release's own functions.
    """
    page_size = prefill.spec.page_size
    free = (
        list(range(prefill.spec.pages)),
        list(reversed(range(1, decode.spec.pages))),
        list(range(1, prefill.spec.pages)),
        list(reversed(range(decode.spec.pages))),
    )
    for pages in free:
        shuffle(pages)
    prefill_kv, decode_kv, prefill_swa, decode_swa = (iter(pages) for pages in free)
    requests = []
    for number, length in enumerate(lengths):
        count = -(-length // page_size)
        window = layouts.window_pages(length, page_size)
        tokens = Tokens(
            seq_len=length,
            page_size=page_size,
            first_page=window.start,
            prefill_pages=tuple(next(prefill_swa) for _ in window),
            decode_pages=tuple(next(decode_swa) for _ in window),
            prefill_slot=1 + number,
            decode_slot=decode.spec.slots - 2 - number,
        )
        prefill_state: list[tuple[int, ...]] = [tokens.prefill_pages]
        decode_state: list[tuple[int, ...]] = [tokens.decode_pages]
        for _ in range(1, prefill.components):
            prefill_state.append(_slot_indices(pair.prefill, prefill, tokens.prefill_slot, length))
        for _ in range(1, decode.components):
            decode_state.append(_slot_indices(process or pair.decode, decode, tokens.decode_slot, length))
        requests.append(
            Request(
                room=pair.new_room(),
                prefill_kv=tuple(next(prefill_kv) for _ in range(count)),
                decode_kv=tuple(next(decode_kv) for _ in range(count)),
                prefill_aux=number,
                decode_aux=decode.spec.slots - 1 - number,
                prefill_state=tuple(prefill_state),
                decode_state=tuple(decode_state),
                tokens=tokens,
            )
        )
    return requests


def _slot_indices(process: Process, manager: Manager, slot: int, seq_len: int) -> tuple[int, ...]:
    return tuple(process.ask("request_state", name=manager.name, slot=slot, seq_len=seq_len))


def run(
    pair: Pair,
    scenario: Scenario,
    process: Process | None = None,
    requests: Callable[..., Sequence[Request]] = dsv4_requests,
    timeout: float = 20.0,
) -> Result:
    """Runs one scenario on managers of its own and judges it."""
    if scenario.decode_env and process is None:
        (process,) = pair.add_decodes(scenario.name, **dict(scenario.decode_env))
    receiving = process or pair.decode
    name = f"{scenario.name}-{pair.new_room()}"
    prefill = pair.make(pair.prefill, name, scenario.prefill)
    decode = pair.make(receiving, name, scenario.decode, scenario.register_state)
    pair.fill(pair.prefill, prefill, PREFILL_SALT)
    pair.fill(receiving, decode, DECODE_SALT)
    sent, before = pair.snapshot(pair.prefill, prefill), pair.snapshot(receiving, decode)
    sending = requests(pair, prefill, decode, process)
    outcomes = pair.run(prefill, decode, sending, process, timeout)
    # A request that failed may have left some of its KV; one that succeeded has to be all there.
    failed = {outcome.room for outcome in outcomes if outcome.statuses == "Failed/Failed"}
    strangers = [request for request in sending if request.room in failed]
    if len(failed) < len(sending):
        sending = [request for request in sending if request.room not in failed]
    else:
        strangers = []
    checks = pair.check(prefill, decode, sent, before, sending, strangers, process)
    return judge(scenario, checks, outcomes, decode.state_types)


def judge(
    scenario: Scenario, checks: Sequence[BufferCheck], outcomes: Sequence[Outcome], state_types: Sequence[str] = ()
) -> Result:
    """The verdict on what was found: bytes first, then whether the statuses tell the truth about them."""
    kv, state, aux = (
        compare.verdict(check for check in checks if check.group == group) for group in ("kv", "state", "aux")
    )
    statuses = sorted({outcome.statuses for outcome in outcomes})
    text, fine = _verdict(scenario, kv, state, aux, statuses)
    reason = next((outcome.prefill_reason for outcome in outcomes if outcome.prefill_reason), "")
    return Result(
        scenario.name,
        scenario.title,
        kv,
        state,
        ", ".join(statuses),
        reason,
        text,
        fine,
        max((outcome.seconds for outcome in outcomes), default=0.0),
        tuple(checks),
        tuple(outcomes),
        tuple(state_types),
    )


def _verdict(scenario: Scenario, kv: str, state: str, aux: str, statuses: list[str]) -> tuple[str, bool]:
    """The last cell of the table, and whether it is as it should be."""
    if statuses == ["Failed/Failed"]:
        if state not in ("lost", "untouched"):
            return f"failed on both sides, but state {state}", False
        return "failed on both sides", scenario.wants == "fail" or scenario.may_refuse
    if "Success/Success" in statuses and set(statuses) <= {"Success/Success", "Failed/Failed"}:
        # Where some rooms failed and some didn't, the bytes are those of the rooms that didn't.
        for what, how in (("state", state), ("KV", kv), ("aux", aux)):
            if how != "right":
                return f"{what} {how}, silently", False
        if len(statuses) > 1:
            return "some requests failed", False
        if scenario.wants == "fail":
            return "state arrived, though it cannot have", False
        return "state arrived", True
    if all(status in ("Success", "Failed") for pair in statuses for status in pair.split("/")):
        return "the sides disagree", False
    return "requests hang", False
