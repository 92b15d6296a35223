"""A call of ``MooncakeKVManager.maybe_send_extra`` as a list of state components, for every family of builds.

Upstream and forks hold dozens of bodies of this method; the parameters come in two shapes, which is all that matters
here:

- *scalar* builds (0.5.3.post3 to 0.5.11): one component; ``kv_args.state_type`` is a string, and
  ``kv_args.state_data_ptrs`` and ``state_item_lens`` are flat, one entry a buffer; decode's pointers are the parameter
  ``dst_state_data_ptrs``. From 0.5.9 on decode's item lengths are in
  ``target_rank_registration_info.dst_state_item_lens``; before, prefill does not know them.
- *list* builds (from #24932, d7f4761a48; 0.5.12 on): ``kv_args.state_types`` has one type a component, and the other
  ``state_*`` attributes, decode's ``dst_state_*`` and the request's ``dst_state_indices`` one list a component.

Arguments are found by name. A fix describes what the build shall see as a list of Parts; send() shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from . import rings
from .build import GENERIC_SENDER, Unreadable, parameters
from .log import say
from .refusal import Refused
from .rings import WHOLE, Grain
from .views import CallView, View

#: Binds a method to a manager, or to a view of one.
Method = Callable[[Any], Callable[..., Any]]

_REGISTRATION = "target_rank_registration_info"


class Signature(NamedTuple):
    """Where the arguments of one build's ``maybe_send_extra`` stand (position 0 is the first after ``self``)."""

    positions: dict[str, int]
    is_list: bool

    @classmethod
    def of(cls, function: FunctionType) -> Signature:
        """Raises Unreadable for a signature that is of neither shape."""
        names = parameters(function)
        is_list = "dst_state_data_ptrs" not in names
        required = ("req", "prefill_state_indices", *((_REGISTRATION,) if is_list else ()))
        if missing := [name for name in required if name not in names]:
            raise Unreadable(
                f"maybe_send_extra({', '.join(names)}) has no parameter {', '.join(missing)}: not a known signature"
            )
        return cls({name: position for position, name in enumerate(names)}, is_list)

    @property
    def knows_item_lengths(self) -> bool:
        """Whether the method is told decode's item lengths at all (0.5.9 on)."""
        return _REGISTRATION in self.positions

    def get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The argument ``name`` of a call, None when it was not given."""
        position = self.positions.get(name)
        if position is not None and position < len(args):
            return args[position]
        return kwargs.get(name)

    def put(
        self, values: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The same call with other values for arguments that it has."""
        new_args, new_kwargs = list(args), dict(kwargs)
        positions, given = self.positions, len(new_args)
        for name, value in values.items():
            position = positions.get(name, given)
            if position < given:
                new_args[position] = value
            elif name in new_kwargs:
                new_kwargs[name] = value
        return new_args, new_kwargs


class Part(NamedTuple):
    """What the build is shown in place of one component, or of some of its entries.

    ``source_entries`` and ``destination_entries`` pick entries (buffers) of prefill's and of decode's list, pairwise;
    None shows all. ``grain`` shows both sides' buffers as items of the same length, where decode's rings are longer.
    """

    component: int
    state_type: Any
    source_entries: tuple[int, ...] | None = None
    destination_entries: tuple[int, ...] | None = None
    grain: Grain = WHOLE

    def with_type(self, state_type: Any) -> Part:
        return self._replace(state_type=state_type)


class Peer(NamedTuple):
    """One decode rank as this prefill rank sees it.

    ``manager`` holds prefill's ``kv_args``, ``registration`` what decode said of its buffers (None where the build
    does not pass it on), ``request`` the first request that came for this rank. ``method`` binds the build's own
    maybe_send_extra to a manager, or to a view of one.
    """

    signature: Signature
    method: Method
    manager: Any
    registration: Any
    request: Any

    def parts(self) -> list[Part]:
        """Every component as it is."""
        kv_args = self.manager.kv_args
        if self.signature.is_list:
            return [Part(index, kind) for index, kind in enumerate(getattr(kv_args, "state_types", None) or ())]
        return [Part(0, getattr(kv_args, "state_type", "none"))]

    def source_lengths(self, part: Part) -> list[int]:
        """Item length in bytes of each of prefill's buffers of the component, before any split."""
        return self._lengths(self.manager.kv_args, "state_item_lens", part.component)

    def destination_lengths(self, part: Part) -> list[int]:
        """The same of decode's buffers; empty when decode did not tell them."""
        return self._lengths(self.registration, "dst_state_item_lens", part.component)

    def _lengths(self, holder: Any, attribute: str, component: int) -> list[int]:
        lengths = getattr(holder, attribute, None)
        if lengths is None:
            return []
        if not self.signature.is_list:
            return list(lengths)
        return list(lengths[component]) if component < len(lengths) else []


