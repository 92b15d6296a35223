"""wrapt missing, broken or too old: the interpreter lives, SGLang imports, one clear line, nothing patched."""

from __future__ import annotations

from pathlib import Path

import interpreters
import pytest
from laboratory import WRAPT, Lab, Report, look, pip, python_of

ADVICE = f"SGLang runs unpatched. Run: pip install '{WRAPT}'"


def said(report: Report) -> str:
    """The one line on stderr: there is no logging configuration, so Python prints warnings as they are."""
    assert report.untouched
    assert report.seen["error"] is None
    (line,) = report.ended.err.splitlines()
    assert report.seen["status"]["problem"] == line.removeprefix("sglang_dsv4_hotfix: ")
    assert report.seen["status"]["fixes"] == {}
    return line


def with_package(directory: Path, text: str) -> Path:
    """A directory for PYTHONPATH with a wrapt of our own."""
    package = directory / "wrapt"
    package.mkdir()
    (package / "__init__.py").write_text(text, encoding="utf-8")
    return directory


def test_missing(lab: Lab, name: str, tree: Path) -> None:
    report = look(lab.without_wrapt(name), "--tree", tree)

    assert said(report) == (
        "sglang_dsv4_hotfix: wrapt cannot be imported (ModuleNotFoundError: No module named 'wrapt'); " + ADVICE
    )


def test_missing_and_off(lab: Lab, name: str, tree: Path) -> None:
    report = look(lab.without_wrapt(name), "--tree", tree, toggle="0")

    assert report.untouched
    assert report.ended.err == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise ImportError('no _wrappers')", "wrapt cannot be imported (ImportError: no _wrappers); "),
        ("raise RuntimeError('half installed')", "wrapt cannot be imported (RuntimeError: half installed); "),
        (
            "__version__ = 'unknown'",
            "wrapt cannot be imported (ValueError: invalid literal for int() with base 10: 'unknown'); ",
        ),
        ("", "wrapt cannot be imported (AttributeError: module 'wrapt' has no attribute '__version__'); "),
        ("__version__ = '1.14.9'", "wrapt 1.14.9 does not fit; "),
        ("__version__ = '3.0.0'", "wrapt 3.0.0 does not fit; "),
    ],
)
def test_broken(lab: Lab, name: str, tree: Path, tmp_path: Path, text: str, complaint: str) -> None:
    path = with_package(tmp_path, text)

    report = look(lab.without_wrapt(name), "--tree", tree, PYTHONPATH=path)

    assert said(report) == f"sglang_dsv4_hotfix: {complaint}{ADVICE}"


def test_something_else_of_that_name(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """It passes for wrapt, and cannot do what wrapt can."""
    report = look(lab.without_wrapt(name), "--tree", tree, PYTHONPATH=with_package(tmp_path, "__version__ = '2.0.0'"))

    assert said(report) == (
        "sglang_dsv4_hotfix: wrapt cannot be imported (AttributeError: module 'wrapt' has no attribute "
        "'register_post_import_hook'); " + ADVICE
    )


def test_missing_before_a_finder_that_alone_knows_sglang(lab: Lab, name: str, tree: Path) -> None:
    """An editable install's or a vendor's finder, right behind ours in sys.meta_path: it must still be asked."""
    finder = f"""if True:
        import sys
        from importlib.machinery import PathFinder
        class Finder:
            def find_spec(self, fullname, path=None, target=None):
                return PathFinder.find_spec(fullname, [{str(tree)!r}, *sys.path] if path is None else path)
        path_finder = sys.meta_path.index(PathFinder)
        del sys.meta_path[path_finder]
        sys.meta_path.insert(1, Finder())
        """

    report = look(lab.without_wrapt(name), "--tree", tree, "--before", finder)

    assert said(report).startswith("sglang_dsv4_hotfix: wrapt cannot be imported ")


def test_said_once_however_often_it_is_activated(lab: Lab, name: str, tree: Path) -> None:
    again = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.activate()"

    report = look(lab.without_wrapt(name), "--tree", tree, "--before", again, "--after", again)

    assert said(report)


@pytest.mark.parametrize(("version", "fits"), [("1.14.2", False), ("1.15.0", True), ("1.17.3", True), ("2.0.1", True)])
def test_real_versions(lab: Lab, tree: Path, version: str, fits: bool) -> None:
    """On one interpreter: the first version that fits, the last that does not, and the ends of the two majors."""
    name = interpreters.mine()
    path = lab.made(
        f"wrapt-{version}",
        lambda place: pip(python_of(name), "install", "--no-deps", "--target", place, f"wrapt=={version}"),
    )

    report = look(lab.without_wrapt(name), "--tree", tree, PYTHONPATH=path)

    if fits:
        assert report.patched
        assert report.ended.err == ""
    else:
        assert said(report) == f"sglang_dsv4_hotfix: wrapt {version} does not fit; {ADVICE}"
