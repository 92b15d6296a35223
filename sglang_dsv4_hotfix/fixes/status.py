"""status: a state send that failed is reported as success, and one that raised ends the transfer thread.

Target      sglang.srt.disaggregation.mooncake.conn:MooncakeKVManager.transfer_worker, by way of the two methods that it
            calls one after the other for the last chunk of a request, maybe_send_extra and send_aux
Symptom     The engine refuses a state write (memory not registered, decode gone) and both sides report success. Or
            something raises inside maybe_send_extra, and from then on every request of that worker hangs.
Cause       transfer_worker drops what maybe_send_extra returns (up to 0.5.16); its exception handler re-raises, out of
            the thread (every release so far).
Upstream    the dropped value: fixed in 0.5.17, inside #32541. The exception: not fixed in 0.5.23.
Evidence    tests/pd/test_status.py: real faults over a real pair.
The change  A state send that returned non-zero or raised marks its request; send_aux of a marked request sends
            nothing and returns failure. transfer_worker does the rest: the room is Failed on both sides, thread and
            session live on. Where the build uses the returned value it keeps the last word on it (it also stops
            sending to that decode session until it registers again), and only exceptions are turned into a failure
            of the request.
Retires     when transfer_worker neither drops the value nor dies of an exception.
"""

from __future__ import annotations

import ast

from ..build import Build, Unreadable, parameters
from ..components import Signature
from ..verdict import Verdict, Word


def judge(build: Build) -> Verdict:
    """Reads from the syntax tree of ``transfer_worker`` what becomes of the two methods' return values."""
    Signature.of(build.function("maybe_send_extra"))
    if parameters(build.function("send_aux"))[:1] != ("req",):
        raise Unreadable("the first parameter of send_aux is not req: not a known signature")
    worker = build.tree("transfer_worker")
    if _uses_value(worker, "send_aux") is not True:
        raise Unreadable("transfer_worker does not use what send_aux returns: a failure could not be reported by it")
    used = _uses_value(worker, "maybe_send_extra")
    if used is None:
        raise Unreadable("transfer_worker does not call maybe_send_extra")
    if used:
        return Verdict(Word.FIXED, "transfer_worker uses what maybe_send_extra returns")
    return Verdict(Word.NEEDED, "transfer_worker drops what maybe_send_extra returns")


def exceptions_end_thread(build: Build) -> bool:
    """Whether an exception handler of ``transfer_worker`` raises: what such a build needs, whatever judge() says."""
    handlers = [node for node in ast.walk(build.tree("transfer_worker")) if isinstance(node, ast.ExceptHandler)]
    return any(isinstance(node, ast.Raise) for handler in handlers for node in ast.walk(handler))


def _uses_value(function: ast.FunctionDef, method: str) -> bool | None:
    """Whether any call of ``self.method`` is used for its value and that value read; None when it is never called."""
    found: bool | None = None
    for node in ast.walk(function):
        for statement in _statements(node):
            call = _own_call(statement, method)
            if call is None:
                continue
            if isinstance(statement, ast.Expr) and statement.value is call:
                found = found or False
            elif isinstance(statement, ast.Assign) and statement.value is call:
                names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
                found = found or len(names) < len(statement.targets) or _is_read(function, names)
            else:
                found = True
    return found


def _statements(node: ast.AST) -> list[ast.stmt]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def _own_call(statement: ast.stmt, method: str) -> ast.Call | None:
    """The call of ``anything.method`` in the statement itself, not in the statements nested in it."""
    pending: list[ast.AST] = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            return node
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))
    return None


def _is_read(function: ast.FunctionDef, names: set[str]) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for node in ast.walk(function)
    )
