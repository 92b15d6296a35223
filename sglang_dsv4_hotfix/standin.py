"""The recording stand-in manager on which a guard runs a build's ``maybe_send_extra`` to see what it would send.

The stand-in answers any attribute and any call, notes every call of a sender, and touches no network, thread or GPU.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from .build import Unreadable, parameters, required_parameters

#: A method that polls would never end: every call on a stand-in answers 0.
_MOST_CALLS = 1000


class _Anything:
    """Answers every attribute with another of its kind; a call is noted under its dotted path and returns 0."""

    def __init__(self, path: str, calls: list[str], known: dict[str, Any] | None = None) -> None:
        self.__dict__.update(known or {})
        self._path = path
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._path}.{name}" if self._path else name, self._calls)

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        self._calls.append(self._path)
        if len(self._calls) > _MOST_CALLS:
            raise RuntimeError("it waits for something that a stand-in never says")
        return 0


def senders_reached(maybe_send_extra: FunctionType, state_type: str) -> list[str]:
    """The senders that a scalar build's method calls for one page of state of type ``state_type``.

    A sender is anything of the manager's that has "send" or "transfer" in its name, the engine's methods included.
    Raises Unreadable when the method has a parameter without default that is not one of the known families', or
    when it raises on the stand-in.
    """
    calls: list[str] = []
    arguments = _arguments(state_type, calls)
    required = required_parameters(maybe_send_extra)
    if unknown := sorted(required - arguments.keys()):
        raise Unreadable(f"maybe_send_extra has the unknown parameter {', '.join(unknown)}")
    accepted = parameters(maybe_send_extra)
    manager = _Anything(
        "",
        calls,
        {
            "kv_args": arguments.pop("kv_args"),
            "is_mla_backend": True,
            "attn_tp_size": 1,
            "pp_size": 1,
        },
    )
    try:
        maybe_send_extra(manager, **{name: value for name, value in arguments.items() if name in accepted})
    except Exception as error:
        raise Unreadable(
            f"maybe_send_extra raises on a stand-in with state type {state_type!r} ({type(error).__name__}: {error})"
        ) from error
    return [call for call in calls if "send" in call or "transfer" in call]


def _arguments(state_type: str, calls: list[str]) -> dict[str, Any]:
    """One page of one buffer of 64 bytes, by the names that the scalar families give their parameters."""
    source, destination, length = 1 << 20, 1 << 21, 64
    kv_args = {
        "state_type": state_type,
        "state_data_ptrs": [source],
        "state_data_lens": [length],
        "state_item_lens": [length],
        "state_dim_per_tensor": [],
    }
    request = {"room": 0, "mooncake_session_id": "stand-in", "dst_state_indices": [0]}
    registration = {
        "dst_state_data_ptrs": [destination],
        "dst_state_item_lens": [length],
        "dst_state_dim_per_tensor": [],
        "dst_attn_tp_size": 1,
        "dst_tp_rank": 0,
    }
    return {
        "kv_args": _Anything("kv_args", calls, kv_args),
        "req": _Anything("req", calls, request),
        "prefill_state_indices": [0],
        "dst_state_data_ptrs": [destination],
        "dst_non_draft_kv_data_lens": [],
        "executor": _Anything("executor", calls),
        "target_rank_registration_info": _Anything("target_rank_registration_info", calls, registration),
    }
