"""Asks a build which of prefill's state buffers it would write into which of decode's.

Builds pair the entries of the two lists by position, by a slice from ``kv_args.prefill_start_layer``, by sections of
``mla_compression_ratios`` (``CommonKVManager.get_mla_kv_ptrs_with_pp``, overridden on Ascend), or by layer ids
(``build_transfer_entry_pairs``, 0.5.20 on). Rather than know them all, this runs the build's own ``maybe_send_extra``
for one component and page index 0, with an entry's number in place of its address, and with the last step, the
hand-over to the engine, replaced by a recorder: nothing is sent. Done once for each decode rank, not for each request.
"""

from __future__ import annotations

import inspect
from typing import Any

from .components import Part, Peer
from .standin import GENERIC_SENDER
from .views import View

#: Entry e is shown at address (e + 1) << _SHIFT: further apart than any item is long.
_SHIFT = 44

#: What a build's method might say of a room. A rehearsal has nothing to say.
_SILENCED = ("record_failure", "update_status", "conclude_failure", "sync_status_to_decode_endpoint")


class _Rehearsal(View):
    """The manager, with its methods bound to the view, so that what they call is the view's as well."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in self._shown:
            return self._shown[name]
        if name in _SILENCED:
            return lambda *args, **kwargs: None
        if name in vars(self._real):
            value = vars(self._real)[name]
            if callable(value):
                # Bound to the real manager, so it could reach the real engine.
                raise AttributeError(f"{name} has been replaced on this manager and cannot be rehearsed")
            return value
        return _bound(type(self._real), name, self)


def _bound(klass: type[Any], name: str, instance: Any) -> Any:
    """The attribute ``name`` of ``klass`` as ``instance`` would see it, whatever kind of method it is."""
    attribute = inspect.getattr_static(klass, name)
    return attribute.__get__(instance, klass) if hasattr(attribute, "__get__") else attribute


def entry_pairs(peer: Peer, part: Part, destination_count: int) -> list[tuple[int, int]] | None:
    """The (prefill entry, decode entry) pairs of one component, in the build's order.

    None when the component does not go through the generic sender, or when the build itself refuses it (it will do so
    for the request too): nothing for a fix to do.
    """
    pairs: list[tuple[int, int]] = []
    inside: list[bool] = []

    def record(session: Any, blocks: Any) -> int:
        if inside:
            pairs.extend((_entry(source), _entry(destination)) for source, destination, _ in blocks)
        return 0

    def generic(*args: Any, **kwargs: Any) -> Any:
        inside.append(True)
        try:
            return _bound(type(peer.manager), GENERIC_SENDER, rehearsal)(*args, **kwargs)
        finally:
            inside.pop()

    source_count = len(peer.source_lengths(part))
    source = [_address(entry) for entry in range(source_count)]
    destination = [_address(entry) for entry in range(destination_count)]
    kv_args, registration, request, indices = _single_component(peer, part, source, destination)
    rehearsal = _Rehearsal(
        peer.manager,
        {
            "kv_args": kv_args,
            "enable_custom_mem_pool": False,  # would hand each buffer to the executor
            "_transfer_data": record,
            "engine": None,
            GENERIC_SENDER: generic,
        },
    )
    arguments = {
        "req": request,
        "prefill_state_indices": indices,
        "dst_state_data_ptrs": destination,
        "executor": None,
        "target_rank_registration_info": registration,
    }
    try:
        peer.method(rehearsal)(**{name: value for name, value in arguments.items() if name in peer.signature.positions})
    except Exception:
        return None
    return pairs or None


def _single_component(peer: Peer, part: Part, source: list[int], destination: list[int]) -> tuple[Any, Any, Any, Any]:
    """Views of kv_args, registration and request, and prefill's indices, for one page of this component alone."""
    if not peer.signature.is_list:
        return (
            View(peer.manager.kv_args, {"state_type": part.state_type, "state_data_ptrs": source}),
            View(peer.registration, {"dst_state_data_ptrs": destination}),
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
        View(peer.registration, {"dst_state_data_ptrs": lists(destination)}),
        View(peer.request, {"dst_state_indices": alone}),
        alone,
    )


def _address(entry: int) -> int:
    return (entry + 1) << _SHIFT


def _entry(address: int) -> int:
    return (int(address) >> _SHIFT) - 1
