"""status: a state send that failed is reported as success, and one that raised ends the transfer thread.

Target      sglang.srt.disaggregation.mooncake.conn:MooncakeKVManager.transfer_worker, by way of the two methods that it
            calls one after the other for the last chunk of a request, maybe_send_extra and send_aux
Symptom     The engine refuses a state write (memory not registered, decode gone) and both sides report success. Or
            something raises inside maybe_send_extra, and from then on every request of that worker hangs.
Cause       transfer_worker drops what maybe_send_extra returns (up to 0.5.16); its exception handler re-raises, out of
            the thread (every release so far).
Upstream    the dropped value: fixed in 0.5.17, inside #32541. The exception: not fixed in 0.5.23.
Evidence    tests/pd/test_faults.py: real faults over a real pair.
The change  A state send that returned non-zero or raised marks its request; send_aux of a marked request sends
            nothing and returns failure. transfer_worker does the rest: the room is Failed on both sides, thread and
            session live on. (Up to 0.5.6.post2 a pipeline stage that is not the last sends no aux data; there the
            Success that the thread reports for that room next is turned into Failed.) Where the build uses the
            returned value it keeps the last word on it (it also stops sending to that decode session until it
            registers again), and only exceptions are turned into a failure of the request.
Retires     when transfer_worker neither drops the value nor dies of an exception.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from ..build import Build, Unreadable, parameters
from ..components import Signature
from ..settlement import Settlement
from ..verdict import Verdict, Word

_METHODS = ("maybe_send_extra", "send_aux")


def judge(build: Build) -> Verdict:
    """Reads from the syntax tree of ``transfer_worker`` what becomes of the two methods' return values."""
    Signature.of(build.function("maybe_send_extra"))
    if parameters(build.function("send_aux"))[:1] != ("req",):
        raise Unreadable("the first parameter of send_aux is not req: not a known signature")
    worker = _read(build.tree("transfer_worker"))
    settlement(build)
    if worker.uses("maybe_send_extra"):
        return Verdict(Word.FIXED, "transfer_worker uses what maybe_send_extra returns")
    return Verdict(Word.NEEDED, "transfer_worker drops what maybe_send_extra returns")


def settlement(build: Build) -> Settlement:
    """How a failed state send can be made a failure of its request on this build. Raises Unreadable when it cannot."""
    worker = _read(build.tree("transfer_worker"))
    state, aux = worker.calls.get("maybe_send_extra"), worker.calls.get("send_aux")
    if not state:
        raise Unreadable("transfer_worker does not call maybe_send_extra")
    if not aux or not worker.uses("send_aux"):
        raise Unreadable("transfer_worker does not use what send_aux returns: a failure could not be reported by it")
    if max(call.line for call in state) > min(call.line for call in aux):
        raise Unreadable("transfer_worker sends aux data before state: a failure could not be reported by it")
    if all(set(call.conditions) <= set(first.conditions) for call in aux for first in state):
        return Settlement.BY_AUX
    for name in ("update_status", "sync_status_to_decode_endpoint"):
        names = parameters(build.function(name))
        if "status" not in names or not {"room", "bootstrap_room"} & set(names):
            raise Unreadable(f"{name}({', '.join(names)}) is not a known signature")
    return Settlement.BY_STATUS


def exceptions_end_thread(build: Build) -> bool:
    """Whether an exception handler of ``transfer_worker`` raises: what such a build needs, whatever judge() says."""
    return _read(build.tree("transfer_worker")).handler_raises


class _Call(NamedTuple):
    line: int
    #: The statement whose whole value it is; None for any other place.
    statement: ast.stmt | None
    #: The branches of if statements that it is in, from the outside.
    conditions: tuple[tuple[int, str], ...]


class _Worker(NamedTuple):
    """What the syntax tree of ``transfer_worker`` says."""

    #: By name of the two methods.
    calls: dict[str, list[_Call]]
    #: Lines in which a name is read, and in which it is written.
    read: dict[str, list[int]]
    written: dict[str, list[int]]
    handler_raises: bool

    def uses(self, method: str) -> bool:
        """Whether the value of any call of ``method`` is used: not dropped, nor kept in a name that is written again
        before anybody reads it.
        """
        return any(self._uses(call.statement) for call in self.calls.get(method, ()))

    def _uses(self, statement: ast.stmt | None) -> bool:
        if isinstance(statement, ast.Expr):
            return False
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", ())
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if statement is None or len(names) < len(targets):
            return True
        end = statement.end_lineno or statement.lineno
        return any(self._is_read(name, end) for name in names)

    def _is_read(self, name: str, after: int) -> bool:
        """Whether ``name`` is read behind that line, in the line of the next assignment to it at the latest."""
        until = min((line for line in self.written.get(name, ()) if line > after), default=None)
        return any(after < line and (until is None or line <= until) for line in self.read.get(name, ()))


def _read(function: ast.FunctionDef) -> _Worker:
    """One pass over the tree, kept with it: it has thousands of nodes, and walking them is most of the hook's work."""
    known: _Worker | None = getattr(function, "_read_by_status", None)
    if known is None:
        known = _walk(function)
        setattr(function, "_read_by_status", known)  # noqa: B010  no attribute that the class knows
    return known


def _walk(function: ast.FunctionDef) -> _Worker:
    calls: dict[str, list[_Call]] = {}
    read: dict[str, list[int]] = {}
    written: dict[str, list[int]] = {}
    whole_values: dict[int, ast.stmt] = {}
    handler_raises = False
    pending: list[tuple[ast.AST, tuple[tuple[int, str], ...]]] = [(function, ())]
    while pending:
        node, conditions = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            # A statement comes before its parts.
            call = _Call(node.lineno, whole_values.get(id(node)), conditions)
            calls.setdefault(node.func.attr, []).append(call)
        elif isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)):
            whole_values[id(node.value)] = node
        elif isinstance(node, ast.ExceptHandler):
            handler_raises = handler_raises or any(isinstance(below, ast.Raise) for below in ast.walk(node))
        for field in node._fields:
            value = getattr(node, field)
            below = conditions
            if isinstance(value, list) and isinstance(node, ast.If):
                below = (*conditions, (id(node), field))
            for part in value if isinstance(value, list) else (value,):
                # Most nodes are leaves, or lead to one by dots: they are not worth a turn of their own.
                while isinstance(part, ast.Attribute):
                    part = part.value
                if isinstance(part, ast.Name):
                    lines = read if isinstance(part.ctx, ast.Load) else written
                    lines.setdefault(part.id, []).append(part.lineno)
                elif isinstance(part, ast.AST) and not isinstance(part, (ast.Constant, ast.expr_context)):
                    pending.append((part, below))
    return _Worker(calls, read, written, handler_raises)
