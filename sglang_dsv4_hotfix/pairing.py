"""Asks a build which of prefill's state buffers it would write into which of decode's.

Builds pair the entries of the two lists by position, by a slice from ``kv_args.prefill_start_layer``, by sections of
``mla_compression_ratios`` (``CommonKVManager.get_mla_kv_ptrs_with_pp``, overridden on Ascend), or by layer ids
(``build_transfer_entry_pairs``, 0.5.20 on). Rather than know them all, this runs the build's own ``maybe_send_extra``
for one component and one page index, with an entry's number in place of its address, and with the last step, the
hand-over to the engine, replaced by a recorder: nothing is sent. Done once for each decode rank, not for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .components import Part, Peer
from .views import CallView, View

_REGISTRATION = "target_rank_registration_info"

#: Entry e is shown at address (e + 1) << _SHIFT: further apart than any item is long.
_SHIFT = 44
_OFFSET = (1 << _SHIFT) - 1

#: The page indices of a rehearsal: not 0, so that an offset tells the item length it was computed with.
_SOURCE_PAGE, _DESTINATION_PAGE = 3, 5

#: What a build's method might say of a room. A rehearsal has nothing to say.
_SILENCED = ("record_failure", "update_status", "conclude_failure", "sync_status_to_decode_endpoint")


class _Rehearsal(CallView):
    """The manager, with nothing in reach that belongs to the real one: what it calls and what it might say."""

    def __getattr__(self, name: str) -> Any:
        if name in _SILENCED:
            return lambda *args, **kwargs: None
        if callable(vars(self._real).get(name)):
            # Bound to the real manager, so it could reach the real engine.
            raise AttributeError(f"{name} has been replaced on this manager and cannot be rehearsed")
        return super().__getattr__(name)


class Unmapped(Exception):
    """The build could not be asked, or did not answer. The message says why."""


class _Recorder:
    """Stands where the engine is handed to: notes what it would be asked to copy, sends nothing."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, int]] = []

    def transfer(self, session: Any, blocks: Any) -> int:
        """As ``_transfer_data(session, [(source, destination, length), ...])``."""
        self.blocks.extend((int(source), int(destination), int(length)) for source, destination, length in blocks)
        return 0

    def batch_transfer_sync(self, session: Any, sources: Any, destinations: Any, lengths: Any) -> int:
        """As the engine's method, for builds that call it without ``_transfer_data``."""
        return self.transfer(session, zip(sources, destinations, lengths, strict=True))


class _Inline:
    """An executor that runs a task at once, in the thread that submits it."""

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def entry_pairs(peer: Peer, part: Part) -> list[tuple[int, int]] | None:
    """The (prefill entry, decode entry) pairs of one component, in the build's order.

    None when the build addresses decode's buffers by decode's own item lengths, so that there is nothing to correct.
    Raises Unmapped when the build refuses the two lists, when it cannot be rehearsed, when nothing was sent, or
    something else than one item for each pair: then nobody knows where it would write.
    """
    source, destination = peer.source_lengths(part), peer.destination_lengths(part)
    try:
        blocks = _rehearse(peer, part, destination)
    except Unmapped:
        if len(source) != len(destination):
            raise
        # A build that compares the lengths sees equal ones in what it will be shown, too.
        blocks = _rehearse(peer, part, source)
    if not blocks:
        raise Unmapped("it sends nothing")
    pairs = [(_entry(begin), _entry(end)) for begin, end, _ in blocks]
    if all(_is_item(*block, source[i]) for block, (i, _) in zip(blocks, pairs, strict=True)):
        if len(set(pairs)) < len(pairs):
            raise Unmapped("it copies an entry more than once")
        return pairs
    if all(_is_within(*block, destination[j]) for block, (_, j) in zip(blocks, pairs, strict=True)):
        return None
    raise Unmapped("it does not write to page index times item length")


def _is_item(source: int, destination: int, length: int, item: int) -> bool:
    """Whether a block is prefill's item of the page, put where items of that length would be on decode."""
    offsets = source & _OFFSET, destination & _OFFSET
    return (*offsets, length) == (_SOURCE_PAGE * item, _DESTINATION_PAGE * item, item)


def _is_within(source: int, destination: int, length: int, item: int) -> bool:
    """Whether a block goes into the item of decode's page, items being of decode's length."""
    begin = (destination & _OFFSET) - _DESTINATION_PAGE * item
    return begin >= 0 and begin + length <= item


def _rehearse(peer: Peer, part: Part, destination_lengths: list[int]) -> list[tuple[int, int, int]]:
    """What the build would copy for one page of this component alone, with these lengths as decode's."""
    recorder = _Recorder()
    source = [_address(entry) for entry in range(len(peer.source_lengths(part)))]
    destination = [_address(entry) for entry in range(len(destination_lengths))]
    kv_args, registration, request, indices = _single_component(peer, part, source, destination, destination_lengths)
    rehearsal = _Rehearsal(
        peer.manager,
        {
            "kv_args": kv_args,
            "enable_custom_mem_pool": False,  # would hand each buffer to the executor
            "_transfer_data": recorder.transfer,
            "engine": recorder,
        },
    )
    arguments = {
        "req": request,
        "prefill_state_indices": indices,
        "dst_state_data_ptrs": destination,
        "executor": _Inline(),
        _REGISTRATION: registration,
    }
    try:
        peer.method(rehearsal)(**{name: value for name, value in arguments.items() if name in peer.signature.positions})
    except Exception as error:
        raise Unmapped(f"{type(error).__name__}: {error}") from error
    return recorder.blocks


def _single_component(
    peer: Peer, part: Part, source: list[int], destination: list[int], lengths: list[int]
) -> tuple[Any, Any, Any, Any]:
    """Views of kv_args, registration and request, and prefill's indices, for one page of this component alone."""
    if not peer.signature.is_list:
        return (
            View(peer.manager.kv_args, {"state_type": part.state_type, "state_data_ptrs": source}),
            View(peer.registration, {"dst_state_data_ptrs": destination, "dst_state_item_lens": lengths}),
            View(peer.request, {"dst_state_indices": [_DESTINATION_PAGE]}),
            [_SOURCE_PAGE],
        )
    count = len(peer.parts())
    alone: list[Any] = [None] * count
    alone[part.component] = [_SOURCE_PAGE]
    there: list[Any] = [None] * count
    there[part.component] = [_DESTINATION_PAGE]
    types = list(peer.manager.kv_args.state_types)
    types[part.component] = part.state_type

    def lists(entries: list[int]) -> list[list[int]]:
        return [entries if index == part.component else [] for index in range(count)]

    return (
        View(peer.manager.kv_args, {"state_types": types, "state_data_ptrs": lists(source)}),
        View(peer.registration, {"dst_state_data_ptrs": lists(destination), "dst_state_item_lens": lists(lengths)}),
        View(peer.request, {"dst_state_indices": there}),
        alone,
    )


def _address(entry: int) -> int:
    return (entry + 1) << _SHIFT


def _entry(address: int) -> int:
    return (address >> _SHIFT) - 1
