"""What others do to `sys.meta_path`, or to our module, between an interpreter's start and SGLang's import."""

from __future__ import annotations

from pathlib import Path

import pytest
from laboratory import Lab, look

RELOAD = "import importlib, sglang_dsv4_hotfix as hotfix; importlib.reload(hotfix)"

#: Imported anew: another module of the same name, which the finder knows nothing of.
PURGE = "del sys.modules['sglang_dsv4_hotfix']; import sglang_dsv4_hotfix as hotfix; hotfix.activate()"

FINDER = """
class Finder:
    def find_spec(self, *arguments): return None
    def __eq__(self, other): {equal}
    __hash__ = None
sys.finder = Finder()
sys.meta_path.insert(0, sys.finder)
"""

WRAPPING = """
class Wrapping:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, *arguments): return self.finder.find_spec(*arguments)
sys.meta_path[:] = [Wrapping(finder) for finder in sys.meta_path]
"""


@pytest.mark.parametrize(
    "before",
    [
        RELOAD,
        f"{RELOAD}; hotfix.activate()",
        PURGE,
        FINDER.format(equal="raise ValueError('not comparable')"),
        FINDER.format(equal="return True"),
        WRAPPING,
    ],
    ids=["reload", "reload, activate", "purge", "incomparable", "equal to all", "wrapped"],
)
def test_patched_once(lab: Lab, name: str, tree: Path, before: str) -> None:
    # A foreign finder must still be there.
    after = "found['kept'] = any(f is sys.finder for f in sys.meta_path) if hasattr(sys, 'finder') else True"

    report = look(lab.installed(name), "--tree", tree, "--before", before, "--after", after)

    assert report.seen["error"] is None
    assert report.patched
    assert report.seen["found"]["kept"]
    assert report.ended.err == ""


@pytest.mark.parametrize("before", [RELOAD, PURGE])
def test_deactivate(lab: Lab, name: str, tree: Path, before: str) -> None:
    report = look(lab.installed(name), "--tree", tree, "--before", f"{before}; hotfix.deactivate()")

    assert report.seen["error"] is None
    assert report.untouched


def test_meta_path_cannot_be_changed(lab: Lab, name: str, tree: Path) -> None:
    before = "sys.meta_path = tuple(sys.meta_path)"

    report = look(lab.installed(name), "--tree", tree, "--before", before, "--no-status")

    assert report.seen["error"] is None
    assert report.untouched
    assert report.ended.err.startswith("sglang_dsv4_hotfix: could not be activated (TypeError: ")
