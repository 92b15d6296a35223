"""What a patched manager sends, refuses and reports; the managers are those of builds.py."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builds import (
    EarlyManager,
    ListManager,
    Manager,
    Poll,
    Pools,
    Request,
    ScalarManager,
    StageManager,
    list_pair,
    scalar_pair,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Two SWA pages, compressor rings of ratio 4 and 128, an indexer ring: DeepSeek-V4's order, with small rows.
SWA = 576
FLAT = [SWA, SWA, 8 * 32, 128 * 16, 8 * 8]
SPECULATIVE = [SWA, SWA, 16 * 32, 256 * 16, 16 * 8]


def numbered(item_lengths: list[int], pages: int = 12) -> Pools:
    """Prefill's pools: every byte tells its buffer and row apart from its neighbours'."""
    pools = Pools(item_lengths, pages)
    for entry, buffer in enumerate(pools.buffers):
        buffer[:] = (np.arange(buffer.size) // 8 * 7 + entry * 31) % 251
    return pools


def send(manager: Any, peer: Any, request: Request, indices: Any) -> tuple[Any, int]:
    """The two calls of transfer_worker for the last chunk; returns both values."""
    extra = [peer.dst_state_data_ptrs] if isinstance(manager, ScalarManager) else []
    result = manager.maybe_send_extra(request, indices, *extra, None, peer)
    return result, manager.send_aux(request, 0, [])


def expected(prefill: Pools, decode: Pools, pairs: list[tuple[int, int]]) -> list[np.ndarray]:
    """Decode's buffers with each of the pairs' items in place, as often as they fit; the rest as it was."""
    result = []
    for source, length, wide in zip(prefill.buffers, prefill.item_lengths, decode.item_lengths, strict=True):
        buffer = np.full(decode.pages * wide, decode.fill, dtype=np.uint8)
        for i, j in pairs:
            item = source[i * length : (i + 1) * length]
            buffer[j * wide : (j + 1) * wide] = np.tile(item, wide // length)
        result.append(buffer)
    return result


def same(buffers: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(buffer, other) for buffer, other in zip(buffers, others, strict=True))


@pytest.mark.parametrize("lengths", [FLAT, SPECULATIVE], ids=["equal", "decode speculates"])
@pytest.mark.parametrize(
    ("source", "destination", "pairs"),
    [
        ([5, 6], [3, 9], [(5, 3), (6, 9)]),
        ([5, 6, 7], [3, 9], [(5, 3), (6, 9)]),
        ([5], [3, 9], [(5, 3)]),
        ([], [3], []),
        ([5], [], []),
    ],
)
def test_scalar_dsv4_arrives(
    patched: Callable[..., None], lengths: list[int], source: list[int], destination: list[int], pairs: Any
) -> None:
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(lengths, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    request = Request(1, destination)
    assert send(manager, peer, request, np.array(source)) == (0, 0)
    assert same(decode.buffers, expected(prefill, decode, pairs))
    assert len(manager.engine_calls) == (0 if not pairs else 1 if lengths is FLAT else 2)
    assert manager.kv_args.state_type == "dsv4"
    assert request.dst_state_indices == destination


def test_without_the_patch_dsv4_is_lost() -> None:
    prefill, decode = numbered(FLAT), Pools(FLAT, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    assert send(manager, peer, Request(1, [3]), [5]) == (0, 0)
    assert not manager.engine_calls


def test_without_the_patch_wider_rings_are_misplaced() -> None:
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("swa", prefill, decode)
    assert send(manager, peer, Request(1, [6]), [5]) == (0, 0)
    assert not same(decode.buffers, expected(prefill, decode, [(5, 6)]))
    assert (decode.buffers[2][3 * 512 : 4 * 512] != 255).any(), "item 6 of 256 bytes is decode's page 3"


@pytest.mark.parametrize("kind", ["swa", "nsa", "none", "mamba"])
def test_other_scalar_types_are_the_builds_own_call(patched: Callable[..., None], kind: str) -> None:
    prefill, plain, wrapped = numbered(FLAT), Pools(FLAT, 12, fill=255), Pools(FLAT, 12, fill=255)
    manager, peer = scalar_pair(kind, prefill, plain)
    outcome = send(manager, peer, Request(1, [3, 4]), [5, 6])
    patched(ScalarManager)
    other, other_peer = scalar_pair(kind, prefill, wrapped)
    assert send(other, other_peer, Request(1, [3, 4]), [5, 6]) == outcome
    assert same(plain.buffers, wrapped.buffers)
    assert len(other.engine_calls) == len(manager.engine_calls)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_list_builds_split_only_what_differs(patched: Callable[..., None], data: st.DataObject) -> None:
    patched(ListManager)
    wide = data.draw(st.lists(st.booleans(), min_size=1, max_size=6))
    rows = data.draw(st.lists(st.integers(1, 9), min_size=len(wide), max_size=len(wide)))
    source = [SWA, *(8 * row for row in rows)]
    destination = [SWA, *(8 * row * (2 if twice else 1) for row, twice in zip(rows, wide, strict=True))]
    pages = data.draw(st.lists(st.integers(0, 11), max_size=4, unique=True))
    targets = data.draw(st.lists(st.integers(0, 11), min_size=len(pages), max_size=len(pages), unique=True))
    first = (numbered(source), Pools(destination, 12, fill=255))
    second = (numbered([SWA]), Pools([SWA], 12, fill=254))
    manager, peer = list_pair([("swa", *first), ("swa", *second)])
    assert send(manager, peer, Request(1, [targets, targets]), [pages, pages]) == (0, 0)
    pairs = list(zip(pages, targets, strict=True))
    assert same(first[1].buffers, expected(*first, pairs))
    assert same(second[1].buffers, expected(*second, pairs))
    calls = 2 + any(wide) if pages else 0
    assert len(manager.engine_calls) == calls


class Comparing(ListManager):
    """A build that compares the two sides' item lengths before it sends, as two forks do."""

    def maybe_send_extra(
        self, req: Any, prefill_state_indices: Any, executor: Any, target_rank_registration_info: Any = None
    ) -> int:
        assert self.kv_args.state_item_lens == target_rank_registration_info.dst_state_item_lens
        return ListManager.maybe_send_extra(self, req, prefill_state_indices, executor, target_rank_registration_info)


