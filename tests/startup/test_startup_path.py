"""Others on PYTHONPATH: foreign sitecustomize modules, further copies of ours, other versions of the package."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import interpreters
import pytest
from interpreters import run
from laboratory import OTHER_VERSION, TOGGLE, Lab, look, python_of

#: A sitecustomize as most are: it does its own thing, and does not think of others.
FOREIGN = "import sys; sys.foreign = getattr(sys, 'foreign', 0) + 1\n"

#: One that runs the next sitecustomize on the path, as tracers do.
CHAINING = f"""{FOREIGN}
import os
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
here = os.path.dirname(__file__)
spec = PathFinder.find_spec("sitecustomize", sys.path[sys.path.index(here) + 1 :])
if spec is not None:
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
"""

#: How often foreign code ran.
FOREIGN_RAN = ("--after", "found['foreign'] = getattr(sys, 'foreign', 0)")


def shipped(target: Path) -> Path:
    return target / "sglang_dsv4_hotfix" / "pythonpath"


def ours(target: Path) -> str:
    return f"{shipped(target)}:{target}"


def foreign(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize("toggle", [None, "", "1"])
def test_loads_next_to_nothing(lab: Lab, name: str, toggle: str | None) -> None:
    bare = look(lab.empty(name), "--stay-away", toggle=toggle)
    report = look(lab.empty(name), "--stay-away", toggle=toggle, PYTHONPATH=ours(lab.target(name)))

    package = {"sglang_dsv4_hotfix"} if toggle else set()
    # Debian's Python has a sitecustomize of its own.
    assert set(report.seen["started_with"]) - set(bare.seen["started_with"]) - {"sitecustomize"} == package
    assert report.ended.err == ""


@pytest.mark.parametrize("toggle", ["1", "0", None])
def test_ours_runs_the_one_below_it(lab: Lab, name: str, tree: Path, tmp_path: Path, toggle: str | None) -> None:
    other = foreign(tmp_path / "other", FOREIGN)
    after = (*FOREIGN_RAN[:1], f"{FOREIGN_RAN[1]}; found['module'] = sys.modules['sitecustomize'].__file__")

    report = look(
        lab.empty(name), "--tree", tree, *after, toggle=toggle, PYTHONPATH=f"{ours(lab.target(name))}:{other}"
    )

    assert report.seen["found"] == {"foreign": 1, "module": str(other / "sitecustomize.py")}
    assert report.patched if toggle == "1" else report.untouched
    assert report.ended.err == ""


def test_one_above_that_chains(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    other = foreign(tmp_path / "other", CHAINING)

    report = look(lab.empty(name), "--tree", tree, *FOREIGN_RAN, PYTHONPATH=f"{other}:{ours(lab.target(name))}")

    assert report.seen["found"] == {"foreign": 1}
    assert report.patched
    assert report.ended.err == ""


def test_one_above_that_does_not_chain_hides_ours(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """Documented. The .pth file of an installation is not concerned."""
    other = foreign(tmp_path / "other", FOREIGN)
    path = f"{other}:{ours(lab.target(name))}"

    hidden = look(lab.empty(name), "--tree", tree, *FOREIGN_RAN, PYTHONPATH=path)
    installed = look(lab.installed(name), "--tree", tree, *FOREIGN_RAN, PYTHONPATH=path)

    assert hidden.seen["found"] == installed.seen["found"] == {"foreign": 1}
    assert hidden.untouched
    assert installed.patched


@pytest.mark.parametrize("order", [*permutations(["A", "B"]), *permutations(["A", "B", "foreign", "chaining"], 3)])
def test_several_copies(lab: Lab, tree: Path, tmp_path: Path, order: tuple[str, ...]) -> None:
    """Two copies of ours, in either order, with foreign ones above, between and below: one wrapper, no recursion."""
    name = interpreters.mine()
    paths = {
        "A": ours(lab.target(name)),
        "B": ours(lab.target(name, OTHER_VERSION)),
        "foreign": str(foreign(tmp_path / "foreign", FOREIGN)),
        "chaining": str(foreign(tmp_path / "chaining", CHAINING)),
    }
    path = ":".join(paths[part] for part in order)
    # What is above the first of ours and doesn't chain hides the rest.
    reached = list(order[: order.index("foreign") + 1] if "foreign" in order else order)

    for python in (lab.empty(name), lab.installed(name)):
        report = look(python, "--tree", tree, *FOREIGN_RAN, PYTHONPATH=path)

        assert report.seen["found"] == {"foreign": len({"foreign", "chaining"} & set(reached))}
        activated = python == lab.installed(name) or {"A", "B"} & set(reached)
        assert report.patched if activated else report.untouched
        assert report.ended.err == ""


@pytest.mark.parametrize("version", [None, OTHER_VERSION])
def test_two_versions(lab: Lab, name: str, tree: Path, version: str | None) -> None:
    """One installed, one on PYTHONPATH: Python takes the one on PYTHONPATH, whoever activates it, and only that."""
    report = look(lab.installed(name), "--tree", tree, PYTHONPATH=ours(lab.target(interpreters.mine(), version)))

    assert report.patched
    assert report.seen["package"].startswith(str(lab.target(interpreters.mine(), version)))
    if version is not None:
        assert report.seen["status"]["package"] == version
    assert report.ended.err == ""


@pytest.mark.parametrize("way", ["pth", "pythonpath"])
def test_the_systems_own_sitecustomize_runs(lab: Lab, tree: Path, tmp_path: Path, way: str) -> None:
    """Debian's and Ubuntu's installs a handler of theirs if it is there: here a stand-in that notes the call."""
    (tmp_path / "apport_python_hook.py").write_text("import sys\ndef install(): sys.apport = 'installed'\n", "utf-8")
    after = "found['apport'] = getattr(sys, 'apport', None); found['file'] = sys.modules['sitecustomize'].__file__"
    if way == "pth":
        python, path = lab.installed("system"), str(tmp_path)
    else:
        python, path = python_of("system"), f"{ours(lab.target('system'))}:{tmp_path}"

    report = look(python, "--tree", tree, "--after", after, PYTHONPATH=path)

    assert report.patched
    assert report.ended.err == ""
    shipped_with_python = (
        "/usr/lib/python3" in report.seen["found"]["file"] or "/etc/python3" in report.seen["found"]["file"]
    )
    assert shipped_with_python
    assert report.seen["found"]["apport"] == "installed"


@pytest.mark.parametrize(
    "text",
    [
        "raise RuntimeError('theirs')",
        "raise ImportError('theirs')",
        "import something_that_is_not_there",
        "import sys; sys.exit(3)",
        "def broken(:",
        "import sys; sys.path.clear()",
        "import sys; del sys.modules['sitecustomize']",
    ],
)
def test_a_foreign_one_that_fails_does_so_as_without_us(lab: Lab, name: str, tmp_path: Path, text: str) -> None:
    other = foreign(tmp_path / "other", text)
    with_us = f"{ours(lab.target(name))}:{other}"

    def seen(path: str, toggle: str) -> tuple[int, str, list[str]]:
        ended = run([lab.empty(name), "-c", "print('lives')"], env={"PYTHONPATH": path, TOGGLE: toggle})
        # Without the frames of a traceback: they go through our file.
        return ended.code, ended.out, [line for line in ended.err.splitlines() if not line.startswith(" ")]

    for toggle in ("1", "0"):
        assert seen(with_us, toggle) == seen(str(other), toggle)


def test_an_unreadable_one_below_is_skipped_as_python_would(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """Odd entries of the path: not there, a file, a zip archive with a sitecustomize."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("sitecustomize.py", FOREIGN)
    (tmp_path / "file").touch()
    path = f"{ours(lab.target(name))}:{tmp_path}/none:{tmp_path}/file::{tmp_path}/archive.zip"

    report = look(lab.empty(name), "--tree", tree, *FOREIGN_RAN, PYTHONPATH=path)

    assert report.seen["found"] == {"foreign": 1}
    assert report.patched
    assert report.ended.err == ""


def test_same_directory_twice_and_by_symbolic_link(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    target = lab.target(name)
    (tmp_path / "link").symlink_to(target)
    other = foreign(tmp_path / "other", FOREIGN)
    for path in (
        f"{ours(target)}:{ours(target)}:{other}",
        f"{ours(tmp_path / 'link')}:{ours(target)}:{other}",
        f"{ours(target)}:{ours(tmp_path / 'link')}:{other}",
    ):
        report = look(lab.empty(name), "--tree", tree, *FOREIGN_RAN, PYTHONPATH=path)

        assert report.seen["found"] == {"foreign": 1}
        assert report.patched


def test_target_of_another_python(lab: Lab, name: str, tree: Path) -> None:
    """A directory made with one version of Python and mounted into an image with another: wrapt does without its
    compiled part."""
    other = "3.12" if name != "3.12" else "3.11"

    report = look(lab.empty(name), "--tree", tree, PYTHONPATH=ours(lab.target(other)))

    assert report.patched
    assert report.ended.err == ""
