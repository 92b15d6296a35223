"""What the guards look at: the classes of an SGLang build, as loaded."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import cached_property
from operator import itemgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

MANAGER = "MooncakeKVManager"
SENDER = "MooncakeKVSender"

#: The manager's method that copies items of any state, page by page.
GENERIC_SENDER = "_send_kvcache_generic"


class Unreadable(Exception):
    """A part of the build is missing, or has a shape that no guard knows. The message says which."""


class Build(Protocol):
    """A build that can be judged. ``check`` judges builds on disk by the same guards; see ``ondisk.py``."""

    def function(self, name: str) -> FunctionType:
        """The innermost plain function of MooncakeKVManager's method ``name``. Raises Unreadable without one."""

    def tree(self, name: str) -> ast.FunctionDef:
        """The syntax tree of that method. Raises Unreadable without source."""

    def sender_mentions(self, text: str) -> bool:
        """Whether a module that MooncakeKVSender's code is in has ``text``. Raises Unreadable without its source."""

    def knows_variable(self, name: str) -> bool:
        """Whether ``sglang.srt.environ`` of this build declares the environment variable ``name``."""


def parameters(function: FunctionType) -> tuple[str, ...]:
    """The names that ``function`` can be called with by keyword, ``self`` left out."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][1:]


def required_parameters(function: FunctionType) -> frozenset[str]:
    """Those of parameters() that have no default."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    with_default = positional[len(positional) - len(function.__defaults__ or ()) :]
    return frozenset(parameters(function)).difference(with_default, function.__kwdefaults__ or ())


class LoadedBuild:
    """The build whose ``conn.py`` has just been imported into this process."""

    def __init__(self, conn: ModuleType) -> None:
        self._conn = conn
        self._trees: dict[str, ast.FunctionDef] = {}
        self._texts: dict[str, str] = {}

    @cached_property
    def manager(self) -> type[Any]:
        return self._class(MANAGER)

    def function(self, name: str) -> FunctionType:
        attribute = getattr(self.manager, name, None)
        if attribute is None:
            raise Unreadable(f"{MANAGER} has no method {name}")
        return innermost(attribute, name)

    def tree(self, name: str) -> ast.FunctionDef:
        if name not in self._trees:
            function = self.function(name)
            text = self._text(function.__code__.co_filename, function.__globals__)
            self._trees[name] = parse(source_of(function, text), name)
        return self._trees[name]

    def sender_mentions(self, text: str) -> bool:
        for name in dict.fromkeys(klass.__module__ for klass in self._class(SENDER).__mro__):
            if not name.startswith("sglang."):
                continue
            module = vars(sys.modules[name])
            source = self._text(module.get("__file__") or "", module)
            if not source:
                raise Unreadable(f"the source of {SENDER} cannot be read")
            if text in source:
                return True
        return False

    def knows_variable(self, name: str) -> bool:
        environ = sys.modules.get("sglang.srt.environ")
        return hasattr(getattr(environ, "envs", None), name)

    def poll_values(self) -> tuple[Any, Any]:
        """KVPoll.Success and KVPoll.Failed, as ``conn.py`` knows them."""
        poll = self._conn.KVPoll
        return poll.Success, poll.Failed

    def _text(self, file: str, module_globals: dict[str, Any]) -> str:
        if file not in self._texts:
            self._texts[file] = _text(file, module_globals)
        return self._texts[file]

    def _class(self, name: str) -> type[Any]:
        found = getattr(self._conn, name, None)
        if not isinstance(found, type):
            raise Unreadable(f"{self._conn.__name__} has no class {name}")
        return found


def innermost(attribute: Any, name: str) -> FunctionType:
    """The plain function under whatever other plugins have wrapped around it."""
    for _ in range(100):
        below = getattr(attribute, "__wrapped__", None) or getattr(attribute, "__func__", None)
        if below is None:
            break
        attribute = below
    if not isinstance(attribute, FunctionType):
        raise Unreadable(f"{MANAGER}.{name} is not a plain Python function but {type(attribute).__name__}")
    return attribute


def source_of(function: FunctionType, text: str) -> str:
    """The lines of ``function`` in its file's text, indented as they are. Raises Unreadable when they are not there.

    Finds the end of the function by its indentation, from the last line that the code object knows on:
    inspect.getsource tokenizes instead, which takes longer than everything else the hook does.
    """
    code = function.__code__
    above = code.co_firstlineno - 1
    # Not splitlines(), which also splits at a form feed, which ends no line of Python.
    parts = text.split("\n", above)
    if len(parts) <= above or not parts[above]:
        raise Unreadable(f"the source of {function.__qualname__} cannot be read ({code.co_filename})")
    lines = parts[above].split("\n")
    last = _last_line(code) - above
    indentation = _indentation(lines[0])
    while last < len(lines) and (not lines[last].strip() or _indentation(lines[last]) > indentation):
        last += 1
    return "\n".join(lines[:last])


def _text(file: str, module_globals: dict[str, Any]) -> str:
    """A module's source; empty when it cannot be read."""
    try:
        with open(file, "rb", buffering=0) as stream:
            text = stream.read().decode()
    except (OSError, UnicodeDecodeError):
        return "".join(linecache.getlines(file, module_globals))  # in a zip, or in another encoding
    # As text mode has it, which takes several times as long for the usual file.
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def parse(source: str, name: str) -> ast.FunctionDef:
    try:
        # A method is indented, and is parsed as the body of something: to dedent it would take longer than to parse it.
        statement = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source).body[0]
        if isinstance(statement, ast.If):
            statement = statement.body[0]
    except (SyntaxError, IndexError) as error:
        raise Unreadable(f"the source of {MANAGER}.{name} does not parse ({error})") from error
    if not isinstance(statement, ast.FunctionDef) or statement.name != name:
        raise Unreadable(f"the source at {MANAGER}.{name} is not that function")
    return statement


def _last_line(code: CodeType) -> int:
    own = max(filter(None, map(itemgetter(2), code.co_lines())), default=code.co_firstlineno)
    return max([own, *(_last_line(inner) for inner in code.co_consts if isinstance(inner, CodeType))])


def _indentation(line: str) -> int:
    blank = line[: len(line) - len(line.lstrip())]
    return len(blank) - blank.rfind("\f") - 1  # a form feed begins the count anew
