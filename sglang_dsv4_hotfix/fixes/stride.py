"""stride: state of a decode server that speculates lands in other requests' rows.

Target      sglang.srt.disaggregation.mooncake.conn:MooncakeKVManager.maybe_send_extra
Symptom     Prefill without, decode with speculative decoding (MTP/EAGLE): decode's state rings hold stale rows, and
            rows of other requests are overwritten. Both sides report success. The same with any other setting that
            changes an item length on one side only.
Cause       The generic sender computes ``dst_ptr + dst_index * source_item_length``. A ring of a server that
            speculates is twice as long (get_compress_state_ring_size: 16 and 256 rows for 8 and 128), so the write
            lands at half the offset.
Upstream    #24878 and #24888 state that this layout is handled; it is not, up to 0.5.21. 0.5.22 compares the lengths
            and rejects the peer, which is honest but does not serve it. Issue #38819 has the arithmetic for V4.1.
Evidence    tests/pd/test_positions.py and test_layouts_differ.py; tests/unit/test_rings.py: every position.
The view    A component whose item lengths differ is shown as two: the entries of equal length as they are, and the
            rings at the granularity of prefill's item, each as often as it fits into decode's (``rings``).
            A layout that this does not explain is refused: nothing is sent and the request fails.
Retires     where ``_send_kvcache_generic`` takes decode's item lengths (``dst_item_lens``, 0.5.22): such a build
            compares them itself.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence

from .. import rings
from ..build import GENERIC_SENDER, Build, Unreadable, parameters
from ..components import Part, Peer, Signature
from ..log import say
from ..pairing import Unmapped, entry_pairs
from ..refusal import Refused
from ..rings import WHOLE, Grain
from ..verdict import Verdict, Word

#: State types whose components go through the generic sender, item by item ("dsv4" itself with #24878 and in forks).
#: Others (mamba, ...) have senders of their own, which take decode's lengths.
_PAGED = frozenset(
    {"dsv4", "swa", "nsa", "dsa", "swa_ring", "c128_state", "dsv4_request_state", "dsv4_c128", "dsv4_c4_state"}
)

#: Components with the ratio-128 state alone (0.5.15 on). Their rows do not depend on speculation, only on the dtype.
_REQUEST_SCOPED = frozenset({"c128_state", "dsv4_request_state"})

#: Rows of a ring on a server that does not speculate (get_compress_state_ring_size): compress ratios 4 and 128.
_NEAR_ROWS, _FAR_ROWS = 8, 128

_DTYPE_VARIABLE = "SGLANG_DSV4_COMPRESS_STATE_DTYPE"

_USUAL_CAUSES = (
    "Usual causes: speculative decoding on prefill only, online compression (SGLANG_OPT_USE_ONLINE_COMPRESS) or "
    f"another state dtype ({_DTYPE_VARIABLE}) on one side, different page sizes, different "
    "pipeline-parallel sizes, draft layers on one side."
)


def judge(build: Build) -> Verdict:
    """Structure: is the method told decode's item lengths, and does the generic sender take them?"""
    signature = Signature.of(build.function("maybe_send_extra"))
    if "item_lens" not in parameters(build.function(GENERIC_SENDER)):
        raise Unreadable(f"{GENERIC_SENDER} has no parameter item_lens: not a known signature")
    if not signature.knows_item_lengths:
        return Verdict(Word.NOT_APPLICABLE, "prefill does not know decode's item lengths on this build")
    if "dst_item_lens" in parameters(build.function(GENERIC_SENDER)):
        return Verdict(Word.FIXED, f"{GENERIC_SENDER} takes decode's item lengths: the build compares them itself")
    return Verdict(Word.NEEDED, f"{GENERIC_SENDER} addresses decode's buffers by prefill's item lengths")


def rewriter(build: Build, active: Collection[str]) -> Callable[[list[Part], Peer], list[Part]]:
    def rewrite(parts: list[Part], peer: Peer) -> list[Part]:
        rewritten: list[Part] = []
        for part in parts:
            rewritten.extend(_split(part, peer))
        return rewritten

    return rewrite


