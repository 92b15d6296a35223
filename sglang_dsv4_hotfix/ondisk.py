"""A build that is judged without importing it: SGLang's files, read.

The guards see no difference to a loaded build (see ``build.Build``). A method is compiled alone, out of the class it
stands in, with stand-ins for the module's globals: of those only what a file says plainly, literals, is known. A method
that needs more than that raises, and the guard says ``unrecognised``, rather than guess.
"""

from __future__ import annotations
import __future__ as future

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .build import MANAGER, SENDER, Unreadable

CONN = "sglang.srt.disaggregation.mooncake.conn"

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _Module:
    """A module's file, and the statement that binds each of its names last."""

    name: str
    path: Path
    source: str
    bindings: dict[str, ast.stmt] = field(compare=False, hash=False)

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


class OnDiskBuild:
    """The build in the directory ``package``, which is the one that ``import sglang`` would load."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._module = cache(self._read)

    def function(self, name: str) -> FunctionType:
        module, statement = self._method(name)
        return _compiled(statement, module.path, self._globals(module, statement))

    def tree(self, name: str) -> ast.FunctionDef:
        return self._method(name)[1]

    def sender_mentions(self, text: str) -> bool:
        return any(text in module.source for module, _ in self._classes(SENDER))

    def knows_variable(self, name: str) -> bool:
        try:
            text = _text(self._package / "srt" / "environ.py")
        except Unreadable:
            return False
        return re.search(rf"^\s+{re.escape(name)}\s*[:=]", text, re.MULTILINE) is not None

    def _method(self, name: str) -> tuple[_Module, ast.FunctionDef]:
        for module, statement in self._classes(MANAGER):
            bindings = _bindings(statement.body)
            bound = bindings.get(name)
            if isinstance(bound, ast.Assign) and isinstance(bound.value, ast.Name):
                # "method = other": another method of the class, or a function of the module.
                other = bound.value.id
                own = bindings.get(other)
                module, bound = self._resolve(module, other) if own in (None, bound) else (module, own)
            if isinstance(bound, ast.FunctionDef):
                return module, bound
            if bound is not None:
                raise Unreadable(f"{MANAGER}.{name} is not a plain Python function but {type(bound).__name__}")
        raise Unreadable(f"{MANAGER} has no method {name}")

    def _classes(self, name: str) -> Iterator[tuple[_Module, ast.ClassDef]]:
        """The class of conn.py and those it inherits from, in the order in which a method is looked for."""
        module, statement = self._resolve(self._module(CONN), name)
        if not isinstance(statement, ast.ClassDef):
            raise Unreadable(f"{CONN} has no class {name}")
        seen: list[ast.ClassDef] = []
        pending: list[tuple[_Module, ast.stmt | None]] = [(module, statement)]
        while pending:
            module, statement = pending.pop(0)
            if isinstance(statement, ast.ClassDef) and statement not in seen:
                seen.append(statement)
                yield module, statement
                # Bases are looked up as late as possible: most methods are found without parsing their modules.
                pending[:0] = [self._resolve(module, base.id) for base in statement.bases if isinstance(base, ast.Name)]

    def _resolve(self, module: _Module, name: str) -> tuple[_Module, ast.stmt | None]:
        """The statement that defines ``name`` as ``module`` sees it, followed through SGLang's own imports."""
        for _ in range(20):
            statement = module.bindings.get(name)
            if not isinstance(statement, ast.ImportFrom):
                return module, statement
            source = _absolute(statement, module.package)
            if not source.startswith("sglang."):
                return module, statement
            name = next((alias.name for alias in statement.names if (alias.asname or alias.name) == name), name)
            try:
                module = self._module(source)
            except Unreadable:
                return module, statement
        return module, None

    def _globals(self, module: _Module, function: ast.FunctionDef) -> dict[str, Any]:
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        bound = names & module.bindings.keys()
        return {name: self._value(module, name) for name in bound}

    def _value(self, module: _Module, name: str) -> Any:
        statement = module.bindings[name]
        if name.isupper():  # a constant, perhaps another module's; parsing them all takes longer than everything else
            statement = self._resolve(module, name)[1] or statement
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            try:
                return ast.literal_eval(statement.value)
            except ValueError:
                pass
        if isinstance(statement, ast.Import) and any(alias.name == "numpy" for alias in statement.names):
            return _Numpy(name)
        return _Unknown(name)

    def _read(self, name: str) -> _Module:
        """The module ``name``. Raises Unreadable when it is not in this build or does not parse."""
        path = self._package.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        source = _text(path)
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise Unreadable(f"{path} does not parse with this Python ({error})") from error
        return _Module(name, path, source, _bindings(tree.body))


class _Unknown:
    """Something of which its file does not say plainly what it is: it can be used, but nothing can depend on it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Unknown(f"{self._name}()")

    def _depends(self, *_: Any) -> Any:
        raise TypeError(f"it depends on {self._name}, which is not known before SGLang is imported")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _depends
    __hash__ = None  # type: ignore[assignment]


class _Numpy(_Unknown):
    """As much of numpy as it takes to turn an index list into an array: the list."""

    @staticmethod
    def array(values: Iterable[Any], *_: Any, **__: Any) -> list[Any]:
        return list(values)

    asarray = ascontiguousarray = array


def _compiled(function: ast.FunctionDef, path: Path, known: dict[str, Any]) -> FunctionType:
    """``function`` as a plain function, like innermost() gives it: without its decorators.

    Inside a class of the same name, for private names and ``super()`` to mean what they mean there.
    """
    alone = ast.FunctionDef(**{**dict(ast.iter_fields(function)), "decorator_list": []})
    ast.copy_location(alone, function)
    shell = ast.parse(f"class {MANAGER}: pass")
    shell.body[0].body = [alone]  # type: ignore[attr-defined]
    flags = future.annotations.compiler_flag  # annotations are never evaluated
    code: CodeType = compile(shell, str(path), "exec", flags=flags, dont_inherit=True)
    namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": CONN, **known}
    try:
        exec(code, namespace)
    except Exception as error:  # a default value that depends on what is not known
        raise Unreadable(f"{MANAGER}.{function.name} cannot be compiled alone ({error})") from error
    compiled: FunctionType = vars(namespace[MANAGER])[function.name]
    return compiled


def _bindings(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """Each name bound by these statements, those under ``if`` and ``try`` included, with the last that binds it."""
    found: dict[str, ast.stmt] = {}
    for statement in _flat(body):
        if isinstance(statement, (*_Function, ast.ClassDef)):
            found[statement.name] = statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                found[alias.asname or alias.name.partition(".")[0]] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = statement
    return found


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _flat(statement.body)
            for handler in getattr(statement, "handlers", ()):
                yield from _flat(handler.body)
            yield from _flat(getattr(statement, "orelse", ()))
            yield from _flat(getattr(statement, "finalbody", ()))


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    """The module that a ``from ... import`` names."""
    if not statement.level:
        return statement.module or ""
    base = package.split(".")
    base = base[: len(base) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} cannot be read ({error})") from error