def test_a_build_that_compares_sees_one_item_length(patched: Callable[..., None]) -> None:
    patched(Comparing)
    first = (numbered(FLAT), Pools(SPECULATIVE, 12, fill=255))
    manager, peer = list_pair([("swa", *first)])
    comparing = Comparing(manager.kv_args, manager.regions)
    assert send(comparing, peer, Request(1, [[3]]), [[5]]) == (0, 0)
    assert same(first[1].buffers, expected(*first, [(5, 3)]))


class OwnSender(ScalarManager):
    """A fork's build that sends state by a method of its own."""

    def maybe_send_extra(
        self,
        req: Any,
        prefill_state_indices: Any,
        dst_state_data_ptrs: Any,
        executor: Any,
        target_rank_registration_info: Any = None,
    ) -> int:
        return self.send_own(req, prefill_state_indices, dst_state_data_ptrs, target_rank_registration_info)

    def send_own(self, req: Any, indices: Any, pointers: Any, registration: Any) -> int:
        raise NotImplementedError


class Caching(OwnSender):
    """Works out its pointers and lengths once, and keeps them."""

    kept: Any = None

    def send_own(self, req: Any, indices: Any, pointers: Any, registration: Any) -> int:
        if self.kept is None:
            self.kept = (self.kv_args.state_data_ptrs, self.kv_args.state_item_lens)
        sources, lengths = self.kept
        return self._send_kvcache_generic(
            req.mooncake_session_id, sources, pointers, lengths, indices, req.dst_state_indices, None
        )