def _split(part: Part, peer: Peer) -> list[Part]:
    """The component as it is, or split in two, or Refused."""
    source, destination = peer.source_lengths(part), peer.destination_lengths(part)
    if _plain(part.state_type) not in _PAGED or not _is_flat(peer.manager) or source == destination or not source:
        return [part]
    name = f'state component {part.component} ("{_plain(part.state_type)}")'
    if not destination:
        if rings.is_heterogeneous(source):
            say(
                logging.WARNING,
                "sglang_dsv4_hotfix: %s: decode (%s) does not tell its item lengths; if it speculates and prefill does "
                "not, its rings are misplaced. Use SGLang 0.5.9 or later on decode.",
                name,
                getattr(peer.request, "mooncake_session_id", "unknown session"),
            )
        return [part]
    try:
        pairs = entry_pairs(peer, part)
    except Unmapped as why:
        raise Refused(
            f"{name}: prefill has {len(source)} entries and decode {len(destination)}, their item lengths differ "
            f"{_first_difference(source, destination)}, and how this build pairs them cannot be told ({why}). "
            f"{_USUAL_CAUSES}"
        ) from why
    if pairs is None:
        return [part]
    _check_mapping(name, source, destination, pairs, peer)
    differing = [(i, j) for i, j in pairs if source[i] != destination[j]]
    if not differing:
        return [part]
    copies = _ring_multiple(name, source, destination, pairs, differing, peer)
    if not _dtype_is_equal(peer):
        i, j = differing[0]
        raise Refused(
            f"{name}: entry {i} has {source[i]} bytes a page index on prefill and {destination[j]} on decode, and as "
            f"prefill keeps its state in less than float32 this may be a wider state dtype on decode as well as "
            f"speculative decoding. Set {_DTYPE_VARIABLE}=float32 on both sides."
        )
    grains = _grains(name, {source[i] for i, _ in differing}, copies, peer)
    shown: dict[Grain, list[tuple[int, int]]] = {}
    for i, j in pairs:
        shown.setdefault(WHOLE if source[i] == destination[j] else grains[source[i]], []).append((i, j))
    return [
        Part(part.component, part.state_type, tuple(i for i, _ in entries), tuple(j for _, j in entries), grain)
        for grain, entries in shown.items()
    ]


def _first_difference(source: Sequence[int], destination: Sequence[int]) -> str:
    for entry, (length, other) in enumerate(zip(source, destination, strict=False)):
        if length != other:
            return f"from entry {entry} on ({length} and {other} bytes a page index)"
    return "in number alone"


def _is_flat(manager: object) -> bool:
    """Whether the generic sender takes state as one buffer a layer. Halves for K and V have no rings."""
    return bool(getattr(manager, "is_mla_backend", False) or getattr(manager, "is_hybrid_mla_backend", False))


def _check_mapping(
    name: str, source: Sequence[int], destination: Sequence[int], pairs: list[tuple[int, int]], peer: Peer
) -> None:
    """Refuses a plain slice of a heterogeneous list: it pairs entries that only look alike.

    get_mla_kv_ptrs_with_pp slices decode's list from ``prefill_start_layer`` when the counts differ, which is right for
    one buffer a layer and wrong for a list of several kinds of buffers. With ``mla_compression_ratios`` (0.5.12 on) the
    build maps each kind by itself.
    """
    if getattr(peer.manager.kv_args, "mla_compression_ratios", None):
        return
    if len(source) == len(destination) or not rings.is_heterogeneous(source):
        return
    if len({j - i for i, j in pairs}) == 1:
        i, j = next(((i, j) for i, j in pairs if source[i] != destination[j]), pairs[0])
        raise Refused(
            f"{name}: prefill has {len(source)} entries and decode {len(destination)}, and this build pairs them as a "
            f"plain slice, entry {i} ({source[i]} bytes a page index) with entry {j} ({destination[j]} bytes), which "
            f"is not right for buffers of several kinds. {_USUAL_CAUSES}"
        )


