"""What an interpreter costs and says at its start, by the toggle: installed with pip in a virtual environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from interpreters import run
from laboratory import TOGGLE, Lab, look

#: What the package may load while it waits for SGLang.
WAITING = {"sglang_dsv4_hotfix", "sglang_dsv4_hotfix.toggle"}

EXPENSIVE = {"wrapt", "logging", "inspect", "importlib.metadata", "typing"}


def because_of_us(lab: Lab, name: str, toggle: str | None) -> set[str]:
    """The modules that an interpreter starts with, less those that it starts with when we are not installed."""
    arguments = ("--stay-away",)
    with_us = look(lab.installed(name), *arguments, toggle=toggle)
    without = look(lab.empty(name), *arguments, toggle=toggle)
    assert with_us.ended.err == without.ended.err == ""
    return set(with_us.seen["started_with"]) - set(without.seen["started_with"])


@pytest.mark.parametrize("toggle", [None, ""])
def test_unset_loads_nothing(lab: Lab, name: str, toggle: str | None) -> None:
    assert because_of_us(lab, name, toggle) == set()


@pytest.mark.parametrize("toggle", ["0", "false", "off", "no", " OFF "])
def test_off_loads_next_to_nothing(lab: Lab, name: str, toggle: str) -> None:
    assert because_of_us(lab, name, toggle) == WAITING


@pytest.mark.parametrize("toggle", ["1", "yes", "dispatch,status"])
def test_on_waits_for_sglang(lab: Lab, name: str, toggle: str) -> None:
    loaded = because_of_us(lab, name, toggle)

    # The usual value needs no reading.
    assert loaded == (WAITING - {"sglang_dsv4_hotfix.toggle"} if toggle == "1" else WAITING)
    assert not loaded & EXPENSIVE


@pytest.mark.parametrize("toggle", [None, "", "0", "no"])
def test_off_leaves_sglang_alone(lab: Lab, name: str, tree: Path, toggle: str | None) -> None:
    report = look(lab.installed(name), "--tree", tree, toggle=toggle)

    assert report.untouched
    assert report.seen["sent"] == 0
    assert report.ended.err == ""


@pytest.mark.parametrize("toggle", ["1", "TRUE", "dispatch, status"])
def test_on_patches_once(lab: Lab, name: str, tree: Path, toggle: str) -> None:
    # The report is one line at INFO, through logging.
    log = "import logging; logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s')"

    report = look(lab.installed(name), "--tree", tree, "--before", log, toggle=toggle)

    assert report.patched
    assert report.seen["sent"] == 1
    # The second line is the first changed transfer's.
    summary, transfer = report.ended.err.splitlines()
    assert summary.startswith("sglang_dsv4_hotfix INFO sglang_dsv4_hotfix ")
    assert " on SGLang 0.0.0+standin: dispatch: needed, patched; " in summary
    assert "first changed transfer: room 1" in transfer


def test_unknown_value_is_off_and_said_once(lab: Lab, name: str, tree: Path) -> None:
    report = look(lab.installed(name), "--tree", tree, toggle="dispatsch")

    assert report.untouched
    assert report.ended.err == (
        "sglang_dsv4_hotfix: SGLANG_DSV4_HOTFIX='dispatsch' is not understood (unknown: 'dispatsch'); the hotfix stays "
        "off. Use 1, 0, or a comma-separated list of: dispatch, stride, status, early_send.\n"
    )


def test_activated_in_every_way_there_is_one_wrapper(lab: Lab, name: str, tree: Path) -> None:
    """The .pth file, twice in a virtual environment; sitecustomize from PYTHONPATH; the plugin entry point, early and
    late."""
    plugin = (
        "from importlib.metadata import entry_points\n"
        "for plugin in entry_points(group='sglang.srt.plugins'): plugin.load()()\n"
    )
    log = "import logging; logging.basicConfig(level='INFO', format='%(message)s')\n"
    shipped = run([lab.installed(name), "-m", "sglang_dsv4_hotfix.cli", "path"])

    report = look(
        lab.installed(name),
        *("--tree", tree, "--before", log + plugin * 2, "--after", plugin * 2),
        PYTHONPATH=shipped.out.strip(),
    )

    assert "sitecustomize" in report.seen["started_with"]
    assert report.patched
    assert len([line for line in report.ended.ours if " on SGLang " in line]) == 1


def test_deactivate_restores_by_identity(lab: Lab, name: str, tree: Path) -> None:
    after = """if True:
        import sglang_dsv4_hotfix
        methods = vars(conn.MooncakeKVManager)
        patched = dict(methods)
        sglang_dsv4_hotfix.deactivate()
        found["after"] = wrappers(conn)
        for method in ("maybe_send_extra", "send_aux"):
            found[method] = methods[method] is layers(patched[method])[-1].__wrapped__
        found["sent"] = send(conn)
        sglang_dsv4_hotfix.activate()
    """

    report = look(lab.installed(name), "--tree", tree, "--after", after)

    assert report.seen["found"] == {
        "after": {"maybe_send_extra": 0, "send_aux": 0},
        "maybe_send_extra": True,
        "send_aux": True,
        "sent": 0,
    }
    # And activated again: patched again, once.
    assert report.patched


def test_deactivated_before_sglang_is_imported(lab: Lab, name: str, tree: Path) -> None:
    before = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.deactivate()"

    report = look(lab.installed(name), "--tree", tree, "--before", before)

    assert report.untouched
    assert report.ended.err == ""


@pytest.mark.parametrize(
    ("options", "patched"),
    [
        pytest.param([], True, id="none"),
        pytest.param(["-I"], True, id="-I"),
        pytest.param(["-E"], True, id="-E"),
        pytest.param(["-s"], True, id="-s"),
        pytest.param(["-P"], True, id="-P"),
        pytest.param(["-B"], True, id="-B"),
        # Optimised bytecode: no assertion and, with -OO, no docstring that anything relies on.
        pytest.param(["-OO"], True, id="-OO"),
        pytest.param(["-X", "frozen_modules=off"], True, id="-X"),
        # site does not run, so no .pth file is read, nor is site-packages on the path. Documented.
        pytest.param(["-S"], False, id="-S"),
    ],
)
def test_interpreter_options(lab: Lab, name: str, tree: Path, options: list[str], patched: bool) -> None:
    if options == ["-P"] and name == "3.10":
        pytest.skip("Python 3.10 has no -P")

    report = look([lab.installed(name), *options], "--tree", tree)

    assert (report.patched, report.untouched) == (patched, not patched)
    assert report.ended.err == ""


def test_empty_environment(lab: Lab, name: str, tree: Path) -> None:
    """``env -i``: the toggle is gone with the rest; with the toggle alone the hotfix works."""
    python = lab.installed(name)
    clean = ["/usr/bin/env", "-i", python]

    assert look(clean, "--tree", tree).untouched
    assert look(["/usr/bin/env", "-i", f"{TOGGLE}=1", python], "--tree", tree, toggle=None).patched


@pytest.mark.parametrize("toggle", ["1", "nonsense"])
def test_full_standard_error(lab: Lab, name: str, toggle: str) -> None:
    """A full disk, a dead pipe: a complaint that cannot be written must not end the start."""
    ended = run(
        ["/bin/sh", "-c", 'exec "$0" "$@" 2>/dev/full', lab.installed(name), "-c", "print('lives')"],
        env={TOGGLE: toggle},
    )

    assert (ended.code, ended.out) == (0, "lives\n")


def test_no_standard_error(lab: Lab, name: str, tree: Path) -> None:
    """A daemon may have closed it: a complaint must not become an exception."""
    for toggle in ("1", "nonsense"):
        ended = run(
            ["/bin/sh", "-c", 'exec "$0" "$@" 2>&-', lab.installed(name), "-c", "print('lives')"],
            env={TOGGLE: toggle},
        )

        assert (ended.code, ended.out) == (0, "lives\n")


CHILDREN = """
import multiprocessing, sys

