"""Every position that decode still reads, by the addressing rule of SGLang's state rings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_dsv4_hotfix import rings
from sglang_dsv4_hotfix.rings import Grain


@pytest.mark.parametrize("ring", [8, 128])
@pytest.mark.parametrize("page_size", [64, 128, 256])
@given(data=st.data(), copies=st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_every_position_of_the_last_ring_is_right(page_size: int, ring: int, copies: int, data: st.DataObject) -> None:
    pools = 24
    count = data.draw(st.integers(1, 5), label="pages of the sequence")
    length = data.draw(st.integers((count - 1) * page_size + 1, count * page_size), label="length of the sequence")
    prefill_pages = data.draw(st.lists(st.integers(0, pools - 1), min_size=count, max_size=count, unique=True))
    decode_pages = data.draw(st.lists(st.integers(0, pools - 1), min_size=count, max_size=count, unique=True))
    prefill = np.full(pools * ring, -1)
    decode = np.full(pools * ring * copies, -2)
    for position in range(length):  # as the compressor does: the last write to a row stays
        location = prefill_pages[position // page_size] * page_size + position % page_size
        prefill[prefill_pages[position // page_size] * ring + location % ring] = position

    grain = Grain(copies, rings.blocks(page_size, ring) or 0)
    rows = grain.source_length(ring)
    assert rows == grain.destination_length(ring * copies)
    for source, destination in zip(
        grain.source_items(prefill_pages), grain.destination_items(decode_pages), strict=True
    ):
        decode[destination * rows : (destination + 1) * rows] = prefill[source * rows : (source + 1) * rows]

    wide = ring * copies
    for position in range(max(0, length - ring), length):
        page = decode_pages[position // page_size]
        location = page * page_size + position % page_size
        assert decode[page * wide + location % wide] == position
    own = {row for page in decode_pages for row in range(page * wide, (page + 1) * wide)}
    assert all(decode[row] == -2 for row in range(len(decode)) if row not in own)


def test_expansion_keeps_the_pairs_when_one_list_is_cut() -> None:
    source, destination = Grain(2).source_items([5, 6, 7]), Grain(2).destination_items([9, 3])
    assert list(zip(source, destination, strict=False)) == [(5, 18), (5, 19), (6, 6), (6, 7)]


@pytest.mark.parametrize(
    ("page_size", "ring", "blocks"),
    [(256, 128, 1), (128, 128, 1), (64, 128, 2), (8, 128, 16), (64, 8, 1), (4, 8, 2), (192, 128, None), (0, 8, None)],
)
def test_blocks(page_size: int, ring: int, blocks: int | None) -> None:
    assert rings.blocks(page_size, ring) == blocks


@pytest.mark.parametrize(
    ("source", "destination", "multiple"),
    [(65536, 131072, 2), (65536, 65536, 1), (524288, 6144, None), (6144, 524288, None), (0, 8, None), (8, 0, None)],
)
def test_multiple(source: int, destination: int, multiple: int | None) -> None:
    assert rings.multiple(source, destination) == multiple
