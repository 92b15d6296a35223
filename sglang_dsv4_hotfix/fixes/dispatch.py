"""dispatch: DeepSeek-V4's state is not sent at all.

Target      sglang.srt.disaggregation.mooncake.conn:MooncakeKVManager.maybe_send_extra
Symptom     Prefill and decode report success; decode's state pools keep what they held; answers are wrong from the
            first decoded token on. Nothing is logged.
Cause       #23882 (35870d55ac, 2026-05-07) gave DeepSeek-V4 the state type "dsv4". Mooncake's method knows "mamba",
            "swa" and "nsa"; any other type falls through to ``return 0``.
Upstream    #24878 (c7f674e427) adds the type to the swa/nsa branch, #24888 (59faf986b2) drops the type again, #24932
            (d7f4761a48) replaces the scalar type by lists. Affected are mainline builds of 2026-05-08 to 05-10 and
            forks that carry DeepSeek-V4 on 0.5.11 or before.
Evidence    tests/pd/test_transfers.py, on every PyPI release from 0.5.6 to 0.5.11.
The view    The type of a branch that reaches the generic sender, "nsa" or else "swa", in place of "dsv4".
Retires     when no build with a scalar state type is in use. The guard sees it by itself: a build that sends anything
            for "dsv4" needs nothing, whatever its version says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..build import GENERIC_SENDER, Build, Unreadable
from ..components import Part, Peer, Signature
from ..refusal import Refused
from ..standin import senders_reached
from ..verdict import Verdict, Word

STATE_TYPE = "dsv4"

#: State types whose branch may reach the generic sender, the better one first: "nsa" is what DeepSeek-V3.2 uses.
_CARRIERS = ("nsa", "swa")


def judge(build: Build) -> Verdict:
    """Runs the build's method on a recording stand-in, with "dsv4" and with the types that could carry it."""
    method = build.function("maybe_send_extra")
    if Signature.of(method).is_list:
        return Verdict(Word.NOT_APPLICABLE, f'this build lists its state components and has no type "{STATE_TYPE}"')
    lookups = _lookups(build)
    if reached := [call for call in senders_reached(method, STATE_TYPE) if call not in lookups]:
        return Verdict(Word.FIXED, f'with state type "{STATE_TYPE}" the method calls {reached[0]}')
    carrier = _carrier(build)
    if carrier is None:
        return Verdict(
            Word.UNRECOGNISED,
            f'with state type "{STATE_TYPE}" the method sends nothing, nor does it call {GENERIC_SENDER} with '
            + " or ".join(f'"{kind}"' for kind in _CARRIERS),
        )
    return Verdict(
        Word.NEEDED,
        f'with state type "{STATE_TYPE}" the method sends nothing; with "{carrier}" it calls {GENERIC_SENDER}',
    )


def rewriter(build: Build, active: Collection[str]) -> Callable[[list[Part], Peer], list[Part]]:
    carrier = _carrier(build)

    def rewrite(parts: list[Part], peer: Peer) -> list[Part]:
        return [carried(part, peer) if part.state_type == STATE_TYPE else part for part in parts]

    def carried(part: Part, peer: Peer) -> Part:
        lengths = peer.destination_lengths(part)
        if lengths and lengths != peer.source_lengths(part) and "stride" not in active:
            # State that was lost would be written over other requests' instead.
            raise Refused(
                "item lengths differ between prefill and decode, and the stride fix, which looks after that, is not "
                "switched on. Set SGLANG_DSV4_HOTFIX=1."
            )
        return part.with_type(carrier)

    return rewrite


def _lookups(build: Build) -> list[str]:
    """Calls on the manager's tables and counters that have "send" in their names, made for any type, known or not."""
    try:
        reached = senders_reached(build.function("maybe_send_extra"), "no such state type")
    except Unreadable:  # a build that refuses such a type
        return []
    return [call for call in reached if "." in call and not call.startswith("engine.")]


def _carrier(build: Build) -> str | None:
    method = build.function("maybe_send_extra")
    return next((kind for kind in _CARRIERS if GENERIC_SENDER in senders_reached(method, kind)), None)
