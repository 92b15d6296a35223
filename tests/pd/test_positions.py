"""Every position that decode still reads, over real transfers: requests of any length on any pages."""

from __future__ import annotations

import dataclasses
import random

import pytest
from pairs import RELEASES, Bench, assert_arrived, with_transfers

from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Pair

ROUNDS = 4
MOST_PAGES = 3


@with_transfers("0.5.9", "0.5.11", "0.5.12", "0.5.14", "0.5.16", "0.5.19", "0.5.21")
@pytest.mark.parametrize("page_size", [64, 128, 256])
def test_positions(release: str, patched: Pair, page_size: int) -> None:
    """Equal layouts and decode speculating; lengths at and around page and ring boundaries and anywhere between.

    List releases bring pools of their own, which want pages of 256 tokens. A page of 64 tokens fills half of a ring of
    128 rows, which half depends on its number: equal layouts, which are the build's own call, are right only where the
    two sides' pages agree in that.
    """
    if page_size != 256 and RELEASES[release]["family"] == 4:
        pytest.skip("the releases' own pools want pages of 256 tokens")
    chance = random.Random(f"{release}/{page_size}")
    spec = LayoutSpec(kind="dsv4", pages=24, slots=12, page_size=page_size)
    edges = [1, 3, 4, 7, 8, 9, 127, 128, 129, page_size - 1, page_size, page_size + 1, 2 * page_size]
    for speculative in (False, True) if page_size > 64 else (True,):
        for _ in range(ROUNDS):
            bench = Bench(patched, spec, dataclasses.replace(spec, speculative=speculative))
            lengths = [chance.choice(edges), *(chance.randint(1, MOST_PAGES * page_size) for _ in range(4))]
            requests = scenarios.dsv4_requests(
                patched, bench.prefill, bench.decode, lengths=lengths, shuffle=chance.shuffle
            )

            outcomes = bench.run(*requests)

            assert {outcome.statuses for outcome in outcomes} == {"Success/Success"}, (lengths, outcomes)
            assert_arrived(bench.check(requests))