def child(queue):
    from probe_start import TARGET, wrappers
    import importlib
    queue.put(wrappers(importlib.import_module(TARGET)))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if len(sys.argv) > 2:
        context.set_forkserver_preload([sys.argv[2]])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(["spawn"], id="spawn"),
        pytest.param(["forkserver"], id="forkserver"),
        pytest.param(["forkserver", "sglang.srt.disaggregation.mooncake.conn"], id="forkserver that preloads"),
        pytest.param(["fork"], id="fork"),
    ],
)
def test_multiprocessing_children(lab: Lab, name: str, tree: Path, tmp_path: Path, method: list[str]) -> None:
    script = tmp_path / "parent.py"
    script.write_text(CHILDREN, encoding="utf-8")
    path = os.pathsep.join([str(tree), str(Path(__file__).parent)])

    ended = run([lab.installed(name), script, *method], env={TOGGLE: "1", "PYTHONPATH": path})

    assert ended.code == 0, ended.err
    assert ended.out == "{'maybe_send_extra': 1, 'send_aux': 1}\n"


def test_the_interpreters_are_those_that_are_meant(lab: Lab, name: str) -> None:
    ended = run(
        [lab.installed(name), "-c", "import sys; print('%d.%d' % sys.version_info[:2], 'sitecustomize' in sys.modules)"]
    )
    version, customized = ended.out.split()

    if name == "system":
        assert customized == "True", "the system's Python is here for its own sitecustomize"
    else:
        assert version == name
    assert sys.version_info >= (3, 10)
