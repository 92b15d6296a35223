"""Asks a build which of prefill's state buffers it would write into which of decode's.

Builds pair the entries of the two lists by position, by a slice from ``kv_args.prefill_start_layer``, by sections of
``mla_compression_ratios`` (``CommonKVManager.get_mla_kv_ptrs_with_pp``, overridden on Ascend), or by layer ids
(``build_transfer_entry_pairs``, 0.5.20 on). Rather than know them all, this runs the build's own ``maybe_send_extra``
for one component and page index 0, with an entry's number in place of its address, and with the last step, the
hand-over to the engine, replaced by a recorder: nothing is sent. Done once for each decode rank, not for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .components import Part, Peer
from .views import View

_REGISTRATION = "target_rank_registration_info"

#: Entry e is shown at address (e + 1) << _SHIFT: further apart than any item is long.
_SHIFT = 44

#: What a build's method might say of a room. A rehearsal has nothing to say.
_SILENCED = ("record_failure", "update_status", "conclude_failure", "sync_status_to_decode_endpoint")


class _Rehearsal(View):
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
    """Stands where the engine is handed to: notes the pairs of entries, sends nothing."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def blocks(self, session: Any, blocks: Any) -> int:
        """As ``_transfer_data(session, [(source, destination, length), ...])``."""
        self.pairs.extend((_entry(source), _entry(destination)) for source, destination, _ in blocks)
        return 0

    def batch_transfer_sync(self, session: Any, sources: Any, destinations: Any, lengths: Any) -> int:
        """As the engine's method, for builds that call it without ``_transfer_data``."""
        return self.blocks(session, zip(sources, destinations, lengths, strict=True))


class _Inline:
    """An executor that runs a task at once, in the thread that submits it."""

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def entry_pairs(peer: Peer, part: Part, destination_count: int) -> list[tuple[int, int]]:
    """The (prefill entry, decode entry) pairs of one component, in the build's order.

    Raises Unmapped when the build refuses the two lists, when it cannot be rehearsed, or when nothing was sent: then
    nobody knows where it would write.
    """
    recorder = _Recorder()
    source = [_address(entry) for entry in range(len(peer.source_lengths(part)))]
    destination = [_address(entry) for entry in range(destination_count)]
    kv_args, registration, request, indices = _single_component(peer, part, source, destination)
    rehearsal = _Rehearsal(
        peer.manager,
        {
            "kv_args": kv_args,
            "enable_custom_mem_pool": False,  # would hand each buffer to the executor
            "_transfer_data": recorder.blocks,
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
    if not recorder.pairs:
        raise Unmapped("it sends nothing")
    return recorder.pairs


def _single_component(peer: Peer, part: Part, source: list[int], destination: list[int]) -> tuple[Any, Any, Any, Any]:
    """Views of kv_args, registration and request, and prefill's indices, for one page of this component alone.

    Decode's item lengths are shown as prefill's, as they will be once the rings are split: a build that compares them
    shall answer for the entries.
    """
    lengths = peer.source_lengths(part)
    if len(source) != len(destination):
        lengths = peer.destination_lengths(part)
    if not peer.signature.is_list:
        return (
            View(peer.manager.kv_args, {"state_type": part.state_type, "state_data_ptrs": source}),
            View(peer.registration, {"dst_state_data_ptrs": destination, "dst_state_item_lens": lengths}),
            View(peer.request, {"dst_state_indices": [0]}),
            [0],
        )
    count = len(peer.parts())
    alone: list[Any] = [None] * count
    alone[part.component] = [0]
    types = list(peer.manager.kv_args.state_types)
    types[part.component] = part.state_type

    def lists(entries: list[int]) -> list[list[int]]:
        return [entries if index == part.component else [] for index in range(count)]

    return (
        View(peer.manager.kv_args, {"state_types": types, "state_data_ptrs": lists(source)}),
        View(peer.registration, {"dst_state_data_ptrs": lists(destination), "dst_state_item_lens": lists(lengths)}),
        View(peer.request, {"dst_state_indices": alone}),
        alone,
    )


def _address(entry: int) -> int:
    return (entry + 1) << _SHIFT


def _entry(address: int) -> int:
    return (int(address) >> _SHIFT) - 1
