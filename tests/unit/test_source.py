"""The syntax tree of a loaded method, found in its file by line: whatever else is in that file."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from sglang_dsv4_hotfix.build import LoadedBuild, Unreadable

METHOD = '''
    def transfer_worker(self, queue):
        text = """
not indented
"""

        # a comment
        def inner():
            return [each for each in text]

        return inner()
'''
CLASS = f"class MooncakeKVManager:\n    kind = 1\n{METHOD}"
AFTER = "\n    def another(self): pass\n\nlast = 1\n"


def loaded(file: Path, text: bytes) -> ModuleType:
    file.write_bytes(text)
    spec = importlib.util.spec_from_file_location("conn", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        CLASS,
        CLASS.rstrip("\n"),
        CLASS + AFTER,
        (CLASS + AFTER).replace("\n", "\r\n"),
        (CLASS + AFTER).replace("\n", "\r"),
        f'above = "\\x0c \\u2028"\n\x0c\n# \x0b \x85 \u2028 \x1c\n{CLASS}{AFTER}',
        f"# coding: latin-1\nabove = 'é'\n{CLASS}{AFTER}",
        f"{CLASS}\n\x0c    @staticmethod\n{AFTER}",
        CLASS.replace("    def transfer", "    @staticmethod\n    @(lambda f:\n      f)\n    def transfer") + AFTER,
    ],
    ids=[
        "alone",
        "no newline",
        "followed",
        "CRLF",
        "CR",
        "form feeds",
        "latin-1",
        "form feed before an indent",
        "decorated",
    ],
)
def test_found(tmp_path: Path, text: str) -> None:
    encoding = "latin-1" if "latin-1" in text else "utf-8"

    conn = loaded(tmp_path / "conn.py", text.encode(encoding))

    (expected,) = ast.parse(f"if True:{METHOD}").body[0].body  # type: ignore[attr-defined]
    body = LoadedBuild(conn).tree("transfer_worker").body
    assert [ast.dump(part) for part in body] == [ast.dump(part) for part in expected.body]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        (CLASS[:9], "cannot be read"),
        ("class Other:\n" + 9 * "    def another(self): pass\n", "is not that function"),
        (CLASS.replace("def ", "def = "), "does not parse"),
    ],
    ids=["empty", "cut off", "another", "broken"],
)
def test_file_has_changed_since(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "conn.py"
    build = LoadedBuild(loaded(file, CLASS.encode()))
    file.write_text(text)

    with pytest.raises(Unreadable, match=why):
        build.tree("transfer_worker")
