"""The two wrappers: what a patched MooncakeKVManager does differently when it sends state.

``transfer_worker`` calls, for the last chunk of a request and from one thread, ``maybe_send_extra(req, ...)`` and then
``send_aux(req, ...)``. The first wrapper shows the build what the fixes make of the call; the second one turns a state
send that failed into a failure of that request. They share nothing but a mark on the request object, which dies with
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .components import Method, Part, Peer, Shown, Signature
from .refusal import Refused

LOG = logging.getLogger(__package__)

Rewriter = Callable[[list[Part], Peer], list[Part]]

#: On a request: why its state send failed. Taken off by send_aux.
_MARK = "_sglang_dsv4_hotfix_failure"

#: On decode's registration info: what its requests are shown, so that it is worked out once and dies with the peer.
_CACHE = "_sglang_dsv4_hotfix_shown"


class StateTransfer:
    """Wrappers in wrapt's form ``(wrapped, instance, args, kwargs)`` for one build.

    ``method`` binds the attribute as it was before the patch. ``contain`` turns exceptions of the build into failures
    of the request; ``value_is_dropped`` says that the build does not look at what maybe_send_extra returns.
    """

    def __init__(
        self, signature: Signature, method: Method, rewriters: list[Rewriter], contain: bool, value_is_dropped: bool
    ) -> None:
        self._signature = signature
        self._method = method
        self._rewriters = rewriters
        self._contain = contain
        self._value_is_dropped = value_is_dropped
        self._announced = False
        self.active = True

    def maybe_send_extra(
        self, wrapped: Callable[..., Any], manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        request = self._signature.get("req", args, kwargs)
        sending = False
        try:
            shown = self._shown(manager, request, args, kwargs)
            sending = True
            result = wrapped(*args, **kwargs) if shown is None else shown.send(self._method, manager, args, kwargs)
        except Refused as refusal:
            return self._fail(request, f"state was not sent: {refusal}")
        except Exception as error:
            if not sending:
                # To send as the build would have done could be silently wrong.
                reason = f"state was not sent: it could not be worked out how ({type(error).__name__}: {error})"
            elif self._contain:
                reason = f"sending state raised {type(error).__name__}: {error}"
            else:
                raise
            return self._fail(request, reason, traceback=True)
        if result and self._value_is_dropped:
            self._fail(request, f"the engine refused the state write (returned {result})")
        elif shown is not None:
            self._tell(shown, request, args, kwargs)
        return result

    def send_aux(self, wrapped: Callable[..., Any], manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request: Any = args[0] if args else kwargs.get("req")
        reason = getattr(request, "__dict__", {}).pop(_MARK, None)
        if reason is None:
            return wrapped(*args, **kwargs)
        manager.record_failure(request.room, reason)
        return -1

    def _shown(self, manager: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shown | None:
        """What the build is to see instead of this call's components; None when nothing has to be changed."""
        signature = self._signature
        kv_args = manager.kv_args
        registration = signature.get("target_rank_registration_info", args, kwargs)
        holder = kv_args if registration is None else registration
        kind = getattr(kv_args, "state_types" if signature.is_list else "state_type", None)
        cached = getattr(holder, _CACHE, None)
        if cached is None or cached[0] is not self or cached[1] is not kv_args or cached[2] is not kind:
            peer = Peer(signature, self._method, manager, registration, request)
            cached = (self, kv_args, kind, self._work_out(peer))
            try:
                object.__setattr__(holder, _CACHE, cached)
            except AttributeError:
                pass  # a class with slots: worked out for each request, then
        answer = cached[3]
        if isinstance(answer, Refused):
            raise Refused(*answer.args)  # anew: the same one would gather the traceback of every request
        if answer is None or signature.get("prefill_state_indices", args, kwargs) is None:
            return None
        return answer

    def _work_out(self, peer: Peer) -> Shown | Refused | None:
        before = peer.parts()
        parts = before
        try:
            for rewrite in self._rewriters:
                parts = rewrite(parts, peer)
        except Refused as refusal:
            return Refused(*refusal.args)  # without its traceback, which holds the request
        return None if parts == before else Shown(peer, parts)

    def _fail(self, request: Any, reason: str, traceback: bool = False) -> int:
        """Marks the request. Returns 0: a build that looks at the value would stop sending to that decode session."""
        # With the package's name in the text: SGLang's log format leaves out the logger's.
        LOG.error("sglang_dsv4_hotfix: room %s fails: %s", getattr(request, "room", None), reason, exc_info=traceback)
        object.__setattr__(request, _MARK, f"sglang_dsv4_hotfix: {reason}")
        return 0

    def _tell(self, shown: Shown, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        level = logging.DEBUG if self._announced else logging.INFO
        if not LOG.isEnabledFor(level):
            return
        indices = self._signature.get("prefill_state_indices", args, kwargs)
        pages, size = shown.amount(indices)
        LOG.log(
            level,
            "sglang_dsv4_hotfix: %sroom %s: state sent as %s; %d page indices, %d bytes",
            "" if self._announced else "first changed transfer: ",
            getattr(request, "room", None),
            shown.description,
            pages,
            size,
        )
        self._announced = True
