"""Index arithmetic of state rings. Pure: no SGLang, no wrapt, no numpy.

A *ring* of R rows belongs to one page index: the row of a token is ``page * R + location % R`` (SGLang,
``deepseek_v4_memory_pool.py``; R from ``get_compress_state_ring_size``: 8 rows for compress ratio 4, 128 for ratio 128,
twice that on a server that decodes speculatively). Only the last R positions of a sequence are read again.

When decode's ring has ``k * R`` rows, prefill's ring is written k times over into it. Decode then finds location x at
row ``x % (k * R)`` of its ring; that row holds prefill's row ``x % (k * R) % R``, which is ``x % R``: the row where
prefill keeps x. So all of the last R positions are right, wherever in the ring they lie. Seen from the sender, decode's
buffer becomes one of items as long as prefill's, k of them for each page index.

That holds for pages of whole rings (``page_size % R == 0``), and SGLang sets 256 for DeepSeek-V4. Pages shorter than
the ring, which a fork may have, fill one block of it each, and which block depends on the page's number, on either
side; then that block is what travels. Seen from the sender, items are as long as such a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: How many of prefill's rings may make one of decode's. The ring doubles with speculative decoding and no released
#: build knows another size; any other multiple has a cause that copying rings would not mend.
KNOWN_MULTIPLES = frozenset({2})


class Grain(NamedTuple):
    """How fine rings are shown to the sender: items for page indices, the same number of them on either side.

    Decode's ring is ``copies`` times as long as prefill's, and a page fills one of ``blocks`` blocks of prefill's ring
    (1: all of it, one or more times over).
    """

    copies: int = 1
    blocks: int = 1

    @property
    def items_per_page(self) -> int:
        return self.copies if self.blocks == 1 else 1

    def source_items(self, pages: Iterable[int]) -> list[int]:
        """Prefill's items: page index i ``copies`` times in a row, or the one block that it fills."""
        if self.blocks == 1:
            return [page for page in pages for _ in range(self.copies)]
        return [_block(page, self.blocks) for page in pages]

    def destination_items(self, pages: Iterable[int]) -> list[int]:
        """Decode's items: j becomes ``j*copies .. j*copies + copies - 1``, or the one block that it fills."""
        if self.blocks == 1:
            return [int(page) * self.copies + copy for page in pages for copy in range(self.copies)]
        return [_block(page, self.blocks * self.copies) for page in pages]

    def source_length(self, item_length: int) -> int:
        """Bytes of an item as shown, from prefill's item length."""
        return item_length // self.blocks

    def destination_length(self, item_length: int) -> int:
        """The same from decode's."""
        return item_length // (self.blocks * self.copies)


#: Items as they are.
WHOLE = Grain()


def blocks(page_size: int, ring: int) -> int | None:
    """How many blocks of a ring of ``ring`` rows pages of ``page_size`` tokens make; None when they do not fit."""
    if page_size <= 0 or (page_size % ring and ring % page_size):
        return None
    return max(1, ring // page_size)


def _block(page: int, count: int) -> int:
    page = int(page)
    return page * count + page % count


def multiple(source_length: int, destination_length: int) -> int | None:
    """How many times prefill's item length (bytes) goes into decode's; None unless it does so exactly."""
    if source_length <= 0 or destination_length <= 0 or destination_length % source_length:
        return None
    return destination_length // source_length


def is_heterogeneous(lengths: Sequence[int]) -> bool:
    """Whether buffers of different item lengths stand in one list, as in DeepSeek-V4's flat state list."""
    return len(set(lengths)) > 1
