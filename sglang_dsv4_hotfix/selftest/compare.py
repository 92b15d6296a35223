"""What decode's pools must hold after a transfer, and what they hold.

Pure functions over bytes. An image is one buffer's content as a flat uint8 array. Items, rows and positions are those
of `layouts`; the addressing of rows rests on `CompressStatePool.translate_from_swa_loc_to_state_loc` and
`translate_from_req_position_to_state_loc` (`sglang/srt/mem_cache/deepseek_v4_compress_state.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sglang_dsv4_hotfix.selftest.layouts import Buffer, Group

Image: TypeAlias = "npt.NDArray[np.uint8]"
Indices: TypeAlias = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Where a request's tokens live, for buffers that are read by position.

    `first_page` is the logical number of the first SWA page in `prefill_pages` and `decode_pages`, which are parallel;
    a position p is on logical page p // page_size. `prefill_slot` and `decode_slot` are request slots.
    """

    seq_len: int
    page_size: int
    first_page: int
    prefill_pages: Indices
    decode_pages: Indices
    prefill_slot: int
    decode_slot: int

    def locations(self, position: int) -> tuple[int, int]:
        """SWA locations (page x page size + offset) of `position` on prefill and on decode."""
        page, offset = divmod(position, self.page_size)
        index = page - self.first_page
        return (
            self.prefill_pages[index] * self.page_size + offset,
            self.decode_pages[index] * self.page_size + offset,
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """One request: which items of prefill go to which items of decode, in parallel lists.

    `prefill_state` and `decode_state` have one list a component, None for a component without indices; the whole is
    None when no state is sent. Lists of different length mean what SGLang takes them to mean: the common prefix.
    Without `tokens`, state buffers are compared item by item.
    """

    room: int
    prefill_kv: Indices
    decode_kv: Indices
    prefill_aux: int
    decode_aux: int
    prefill_state: tuple[Indices | None, ...] | None = None
    decode_state: tuple[Indices | None, ...] | None = None
    tokens: Tokens | None = None
    chunks: int = 2

    def state_pairs(self, component: int) -> list[tuple[int, int]]:
        sides = []
        for state in (self.prefill_state, self.decode_state):
            indices = state[component] if state is not None and component < len(state) else None
            sides.append(indices or ())
        return list(zip(*sides, strict=False))

    def pairs(self, buffer: Buffer) -> list[tuple[int, int]]:
        """(prefill item, decode item) of this request in `buffer`."""
        if buffer.group == "kv":
            return list(zip(self.prefill_kv, self.decode_kv, strict=False))
        if buffer.group == "aux":
            return [(self.prefill_aux, self.decode_aux)]
        return self.state_pairs(buffer.component)


@dataclasses.dataclass(frozen=True)
class BufferCheck:
    """One decode buffer after the transfers: `right` of `wanted` units arrived, `stray` bytes changed that must not.

    A unit is a position where rows are addressed by position, else an item. Bytes outside the items of the requests
    are stray when they changed at all; bytes inside an item that arrives as a whole are counted in its unit.
    `changed` counts all bytes that differ from before.
    """

    name: str
    group: Group
    component: int
    unit: str
    wanted: int
    right: int
    stray: int
    changed: int


def check_buffer(
    source: Buffer,
    target: Buffer,
    sent: Image,
    before: Image,
    after: Image,
    requests: Iterable[Request],
    strangers: Iterable[Request] = (),
) -> BufferCheck:
    """Compares every byte of decode's `target` with what `requests` must have put there from prefill's `source`.

    `strangers` are requests whose own items may hold anything (failed ones: their KV may have arrived or not).
    """
    wanted = right = 0
    own = np.zeros(after.size, dtype=bool)
    by_position = bool(source.ring or source.request_ring)
    for request in requests:
        for first, second in request.pairs(target):
            own[second * target.item_len : (second + 1) * target.item_len] = True
            if not (by_position and request.tokens is not None):
                wanted += 1
                right += _same(sent, first * source.item_len, after, second * target.item_len, source.item_len)
        if by_position and request.tokens is not None and request.state_pairs(target.component):
            for a, b in _rows(source, target, request.tokens):
                wanted += 1
                right += _same(sent, a * source.row_len, after, b * target.row_len, source.row_len)
    for request in strangers:
        for _, second in request.pairs(target):
            own[second * target.item_len : (second + 1) * target.item_len] = True
    differs = before != after
    unit = "position" if by_position else "item"
    stray = int(np.count_nonzero(differs & ~own))
    return BufferCheck(
        target.name, target.group, target.component, unit, wanted, right, stray, int(np.count_nonzero(differs))
    )


def _same(left: Image, start: int, right: Image, begin: int, length: int) -> bool:
    a, b = left[start : start + length], right[begin : begin + length]
    return a.size == length and bool(np.array_equal(a, b))


def _rows(source: Buffer, target: Buffer, tokens: Tokens) -> Iterable[tuple[int, int]]:
    """(row on prefill, row on decode) of every position that decode still reads right after the handover."""
    if source.request_ring:
        # Whole blocks of 128 have been compressed; what is left is the state of the block that is being filled.
        for position in range(tokens.seq_len - tokens.seq_len % 128, tokens.seq_len):
            yield (
                tokens.prefill_slot * source.request_ring + position % source.request_ring,
                tokens.decode_slot * target.request_ring + position % target.request_ring,
            )
        return
    if not target.ring or source.row_len != target.row_len:
        return
    for position in range(max(0, tokens.seq_len - min(source.ring, target.ring)), tokens.seq_len):
        a, b = tokens.locations(position)
        yield (
            a // tokens.page_size * source.ring + a % source.ring,
            b // tokens.page_size * target.ring + b % target.ring,
        )


def check(
    sources: Sequence[Buffer],
    targets: Sequence[Buffer],
    sent: Mapping[str, Image],
    before: Mapping[str, Image],
    after: Mapping[str, Image],
    requests: Sequence[Request],
    strangers: Sequence[Request] = (),
) -> list[BufferCheck]:
    """`check_buffer` for every buffer of decode. One that prefill doesn't have must be as it was before."""
    by_name = {buffer.name: buffer for buffer in sources}
    checks = []
    for target in targets:
        source = by_name.get(target.name)
        if source is None:
            changed = int(np.count_nonzero(before[target.name] != after[target.name]))
            checks.append(BufferCheck(target.name, target.group, target.component, "item", 0, 0, changed, changed))
            continue
        name = target.name
        checks.append(check_buffer(source, target, sent[name], before[name], after[name], requests, strangers))
    return checks


def verdict(checks: Iterable[BufferCheck]) -> str:
    """One word: right, lost (nothing was written), misplaced (bytes changed that are not the requests'), else wrong.

    "untouched" when nothing was wanted and nothing was written, "-" when there are no buffers.
    """
    checks = list(checks)
    wanted = sum(check.wanted for check in checks)
    right = sum(check.right for check in checks)
    if not checks:
        return "-"
    if any(check.stray for check in checks):
        return "misplaced"
    if wanted and right == wanted:
        return "right"
    if not any(check.changed for check in checks):
        return "lost" if wanted else "untouched"
    return "wrong" if wanted else "misplaced"