class Shown:
    """Parts made ready for sending: everything that depends on the peer alone is computed once, here.

    Per call only the request's indices are left. ``send`` calls the build's own method: once on list builds, once for
    each part on scalar builds.
    """

    def __init__(self, peer: Peer, parts: Sequence[Part]) -> None:
        self._signature = peer.signature
        self.parts = tuple(parts)
        self._bytes_per_page = tuple(_bytes_per_page(peer, part) for part in self.parts)
        self.description = " + ".join(_describe(peer, part) for part in self.parts)
        kv_args = peer.manager.kv_args
        if peer.signature.is_list:
            components = len(peer.parts())
            shown = self._lists(kv_args, "state_", components)
            shown["state_types"] = [part.state_type for part in self.parts]
            self._kv_args: tuple[View, ...] = (View(kv_args, shown),)
            self._registrations: tuple[Any, ...] = (
                self._registration(peer, self._lists(peer.registration, "dst_state_", components)),
            )
        else:
            self._lengths = list(kv_args.state_item_lens)
            # Where entries are picked, the stride fix has asked the build how it pairs them.
            self._is_unmapped = rings.is_heterogeneous(self._lengths) and not (
                getattr(kv_args, "mla_compression_ratios", None)
                or all(part.destination_entries is not None for part in self.parts)
            )
            self._kv_args = tuple(
                View(kv_args, {**self._entries(kv_args, "state_", part), "state_type": part.state_type})
                for part in self.parts
            )
            self._registrations = tuple(
                self._registration(peer, self._entries(peer.registration, "dst_state_", part)) for part in self.parts
            )

    def send(self, method: Method, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sends what the parts show; returns the build's own return value (0, or the first that is not)."""
        if self._signature.is_list:
            return self._send_lists(method, manager, args, kwargs)
        return self._send_scalars(method, manager, args, kwargs)

    def amount(self, indices: Any) -> tuple[int, int]:
        """Page indices and bytes of a call with these indices of prefill's, for the log."""
        if not self._signature.is_list:
            return len(indices), len(indices) * sum(self._bytes_per_page)
        counts = [len(lists) if lists is not None else 0 for lists in indices]
        counts += [0] * (1 + max((part.component for part in self.parts), default=0) - len(counts))
        size = sum(counts[part.component] * size for part, size in zip(self.parts, self._bytes_per_page, strict=True))
        return sum(counts), size

    def _send_lists(self, method: Method, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = self._signature
        request = signature.get("req", args, kwargs)
        indices = signature.get("prefill_state_indices", args, kwargs)
        # Lengths that differ between the sides stay different by the same factor: how to cut them, or whether to
        # refuse, is the build's own decision.
        destination = self._indices(request.dst_state_indices, Grain.destination_items)
        values = {
            "req": View(request, {"dst_state_indices": destination}),
            "prefill_state_indices": self._indices(indices, Grain.source_items),
            _REGISTRATION: self._registrations[0],
        }
        new_args, new_kwargs = signature.put(values, args, kwargs)
        return method(_shown_manager(manager, self._kv_args[0]))(*new_args, **new_kwargs)

    def _send_scalars(self, method: Method, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = self._signature
        request = signature.get("req", args, kwargs)
        source = list(signature.get("prefill_state_indices", args, kwargs))
        destination = list(request.dst_state_indices)
        pages = min(len(source), len(destination))
        as_they_are = len(source) == len(destination) and type(request.dst_state_indices) is list
        if len(source) != len(destination):
            # 0.5.11 cuts the longer list to the common prefix; builds before it raise, or pair wrongly.
            say(
                logging.WARNING,
                "sglang_dsv4_hotfix: room %s: prefill has %d state page indices and decode %d; the first %d are sent",
                getattr(request, "room", None),
                len(source),
                len(destination),
                pages,
            )
            source, destination = source[:pages], destination[:pages]
        if not pages:
            return 0
        pointers = signature.get("dst_state_data_ptrs", args, kwargs)
        if len(pointers) != len(self._lengths) and self._is_unmapped:
            raise Refused(
                f"prefill has {len(self._lengths)} state buffers and decode {len(pointers)}, and this build has no "
                "mapping for buffers of several kinds. Usual causes: different pipeline-parallel sizes, or draft "
                "layers on one side only."
            )
        result = 0
        for part, kv_args, registration in zip(self.parts, self._kv_args, self._registrations, strict=True):
            whole = part.grain is WHOLE
            items = destination if whole else part.grain.destination_items(destination)
            values = {
                "req": request if whole and as_they_are else View(request, {"dst_state_indices": items}),
                "prefill_state_indices": source if whole else part.grain.source_items(source),
                "dst_state_data_ptrs": _pick(pointers, part.destination_entries),
                _REGISTRATION: registration,
            }
            new_args, new_kwargs = signature.put(values, args, kwargs)
            result = method(_shown_manager(manager, kv_args))(*new_args, **new_kwargs)
            if result:
                return result
        return result

    def _indices(self, lists: Any, items: Callable[[Grain, Any], list[int]]) -> list[Any]:
        """Page indices for each part. A component without indices (None, or beyond the list) stays without."""
        shown: list[Any] = []
        for part in self.parts:
            if part.component >= len(lists):
                break  # parts stand in the order of their components: what follows is missing too
            indices = lists[part.component]
            shown.append(indices if indices is None or part.grain == WHOLE else items(part.grain, indices))
        return shown

    def _registration(self, peer: Peer, shown: dict[str, Any]) -> Any:
        return None if peer.registration is None else View(peer.registration, shown)

    def _lists(self, holder: Any, prefix: str, components: int) -> dict[str, list[Any]]:
        """Every ``prefix*`` attribute of ``holder`` that has one value a component, with one value a part.

        Later builds add such attributes (state_layer_ids, state_conv_shard_groups, ...), so they are found, not
        listed. One that is shorter than the components stays so.
        """
        return {
            name: [
                _shown_value(name, values[part.component], part) for part in self.parts if part.component < len(values)
            ]
            for name, values in _attributes(holder, prefix)
            if len(values) <= components
        }

    def _entries(self, holder: Any, prefix: str, part: Part) -> dict[str, Any]:
        """The scalar builds' counterpart of _lists: flat lists with one value a buffer."""
        return {name: _shown_value(name, values, part) for name, values in _attributes(holder, prefix)}


def _shown_manager(manager: Any, kv_args: View) -> View:
    """The manager with other kv_args. The generic sender is handed all that it sends, and stays the manager's own."""
    return CallView(manager, {"kv_args": kv_args, GENERIC_SENDER: getattr(manager, GENERIC_SENDER)})


def _bytes_per_page(peer: Peer, part: Part) -> int:
    lengths = _pick(peer.source_lengths(part), part.source_entries)
    return int(sum(map(part.grain.source_length, lengths))) * part.grain.items_per_page


def _describe(peer: Peer, part: Part) -> str:
    """For the log: what of a component is shown, and as what."""
    count = len(peer.source_lengths(part)) if part.source_entries is None else len(part.source_entries)
    rows = "" if part.grain == WHOLE else f", each ring {part.grain.copies} times"
    if part.grain.blocks > 1:
        rows = ", each page's rows of its ring"
    return f'{count} "{getattr(part.state_type, "value", part.state_type)}" buffers{rows}'


def _shown_value(name: str, values: Any, part: Part) -> Any:
    """What a part shows of the attribute ``name``, with ``values`` for one component."""
    if not name.startswith("dst_"):
        picked, length = _pick(values, part.source_entries), part.grain.source_length
    else:
        picked, length = _pick(values, part.destination_entries), part.grain.destination_length
    if part.grain == WHOLE or not name.endswith("state_item_lens"):
        return picked
    return [length(item_length) for item_length in picked]


def _attributes(holder: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(holder, "__dict__", {}).items():
        if name.startswith(prefix) and isinstance(value, (list, tuple)):
            yield name, value


def _pick(values: Any, entries: tuple[int, ...] | None) -> Any:
    """The chosen entries of a list with one value an entry; what is no such list stays as it is."""
    if entries is None or not isinstance(values, (list, tuple)) or len(values) <= max(entries):
        return values
    return [values[entry] for entry in entries]
