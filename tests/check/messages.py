"""Every message of the package that an operator can meet, read from its source.

A message is a pattern: the text of the literal, with … for whatever is filled in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "sglang_dsv4_hotfix"
TABLE = REPOSITORY / "docs" / "messages.md"

FILLED_IN = "…"

#: Called with a message, at this position among the arguments.
CALLS = {
    "LOG.debug": 0,
    "LOG.info": 0,
    "LOG.warning": 0,
    "LOG.error": 0,
    "LOG.exception": 0,
    "LOG.log": 1,
    "problem": 0,
    "print": 0,
    "say": 1,
    "_say": 0,
    "Unmapped": 0,
    "Refused": 0,
    "Unreadable": 0,
    "NotFound": 0,
    "Unseen": 0,
    "CannotRun": 0,
    "WorkerDied": 0,
    "_could_not_run": 0,
    "Verdict": 1,
    "Outcome": 2,
    "Way": 2,
    "_fail": 1,
}

#: Their names are the keys of the table's rows: what was found and what to do is in the row in other words.
NAMED = {"Obstacle": 0, "Hazard": 0}

#: Functions whose returned text is a message.
RETURNING = {
    "wrapt_problem",
    "_complaint",
    "apply",
    "conclusion",
    "_verdict",
    "_affected",
    "_what_to_do",
    "summary",
    "_sentence",
    "without_model",
}

#: Only there to put our name in front of a message.
PREFIXES = {f"sglang_dsv4_hotfix: {FILLED_IN}", f"sglang-dsv4-hotfix: {FILLED_IN}"}


def patterns() -> dict[str, str]:
    """Each message, and the file that it is in."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _sources()}
    constants = {path.stem: _constants(tree) for path, tree in trees.items()}
    found: dict[str, str] = {}
    for path, tree in trees.items():
        for pattern in map(str.strip, _Messages(tree, constants, path.stem).found()):
            if pattern not in PREFIXES and re.search("[a-z]{3}", pattern):
                found.setdefault(pattern, str(path.relative_to(REPOSITORY)))
    return found


def rows() -> dict[str, list[str]]:
    """The rows of the tables in docs/messages.md: by the text in the first cell's backticks, the cells after it."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        key = re.fullmatch("(`+)(.+?)\\1", cells[0])
        if line.startswith("|") and key:
            text = key[2].strip()
            assert text not in found, f"two rows for {text!r}"
            found[text] = cells[1:]
    return found


def describes(row: str, pattern: str) -> bool:
    """Whether a row is about a message: it is the message, or a good piece of its beginning with … for the rest."""
    if row == pattern:
        return True
    return len(row) > 30 and row.endswith(FILLED_IN) and pattern.startswith(row.removesuffix(FILLED_IN).rstrip())


def _sources() -> list[Path]:
    return [*sorted(PACKAGE.rglob("*.py")), REPOSITORY / "sitecustomize.py"]


def _constants(tree: ast.Module) -> dict[str, str]:
    """The module's own strings, and the names of its functions: what messages are filled in with that never varies."""
    return {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


class _Messages:
    """The messages of one module."""

    def __init__(self, tree: ast.Module, constants: dict[str, dict[str, str]], module: str) -> None:
        self._tree = tree
        self._constants = constants
        everywhere = {name: value for own in constants.values() for name, value in own.items()}
        self._own = {**everywhere, **constants[module]}

    def found(self) -> Iterator[str]:
        for function in [self._tree, *(node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef))]:
            assigned = self._assigned(function) if isinstance(function, ast.FunctionDef) else {}
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    for argument in self._message(node):
                        # _say puts our name in front.
                        name = "sglang_dsv4_hotfix: " if ast.unparse(node.func) == "_say" else ""
                        yield from (name + text for text in self._texts(argument, assigned))
            if isinstance(function, ast.FunctionDef) and function.name in RETURNING:
                for statement in ast.walk(function):
                    if isinstance(statement, (ast.Return, ast.Assign, ast.AugAssign)) and statement.value is not None:
                        yield from self._texts(statement.value, {})

    @staticmethod
    def _message(call: ast.Call) -> Iterator[ast.expr]:
        text = ast.unparse(call.func).replace("_LOG.", "LOG.")
        name = text if text.startswith("LOG.") else text.rpartition(".")[2]
        for table in (CALLS, NAMED):
            position = table.get(name)
            if position is not None and position < len(call.args):
                yield call.args[position]

    @staticmethod
    def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for statement in ast.walk(function):
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(statement.value)
        return found

    def _texts(self, node: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[str]:
        """The patterns that an expression can stand for."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _normal(re.sub(r"%[sdr]", FILLED_IN, node.value))
        elif isinstance(node, ast.JoinedStr):
            yield _normal("".join(self._part(part) for part in node.values))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = (next(self._texts(side, {}), FILLED_IN) for side in (node.left, node.right))
            yield _normal("".join(sides))
        elif isinstance(node, ast.IfExp):
            yield from self._texts(node.body, assigned)
            yield from self._texts(node.orelse, assigned)
        elif isinstance(node, ast.Tuple):
            for element in node.elts:
                yield from self._texts(element, assigned)
        elif isinstance(node, ast.Name):
            for value in assigned.get(node.id, ()):
                yield from self._texts(value, {})

    def _part(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        value = part.value
        if isinstance(value, ast.Name):
            return self._own.get(value.id, FILLED_IN)
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            return self._constants.get(value.value.id, {}).get(value.attr, FILLED_IN)
        return FILLED_IN


def _normal(text: str) -> str:
    return re.sub(rf"(?:{FILLED_IN}\s*)+{FILLED_IN}", FILLED_IN, re.sub(r"\s+", " ", text))