class Mapping(OwnSender):
    """Fills decode's rings itself, by decode's own item lengths."""

    def send_own(self, req: Any, indices: Any, pointers: Any, registration: Any) -> int:
        lengths = zip(self.kv_args.state_item_lens, registration.dst_state_item_lens, strict=True)
        return self._transfer_data(
            req.mooncake_session_id,
            [
                (source + i * length, destination + j * wide + copy * length, length)
                for source, destination, (length, wide) in zip(
                    self.kv_args.state_data_ptrs, pointers, lengths, strict=True
                )
                for i, j in zip(indices, req.dst_state_indices, strict=True)
                for copy in range(wide // length)
            ],
        )


@pytest.mark.parametrize("build", [Caching, Mapping])
def test_senders_of_a_forks_own(patched: Callable[..., None], build: type[ScalarManager]) -> None:
    patched(build, "stride,status")
    prefill = numbered(FLAT)
    for lengths, pages in ((SPECULATIVE, [(5, 3)]), (FLAT, [(4, 2)]), (SPECULATIVE, [(7, 1), (2, 8)])):
        decode = Pools(lengths, 12, fill=255)
        pair, peer = scalar_pair("dsv4", prefill, decode)
        manager = build(pair.kv_args, decode.buffers)
        manager.sources = prefill.buffers
        sources, destinations = [i for i, _ in pages], [j for _, j in pages]
        assert send(manager, peer, Request(1, destinations), sources) == (0, 0)
        assert same(decode.buffers, expected(prefill, decode, pages))


@pytest.mark.parametrize("indices", [[None, [5]], [None], [[5], None], []], ids=str)
def test_components_without_indices_stay_without(patched: Callable[..., None], indices: list[Any]) -> None:
    patched(ListManager)
    first = (numbered(FLAT), Pools(SPECULATIVE, 12, fill=255))
    second = (numbered([SWA]), Pools([SWA], 12, fill=255))
    manager, peer = list_pair([("swa", *first), ("dsa", *second)])
    assert send(manager, peer, Request(1, [[3], [4]]), indices) == (0, 0)
    assert same(first[1].buffers, expected(*first, [(5, 3)] if indices[:1] == [[5]] else []))
    assert same(second[1].buffers, expected(*second, [(5, 4)] if indices[1:] == [[5]] else []))


REFUSED = {
    "prefill speculates": (SPECULATIVE, FLAT, "entry 2 has 512 bytes a page index on prefill and 256 on decode"),
    "online compression": (FLAT, [SWA, SWA, 256, 48, 64], "entry 3 has 2048 bytes a page index on prefill and 48"),
    "decode's rings are four times": (FLAT, [SWA, SWA, 1024, 8192, 256], "entry 2 has 256 bytes"),
    "rings of different multiples": (FLAT, [SWA, SWA, 512, 2048, 192], "entry 4 has 64 bytes"),
    "pages of another size": (FLAT, [2 * SWA, 2 * SWA, 256, 2048, 64], "entry 0 has 576 bytes"),
    "one entry more": (FLAT, [SWA, SWA, SWA, 256, 2048, 64], "prefill has 5 entries and decode 6"),
    "one entry more, at the end": (FLAT, [*FLAT, 64], "prefill has 5 entries and decode 6"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("shape", ["scalar", "list"])
def test_refused_layouts(patched: Callable[..., None], caplog: pytest.LogCaptureFixture, name: str, shape: str) -> None:
    source, destination, message = REFUSED[name]
    prefill, decode = numbered(source), Pools(destination, 12, fill=255)
    if shape == "scalar":
        patched(ScalarManager)
        manager, peer = scalar_pair("dsv4", prefill, decode)
        outcome = send(manager, peer, Request(7, [3]), [5])
    else:
        patched(ListManager)
        manager, peer = list_pair([("swa", prefill, decode)])
        outcome = send(manager, peer, Request(7, [[3]]), [[5]])
    assert outcome == (0, -1)
    assert not manager.engine_calls
    assert not manager.aux_sent
    assert message in manager.failures[7]
    assert "Usual causes: speculative decoding on prefill only" in manager.failures[7]
    assert [record.levelno for record in caplog.records if "room 7" in record.message] == [logging.ERROR]


@pytest.mark.parametrize(
    ("page_size", "rings", "fits"),
    [
        (256, FLAT[2:], True),
        (128, FLAT[2:], True),
        (192, FLAT[2:], False),
        (64, FLAT[2:], True),
        (64, [256, 64], False),  # of 8 rows both, or one of 128
        (64, [512, 64, 8], False),  # either of two may be of 128 rows
    ],
)
def test_pages_have_to_fit_the_rings(
    patched: Callable[..., None], page_size: int, rings: list[int], fits: bool
) -> None:
    patched(ScalarManager)
    prefill = numbered([SWA, *rings])
    decode = Pools([SWA, *(2 * length for length in rings)], 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    manager.kv_args.page_size = page_size
    assert send(manager, peer, Request(1, [3]), [5]) == (0, 0 if fits else -1)
    assert bool(manager.engine_calls) is fits
    assert fits or "Use --page-size 256 on both sides." in manager.failures[1]


@pytest.mark.parametrize(("source", "destination"), [(5, 3), (4, 3), (5, 4), (6, 10)])
def test_pages_shorter_than_a_ring_bring_their_own_rows(
    patched: Callable[..., None], source: int, destination: int
) -> None:
    """Page p of 64 tokens has rows p % 2 * 64 and on of a ring of 128 rows, and p % 4 * 64 and on of one of 256."""
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    manager.kv_args.page_size = 64
    assert send(manager, peer, Request(1, [destination]), [source]) == (0, 0)
    row = FLAT[3] // 128
    ring, wide = 128 * row, 256 * row
    begin = destination * wide + destination % 4 * 64 * row
    taken = source * ring + source % 2 * 64 * row
    written = decode.buffers[3]
    assert (written[begin : begin + 64 * row] == prefill.buffers[3][taken : taken + 64 * row]).all()
    assert (np.delete(written, np.s_[begin : begin + 64 * row]) == 255).all()
    assert same([decode.buffers[2]], [expected(prefill, decode, [(source, destination)])[2]])


@pytest.mark.parametrize("extra", [[], [64]], ids=["equal", "one entry more on decode"])
def test_builds_that_are_not_told_the_lengths(patched: Callable[..., None], extra: list[int]) -> None:
    patched(EarlyManager)
    prefill, decode = numbered(FLAT), Pools([*FLAT, *extra], 12, fill=255)
    manager, _ = scalar_pair("dsv4", prefill, decode)
    early = EarlyManager(manager.kv_args, decode.buffers)
    request = Request(1, [3])
    assert early.maybe_send_extra(request, [5], decode.pointers, None) == 0
    assert early.send_aux(request, 0, []) == (-1 if extra else 0)
    if extra:
        assert not early.engine_calls
        assert "prefill has 5 state buffers and decode 6" in early.failures[1]
    else:
        assert same(decode.buffers, expected(prefill, decode, [(5, 3)]))


def test_homogeneous_lists_of_different_length_are_left_to_the_build(patched: Callable[..., None]) -> None:
    patched(ScalarManager)
    prefill, decode = numbered([64, 64]), Pools([64, 64, 64], 12, fill=255)
    manager, peer = scalar_pair("nsa", prefill, decode)
    assert send(manager, peer, Request(1, [3]), [5]) == (0, 0)
    assert same(decode.buffers[:2], expected(prefill, Pools([64, 64], 12, fill=255), [(5, 3)]))
    assert (decode.buffers[2] == 255).all()


@pytest.mark.parametrize("fault", ["refused by the engine", "raises"])
def test_a_failed_send_fails_its_request_alone(patched: Callable[..., None], fault: str) -> None:
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(FLAT, 12, fill=255)
    manager, peer = scalar_pair("nsa", prefill, decode)
    if fault == "raises":
        manager.regions = []
    else:
        manager.engine_result = -7
    bad, good = Request(1, [3]), Request(2, [4])
    assert send(manager, peer, bad, [5])[1] == -1
    wanted = "Region" if fault == "raises" else "returned -7"
    assert wanted in manager.failures[1]
    manager.engine_result, manager.regions = 0, decode.buffers
    assert send(manager, peer, good, [6]) == (0, 0)
    assert manager.aux_sent == [2]
    assert list(manager.failures) == [1]
    assert not [name for name in vars(bad) if "hotfix" in name], "the mark is gone with the answer"


def test_a_mark_dies_with_its_request_when_send_aux_never_comes(patched: Callable[..., None]) -> None:
    patched(ScalarManager)
    manager, peer = scalar_pair("dsv4", numbered(SPECULATIVE), Pools(FLAT, 12))
    request = Request(1, [3])
    manager.maybe_send_extra(request, [5], peer.dst_state_data_ptrs, None, peer)
    alive = weakref.ref(request)
    assert any("hotfix" in name for name in vars(request))
    del request
    gc.collect()
    assert alive() is None


def test_refusals_do_not_grow(patched: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    patched(ScalarManager)
    monkeypatch.setattr(logging.getLogger("sglang_dsv4_hotfix"), "disabled", True)  # pytest keeps what is logged
    manager, peer = scalar_pair("dsv4", numbered(SPECULATIVE), Pools(FLAT, 12))

    def refuse(count: int) -> int:
        for room in range(count):
            assert send(manager, peer, Request(room, [3]), [5]) == (0, -1)
            manager.failures.clear()
        gc.collect()
        return len(gc.get_objects())

    refuse(10)
    before = refuse(10)
    assert refuse(500) - before < 50


def test_without_status_an_exception_stays_the_builds_own(patched: Callable[..., None]) -> None:
    patched(ScalarManager, "dispatch")
    prefill, decode = numbered(FLAT), Pools(FLAT, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    manager.regions = []
    with pytest.raises(Exception, match="bytes at"):
        send(manager, peer, Request(1, [3]), [5])


def test_the_peer_is_worked_out_once_and_again_when_it_registers_anew(
    patched: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_dsv4_hotfix.fixes import stride

    asked: list[int] = []
    real = stride.entry_pairs
    monkeypatch.setattr(stride, "entry_pairs", lambda *args: asked.append(1) or real(*args))
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    for room in range(3):
        send(manager, peer, Request(room, [3]), [5])
    assert len(asked) == 1
    _, again = scalar_pair("dsv4", prefill, decode)
    send(manager, again, Request(4, [3]), [5])
    assert len(asked) == 2


def test_first_changed_transfer_is_logged(patched: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    send(manager, peer, Request(41, [3, 4]), [5, 6])
    send(manager, peer, Request(42, [3, 4]), [5, 6])
    lines = [(record.levelno, record.getMessage()) for record in caplog.records if "state sent as" in record.message]
    size = 2 * (2 * SWA + 2 * (256 + 2048 + 64))
    text = f'state sent as 2 "nsa" buffers + 3 "nsa" buffers, each ring 2 times; 2 page indices, {size} bytes'
    assert lines == [
        (logging.INFO, f"sglang_dsv4_hotfix: first changed transfer: room 41: {text}"),
        (logging.DEBUG, f"sglang_dsv4_hotfix: room 42: {text}"),
    ]


@pytest.mark.parametrize("last_stage", [False, True])
@pytest.mark.parametrize("fault", ["none", "refused", "engine", "raises"])
def test_stages_that_send_no_aux_data(patched: Callable[..., None], fault: str, last_stage: bool) -> None:
    patched(StageManager, "1")
    prefill, decode = numbered(FLAT), Pools([*FLAT, 64] if fault == "refused" else FLAT, 12)
    kv_args = scalar_pair("dsv4", prefill, decode)[0].kv_args
    manager = StageManager(kv_args, [] if fault == "raises" else decode.buffers)
    manager.last_stage = last_stage
    manager.engine_result = -7 if fault == "engine" else 0
    manager.request_status = {Poll.Success: 1, 9: 1}
    # A room with the number of a status, and a good one after it on the same thread.
    manager.transfer_worker([(Request(Poll.Success, [3]), ([5], decode.pointers, None))])
    manager.engine_result, manager.regions = 0, decode.buffers
    good = Pools(FLAT, 12)
    manager.regions = good.buffers
    manager.transfer_worker([(Request(9, [3]), ([5], good.pointers, None))])
    ended = Poll.Success if fault == "none" else Poll.Failed
    assert manager.request_status == {Poll.Success: ended, 9: Poll.Success}
    assert manager.told == [(Poll.Success, ended), (9, Poll.Success)]
    assert bool(manager.failures) == (fault != "none")


def test_dispatch_alone_does_not_write_over_others(patched: Callable[..., None]) -> None:
    patched(ScalarManager, "dispatch")
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    assert send(manager, peer, Request(1, [3]), [5]) == (0, -1)
    assert not manager.engine_calls
    assert "Set SGLANG_DSV4_HOTFIX=1" in manager.failures[1]


def test_a_peer_that_does_not_tell_its_lengths_is_warned_of_once(
    patched: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(FLAT, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    peer.dst_state_item_lens = []
    for room in (1, 2):
        assert send(manager, peer, Request(room, [3]), [5]) == (0, 0)
    assert same(decode.buffers, expected(prefill, decode, [(5, 3)]))
    assert [record.message for record in caplog.records if "does not tell its item lengths" in record.message] != []
    assert len([record for record in caplog.records if "does not tell" in record.message]) == 1


def test_a_mapping_of_the_builds_own_is_trusted(patched: Callable[..., None]) -> None:
    """The last stage of a pipeline, on a build that maps each kind of buffer: a constant offset is right there."""
    patched(ListManager)
    prefill, decode = numbered(FLAT[1:]), Pools(FLAT, 12, fill=255)
    manager, peer = list_pair([("swa", prefill, decode)])
    assert send(manager, peer, Request(1, [[3]]), [[5]]) == (0, -1)
    manager, peer = list_pair([("swa", prefill, decode)])
    manager.kv_args.mla_compression_ratios = [0, 4, 128]
    assert send(manager, peer, Request(2, [[3]]), [[5]]) == (0, 0)
    assert (decode.buffers[0] == 255).all()
    assert same(decode.buffers[1:], expected(prefill, Pools(FLAT[1:], 12, fill=255), [(5, 3)]))


def test_rings_alone_beside_a_pool_with_the_pages(patched: Callable[..., None]) -> None:
    patched(ListManager)
    rings_only, wide = numbered(FLAT[2:]), Pools(SPECULATIVE[2:], 12, fill=255)
    pages = (numbered([SWA]), Pools([SWA], 12, fill=255))
    manager, peer = list_pair([("swa", rings_only, wide), ("swa_ring", *pages)])
    assert send(manager, peer, Request(1, [[3], [4]]), [[5], [5]]) == (0, 0)
    assert same(wide.buffers, expected(rings_only, wide, [(5, 3)]))
    assert same(pages[1].buffers, expected(*pages, [(5, 4)]))


@pytest.mark.parametrize("way", ["raises", "sends nothing"])
def test_a_build_that_cannot_be_rehearsed_is_refused_where_lengths_differ(
    patched: Callable[..., None], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def unusable(self: Any, source: Any, destination: Any) -> Any:
        if way == "raises":
            raise LookupError("no context")
        return [], []

    monkeypatch.setattr(Manager, "get_mla_kv_ptrs_with_pp", unusable)
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("dsv4", prefill, decode)
    assert send(manager, peer, Request(1, [3]), [5]) == (0, -1)
    assert not manager.engine_calls
    assert ("LookupError: no context" if way == "raises" else "it sends nothing") in manager.failures[1]


def test_a_log_filter_that_raises_costs_a_line_of_log_only(patched: Callable[..., None]) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise KeyError("request_id")

    log = logging.getLogger("sglang_dsv4_hotfix")
    log.addFilter(broken)
    try:
        patched(ScalarManager)
        manager, peer = scalar_pair("dsv4", numbered(SPECULATIVE), Pools(FLAT, 12))
        assert send(manager, peer, Request(1, [3]), [5]) == (0, -1)
        manager, peer = scalar_pair("dsv4", numbered(FLAT), Pools(SPECULATIVE, 12))
        log.setLevel(logging.INFO)
        assert send(manager, peer, Request(2, [3]), [5]) == (0, 0)
    finally:
        log.removeFilter(broken)
        log.setLevel(logging.NOTSET)


def test_no_record_is_left_for_a_room_that_was_given_up(patched: Callable[..., None]) -> None:
    patched(ScalarManager)
    manager, peer = scalar_pair("dsv4", numbered(SPECULATIVE), Pools(FLAT, 12))
    manager.request_status = {8: 3}
    assert send(manager, peer, Request(7, [3]), [5]) == (0, -1)
    assert send(manager, peer, Request(8, [3]), [5]) == (0, -1)
    assert list(manager.failures) == [8]


def test_a_request_class_with_slots(patched: Callable[..., None]) -> None:
    class Slotted:
        __slots__ = ("dst_state_indices", "mooncake_session_id", "room")

    request = Slotted()
    request.room, request.mooncake_session_id, request.dst_state_indices = 1, "session", [3]
    patched(ScalarManager)
    manager, peer = scalar_pair("dsv4", numbered(SPECULATIVE), Pools(FLAT, 12))
    assert send(manager, peer, request, [5]) == (0, -1)  # type: ignore[arg-type]
    assert manager.send_aux(request, 0, []) == 0


def test_a_manager_that_was_patched_by_instance_is_not_rehearsed_on(patched: Callable[..., None]) -> None:
    """An instance's own method is bound to the real manager and may reach the real engine: the layout is refused."""
    patched(ScalarManager)
    prefill, decode = numbered(FLAT), Pools(SPECULATIVE, 12, fill=255)
    manager, peer = scalar_pair("swa", prefill, decode)
    calls: list[int] = []
    manager.get_mla_kv_ptrs_with_pp = lambda *args: calls.append(1)  # type: ignore[method-assign,assignment]
    assert send(manager, peer, Request(1, [3]), [5]) == (0, -1)
    assert not calls
    assert "cannot be rehearsed" in manager.failures[1]
