"""Pairs that live as long as the tests of one release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pairs import pair_of

from sglang_dsv4_hotfix.selftest.pair import Pair


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def patched(release: str) -> Iterator[Pair]:
    with pair_of(release, "1") as pair:
        yield pair


@pytest.fixture(scope="session")
def bare(release: str) -> Iterator[Pair]:
    """The same release with the package installed and the toggle off."""
    with pair_of(release, None) as pair:
        yield pair
