"""Whatever comes in: the build's own behaviour or a clean refusal; nothing of ours raises or goes to other rows."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from builds import ListManager, Pools, Request, ScalarManager, list_pair, scalar_pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_dsv4_hotfix import toggle
from sglang_dsv4_hotfix.build import Unreadable
from sglang_dsv4_hotfix.components import Signature

SWA = 576
PAGES = 12
anything = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

index = st.one_of(
    st.integers(0, PAGES - 1),
    st.integers(0, PAGES - 1).map(np.int32),
    st.integers(0, PAGES - 1).map(np.int64),
    st.sampled_from([-1, -PAGES, PAGES, 2**31 - 1, 2**40, 1.5, None, "3", b"", True, np.nan]),
)
indices = st.one_of(
    st.none(),
    st.lists(index, max_size=4),
    st.lists(index, max_size=4).map(tuple),
    st.lists(st.integers(0, PAGES - 1), max_size=4).map(lambda pages: np.array(pages, dtype=np.int32)),
    st.lists(st.integers(0, PAGES - 1), max_size=4).map(iter),
    st.sampled_from([3, "abc", {}]),
)
length = st.one_of(st.sampled_from([SWA, 64, 128, 256, 512, 8, 16]), st.sampled_from([0, -64, 2**50, None, "64", 1.5]))
lengths = st.one_of(st.lists(length, max_size=5), st.none(), st.just(7))


@given(st.text())
@anything
def test_toggle(value: str) -> None:
    try:
        names = toggle.parse(value)
    except ValueError:
        return
    assert set(names) <= set(toggle.FIXES)


NAMES = ["req", "prefill_state_indices", "dst_state_data_ptrs", "executor", "target_rank_registration_info", "other"]


@given(st.lists(st.sampled_from(NAMES), unique=True), st.integers(0, 6), st.integers(0, 6))
@anything
def test_signatures(names: list[str], keyword_only: int, given_by_name: int) -> None:
    """Any set of parameters is bound by name, or not recognised."""
    border = max(0, len(names) - keyword_only)
    positional, by_keyword = names[:border], names[border:]
    text = ", ".join(["self", *positional, *(["*", *by_keyword] if by_keyword else [])])
    namespace: dict[str, Any] = {}
    exec(f"def maybe_send_extra({text}): ...", namespace)
    function = namespace["maybe_send_extra"]
    assert isinstance(function, FunctionType)
    try:
        signature = Signature.of(function)
    except Unreadable:
        assert not {"req", "prefill_state_indices"} <= set(names) or not {
            "dst_state_data_ptrs",
            "target_rank_registration_info",
        } & set(names)
        return
    split = min(given_by_name, len(positional))
    args = tuple(f"value of {name}" for name in positional[:split])
    kwargs = {name: f"value of {name}" for name in [*positional[split:], *by_keyword]}
    for name in NAMES:
        assert signature.get(name, args, kwargs) == (f"value of {name}" if name in names else None)
    new_args, new_kwargs = signature.put({"req": "new", "executor": "too"}, args, kwargs)
    assert len(new_args) == len(args)
    assert new_kwargs.keys() == kwargs.keys()
    if "req" in names:
        assert signature.get("req", tuple(new_args), new_kwargs) == "new"


def rows(decode: Pools, pages: Any) -> list[tuple[int, int]]:
    """The address ranges that belong to a request with these page indices (as int() has them) of decode's."""
    found = []
    for page in pages:
        try:
            number = int(page)
        except (TypeError, ValueError):
            continue
        for pointer, item in zip(decode.pointers, decode.item_lengths, strict=True):
            found.append((pointer + number * item, pointer + (number + 1) * item))
    return found


def assert_inside(manager: Any, own: list[tuple[int, int]]) -> None:
    for blocks in manager.engine_calls:
        for _, destination, size in blocks:
            inside = any(start <= destination and destination + size <= end for start, end in own)
            # What lies outside decode's memory the engine refuses: builds.Manager raises Region then.
            registered = any(
                region.ctypes.data <= destination and destination + size <= region.ctypes.data + region.nbytes
                for region in manager.regions
            )
            assert inside or not registered, hex(destination)


@pytest.mark.parametrize("page_size", [256, 64])
@pytest.mark.parametrize("wide", [False, True])
@given(source=indices, destination=indices)
@anything
def test_index_lists_of_scalar_builds(
    patched: Callable[..., None], wide: bool, page_size: int, source: Any, destination: Any
) -> None:
    patched(ScalarManager)
    prefill = Pools([SWA, 64, 512], PAGES, fill=1)
    decode = Pools([SWA, 128, 1024] if wide else [SWA, 64, 512], PAGES)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    manager.kv_args.page_size = page_size
    pages = list(destination) if isinstance(destination, (list, tuple, np.ndarray)) else None
    request = Request(1, destination)
    manager.maybe_send_extra(request, source, peer.dst_state_data_ptrs, None, peer)
    assert manager.send_aux(request, 0, []) in (0, -1)
    if pages is not None:
        assert_inside(manager, rows(decode, pages))


@pytest.mark.parametrize("wide", [False, True])
@given(source=st.lists(indices, max_size=3), destination=st.lists(indices, max_size=3))
@anything
def test_index_lists_of_list_builds(
    patched: Callable[..., None], wide: bool, source: list[Any], destination: list[Any]
) -> None:
    patched(ListManager)
    first = (Pools([SWA, 64], PAGES, fill=1), Pools([SWA, 128 if wide else 64], PAGES))
    second = (Pools([SWA], PAGES, fill=1), Pools([SWA], PAGES))
    manager, peer = list_pair([("swa", *first), ("dsa", *second)])
    pages = [list(one) if isinstance(one, (list, tuple, np.ndarray)) else None for one in destination]
    request = Request(1, destination)
    manager.maybe_send_extra(request, source, None, peer)
    assert manager.send_aux(request, 0, []) in (0, -1)
    if None not in pages:
        own = [row for (_, decode), one in zip((first, second), pages, strict=False) for row in rows(decode, one)]
        assert_inside(manager, own)


@given(source=lengths, destination=lengths, page_size=st.sampled_from([256, 64, 4, 1, 0, -64, 2**50, True, None, "64"]))
@anything
def test_item_lengths(patched: Callable[..., None], source: Any, destination: Any, page_size: Any) -> None:
    """Layouts that make no sense: never an exception, and never a write of a length that decode does not have there."""
    patched(ScalarManager)
    prefill, decode = Pools([SWA, 64, 64], PAGES, fill=1), Pools([SWA, 128, 128], PAGES)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    manager.kv_args.state_item_lens, peer.dst_state_item_lens = source, destination
    manager.kv_args.page_size = page_size
    if isinstance(source, list):
        manager.kv_args.state_data_ptrs = manager.kv_args.state_data_ptrs[: len(source)]
    if isinstance(destination, list):
        peer.dst_state_data_ptrs = peer.dst_state_data_ptrs[: len(destination)]
    request = Request(1, [3])
    manager.maybe_send_extra(request, [5], peer.dst_state_data_ptrs, None, peer)
    assert manager.send_aux(request, 0, []) in (0, -1)
