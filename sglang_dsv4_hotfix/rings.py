"""Index arithmetic of state rings. Pure: no SGLang, no wrapt, no numpy.

A *ring* of R rows belongs to one page index: the row of a token is ``page * R + location % R`` (SGLang,
``deepseek_v4_memory_pool.py``; R from ``get_compress_state_ring_size``: 8 rows for compress ratio 4, 128 for ratio 128,
twice that on a server that decodes speculatively). Only the last R positions of a sequence are read again.

When decode's ring has ``k * R`` rows, prefill's ring is written k times over into it. Decode then finds location x at
row ``x % (k * R)`` of its ring; that row holds prefill's row ``x % (k * R) % R``, which is ``x % R``: the row where
prefill keeps x. So all of the last R positions are right, wherever in the ring they lie. (Pages hold whole rings of
prefill's, ``page_size % R == 0``, as SGLang's kernels check.) Seen from the sender, decode's buffer becomes one of
items as long as prefill's, k of them for each page index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: How many of prefill's rings may make one of decode's. The ring doubles with speculative decoding and no released
#: build knows another size; any other multiple has a cause that copying rings would not mend.
KNOWN_MULTIPLES = frozenset({2})


def repeat(pages: Iterable[int], copies: int) -> list[int]:
    """Source items for ``copies`` rings each: page index i of prefill, ``copies`` times in a row."""
    return [page for page in pages for _ in range(copies)]


def spread(pages: Iterable[int], copies: int) -> list[int]:
    """Destination items for decode's page indices: page index j becomes ``j*copies .. j*copies + copies - 1``."""
    return [int(page) * copies + copy for page in pages for copy in range(copies)]


def multiple(source_length: int, destination_length: int) -> int | None:
    """How many times prefill's item length (bytes) goes into decode's; None unless it does so exactly."""
    if source_length <= 0 or destination_length <= 0 or destination_length % source_length:
        return None
    return destination_length // source_length


def is_heterogeneous(lengths: Sequence[int]) -> bool:
    """Whether buffers of different item lengths stand in one list, as in DeepSeek-V4's flat state list."""
    return len(set(lengths)) > 1
