"""The wrappers: what a patched MooncakeKVManager does differently when it sends state.

``transfer_worker`` calls, for the last chunk of a request and from one thread, ``maybe_send_extra(req, ...)`` and then
``send_aux(req, ...)``. The first wrapper shows the build what the fixes make of the call; the second one turns a state
send that failed into a failure of that request. They share nothing but a mark on the request object, which dies with
it. On builds where ``send_aux`` does not always follow, the status that the thread reports next is looked after too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from .components import Method, Part, Peer, Shown, Signature
from .log import LOG, say
from .refusal import Refused
from .settlement import Settlement

Rewriter = Callable[[list[Part], Peer], list[Part]]

#: On a request: why its state send failed. Taken off by send_aux.
_MARK = "_sglang_dsv4_hotfix_failure"

#: On decode's registration info: what its requests are shown, so that it is worked out once and dies with the peer.
_CACHE = "_sglang_dsv4_hotfix_shown"


class StateTransfer:
    """Wrappers in wrapt's form ``(wrapped, instance, args, kwargs)`` for one build.

    ``method`` binds the attribute as it was before the patch. ``contain`` turns exceptions of the build into failures
    of the request; ``value_is_dropped`` says that the build does not look at what maybe_send_extra returns;
    ``settlement`` says how a marked request is made to fail. Where nothing can make it (None), a refusal is raised: an
    exception ends the transfer thread, but is not silent.
    """

    def __init__(
        self,
        signature: Signature,
        method: Method,
        rewriters: list[Rewriter],
        contain: bool,
        value_is_dropped: bool,
        settlement: Settlement | None,
    ) -> None:
        self._signature = signature
        self._method = method
        self._rewriters = rewriters
        self._contain = contain
        self._value_is_dropped = value_is_dropped
        self._settlement = settlement
        self._announced = False
        self._marks: dict[Any, str] = {}
        self._thread = threading.local()
        self.active = True

    def maybe_send_extra(
        self, wrapped: Callable[..., Any], manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        request = self._signature.get("req", args, kwargs)
        if self._settlement is Settlement.BY_STATUS:
            self._forget_other_rooms(request)
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
        if reason is None and self._marks:
            reason = self._marks.pop(id(request), None)
        if reason is None:
            return wrapped(*args, **kwargs)
        _record(manager, request.room, reason)
        return -1

    def status_reporter(self, names: tuple[str, ...], success: Any, failed: Any) -> Callable[..., Any]:
        """A wrapper for a method that passes on the status of a room; ``names`` are the method's parameters.

        Success that a thread reports for the room whose state send it has just seen fail becomes Failed.
        """
        room = next(name for name in ("room", "bootstrap_room") if name in names)

        def report(wrapped: Callable[..., Any], manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            failure = getattr(self._thread, "failure", None)
            if failure is None or not self.active:
                return wrapped(*args, **kwargs)
            call = {**dict(zip(names, args, strict=False)), **kwargs}
            if call.get(room) != failure[0] or call.get("status") != success:
                return wrapped(*args, **kwargs)
            _record(manager, *failure)
            return wrapped(**{**call, "status": failed})

        return report

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
        room, text = getattr(request, "room", None), f"sglang_dsv4_hotfix: {reason}"
        if self._settlement is Settlement.BY_STATUS:
            self._thread.failure = (room, text)
        if self._settlement is not None:
            try:
                object.__setattr__(request, _MARK, text)
            except AttributeError:
                self._marks[id(request)] = text  # a class with slots
        say(logging.ERROR, "sglang_dsv4_hotfix: room %s fails: %s", room, reason, traceback=traceback)
        if self._settlement is None:
            raise RuntimeError(text)
        return 0

    def _forget_other_rooms(self, request: Any) -> None:
        """A thread has one room in hand at a time; a failure of another one has been passed on by now."""
        failure = getattr(self._thread, "failure", None)
        if failure is not None and failure[0] != getattr(request, "room", None):
            self._thread.failure = None

    def _tell(self, shown: Shown, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        level = logging.DEBUG if self._announced else logging.INFO
        if not LOG.isEnabledFor(level):
            return
        try:
            pages, size = shown.amount(self._signature.get("prefill_state_indices", args, kwargs))
        except Exception:
            return  # indices that can be read but once: the state has been sent
        say(
            level,
            "sglang_dsv4_hotfix: %sroom %s: state sent as %s; %d page indices, %d bytes",
            "" if self._announced else "first changed transfer: ",
            getattr(request, "room", None),
            shown.description,
            pages,
            size,
        )
        self._announced = True


def _record(manager: Any, room: Any, reason: str) -> None:
    """Keeps the reason for SGLang to report. Not for a room that is given up: the next of its number would find it."""
    try:
        if room in getattr(manager, "request_status", (room,)):
            manager.record_failure(room, reason)
    except Exception as error:
        say(logging.WARNING, "sglang_dsv4_hotfix: room %s: the reason could not be recorded (%s)", room, error)