def _ring_multiple(
    name: str,
    source: Sequence[int],
    destination: Sequence[int],
    pairs: list[tuple[int, int]],
    differing: list[tuple[int, int]],
    peer: Peer,
) -> int:
    """The one multiple by which all differing entries are wider on decode; Refused when rings do not explain them."""
    multiples = {rings.multiple(source[i], destination[j]) for i, j in differing}
    multiple = multiples.pop() if len(multiples) == 1 else None
    # The SWA pages come first in the list, and no ring setting changes them; with a unified KV pool they are elsewhere.
    first_differs = pairs[0] in differing and not any(_plain(other.state_type) == "swa_ring" for other in peer.parts())
    if multiple not in rings.KNOWN_MULTIPLES or multiple is None or first_differs:
        i, j = next(
            ((i, j) for i, j in differing if rings.multiple(source[i], destination[j]) not in rings.KNOWN_MULTIPLES),
            differing[0],
        )
        raise Refused(
            f"{name}: entry {i} has {source[i]} bytes a page index on prefill and {destination[j]} on decode, which "
            f"speculative decoding on decode does not explain. {_USUAL_CAUSES}"
        )
    return multiple


def _grains(name: str, lengths: Collection[int], copies: int, peer: Peer) -> dict[int, Grain]:
    """How the rings of each of prefill's item lengths (bytes) are shown; Refused when the pages do not fit the rings.

    SGLang runs DeepSeek-V4 with pages of 256 tokens (``deepseek_v4_hook.py``), which hold whole rings of either kind.
    Only a fork with others needs to know which rings have how many rows.
    """
    page_size = getattr(peer.manager.kv_args, "page_size", None)
    if not isinstance(page_size, int) or page_size % _FAR_ROWS == 0:
        return dict.fromkeys(lengths, Grain(copies))
    grains = {}
    for length, rows in _ring_rows(lengths, peer).items():
        blocks = rings.blocks(page_size, rows)
        if blocks is not None and length % blocks == 0:
            grains[length] = Grain(copies, blocks)
    if len(grains) < len(lengths):
        unknown = sorted(set(lengths) - set(grains))
        raise Refused(
            f"{name}: decode's rings are longer than prefill's, and how pages of {page_size} tokens fill those of "
            f"{', '.join(map(str, unknown))} bytes cannot be told. Use --page-size 256 on both sides."
        )
    return grains


def _ring_rows(lengths: Collection[int], peer: Peer) -> dict[int, int]:
    """Rows of prefill's rings by item length; empty when the lengths do not tell.

    Where ratio 128 has a component of its own, the other rings have 8 rows. In a common list its item, 128 rows of
    2 * head_dim values, is 8 times as long as that of ratio 4, 8 rows of 4 * head_dim. The indexer has 8 rows too.
    """
    if _request_scoped(peer):
        return dict.fromkeys(lengths, _NEAR_ROWS)
    far = [length for length in lengths if length % 8 == 0 and length // 8 in lengths]
    if len(far) != 1:
        return {}
    return {length: _FAR_ROWS if length == far[0] else _NEAR_ROWS for length in lengths}


def _dtype_is_equal(peer: Peer) -> bool:
    """Whether rings of twice the length can only be longer, not wider.

    Prefill's own dtype is float32 by default, and there is none wider. With a narrower one, a component with the
    ratio-128 state alone tells the dtypes apart by its length.
    """
    envs = getattr(sys.modules.get("sglang.srt.environ"), "envs", None)
    variable = getattr(envs, _DTYPE_VARIABLE, None)
    if variable is None or str(variable.get()).strip().lower() in ("float32", "fp32"):
        return True
    others = _request_scoped(peer)
    return bool(others) and all(peer.source_lengths(other) == peer.destination_lengths(other) for other in others)


def _request_scoped(peer: Peer) -> list[Part]:
    return [part for part in peer.parts() if _plain(part.state_type) in _REQUEST_SCOPED]


def _plain(state_type: object) -> str:
    """The state type's name, whether the build has a string or an enumeration."""
    return str(getattr(state_type, "value", state_type))
