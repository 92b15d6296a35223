"""Tracers and profilers that also hook into the start of an interpreter, the real ones, and other users of wrapt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interpreters
import pytest
from interpreters import run
from laboratory import PROBE, TOGGLE, Lab, Report, look, make_venv, pip, site_packages

#: They are told to keep to themselves: nothing is to be sent anywhere.
QUIET = {
    "DD_TRACE_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}

OTEL = """if True:
    from opentelemetry import trace
    found["provider"] = type(trace.get_tracer_provider()).__module__
"""


@pytest.fixture(scope="module")
def venv(lab: Lab) -> Path:
    """ddtrace, OpenTelemetry, coverage and us, in one environment of one interpreter."""

    def make(place: Path) -> None:
        make_venv(interpreters.mine(), place)
        pip(
            place / "bin" / "python",
            "install",
            *("ddtrace", "opentelemetry-distro", "opentelemetry-instrumentation", "coverage"),
            lab.wheel(),
        )

    return lab.made("neighbours", make)


def started(report: Report, prefix: str) -> bool:
    """Whether the neighbour was there before the probe: by its own start-up, that is."""
    return any(module.partition(".")[0] == prefix for module in report.seen["started_with"])


@pytest.mark.parametrize("toggle", ["1", None])
def test_ddtrace_run(venv: Path, tree: Path, toggle: str | None) -> None:
    command: list[str | Path] = [venv / "bin" / "ddtrace-run", venv / "bin" / "python"]

    report = look(command, "--tree", tree, toggle=toggle, **QUIET)

    assert started(report, "ddtrace")
    assert report.patched if toggle else report.untouched
    assert report.ended.ours == []


@pytest.mark.parametrize("toggle", ["1", None])
def test_opentelemetry_instrument(venv: Path, tree: Path, toggle: str | None) -> None:
    command: list[str | Path] = [venv / "bin" / "opentelemetry-instrument", venv / "bin" / "python"]

    report = look(command, "--tree", tree, "--after", OTEL, toggle=toggle, **QUIET)

    assert started(report, "opentelemetry")
    assert report.seen["found"] == {"provider": "opentelemetry.sdk.trace"}
    assert report.patched if toggle else report.untouched
    assert report.ended.ours == []


def test_coverage(venv: Path, tree: Path, tmp_path: Path) -> None:
    """Its .pth file is read before ours, and it measures what we do."""
    (tmp_path / "coverage.ini").write_text(f"[run]\ndata_file = {tmp_path}/data\nparallel = true\n", encoding="utf-8")

    report = look(venv / "bin" / "python", "--tree", tree, COVERAGE_PROCESS_START=tmp_path / "coverage.ini")

    assert started(report, "coverage")
    assert report.patched
    assert report.ended.ours == []
    assert list(tmp_path.glob("data*")), "coverage did not measure this process"


def test_all_of_them_and_pythonpath(venv: Path, lab: Lab, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "coverage.ini").write_text(f"[run]\ndata_file = {tmp_path}/data\nparallel = true\n", encoding="utf-8")
    target = lab.target(interpreters.mine())

    report = look(
        [venv / "bin" / "ddtrace-run", venv / "bin" / "opentelemetry-instrument", venv / "bin" / "python"],
        *("--tree", tree, "--after", OTEL),
        COVERAGE_PROCESS_START=tmp_path / "coverage.ini",
        PYTHONPATH=f"{target}/sglang_dsv4_hotfix/pythonpath:{target}",
        **QUIET,
    )

    assert started(report, "opentelemetry")
    assert started(report, "coverage")
    assert report.patched
    assert report.ended.ours == []


@pytest.mark.parametrize(("command", "patched"), [("ddtrace-run", True), ("opentelemetry-instrument", False)])
def test_pythonpath_alone(venv: Path, lab: Lab, tree: Path, command: str, patched: bool) -> None:
    """Their sitecustomize goes before ours. ddtrace's runs the next one; OpenTelemetry's does not. Documented."""
    bare = lab.made("neighbours-without-us", lambda place: without_us(venv, place))
    target = lab.target(interpreters.mine())

    report = look(
        [bare / "bin" / "python", venv / "bin" / command, bare / "bin" / "python"],
        *("--tree", tree),
        PYTHONPATH=f"{target}/sglang_dsv4_hotfix/pythonpath:{target}",
        **QUIET,
    )

    assert started(report, command.partition("-")[0].removesuffix("run"))
    assert (report.patched, report.untouched) == (patched, not patched)


def without_us(venv: Path, place: Path) -> None:
    """A virtual environment with the packages of ``venv`` on its path, whose .pth files are not read."""
    make_venv(interpreters.mine(), place)
    (site_packages(place) / "neighbours.pth").write_text(f"{site_packages(venv)}\n", encoding="utf-8")


#: Another package that wraps the same method when the module is imported.
OTHER = """if True:
    import wrapt
    def other(wrapped, instance, args, kwargs):
        found["other"] = found.get("other", 0) + 1
        return wrapped(*args, **kwargs)
    def patch(module):
        wrapt.wrap_function_wrapper(module, "MooncakeKVManager.maybe_send_extra", other)
    wrapt.register_post_import_hook(patch, "sglang.srt.disaggregation.mooncake.conn")
"""


@pytest.mark.parametrize("moment", ["--before", "--after"])
def test_another_wrapt_user_of_the_same_method(lab: Lab, name: str, tree: Path, moment: str) -> None:
    report = look(lab.installed(name), "--tree", tree, moment, OTHER)

    assert report.patched
    assert report.seen["layers"] == 2
    assert report.seen["status"]["fixes"]["dispatch"]["verdict"] == "needed"
    # One request went through: the other wrapper saw the call and the hotfix, below or above it, had it sent.
    assert report.seen["found"] == {"other": 1}
    assert report.ended.err == ""


def test_another_wrapt_user_that_was_there_at_start_up(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """Its hook is registered from a sitecustomize, and ours is activated again after that."""
    (tmp_path / "sitecustomize.py").write_text(f"found = {{}}\n{OTHER}", encoding="utf-8")
    again = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.activate()"

    report = look(lab.installed(name), "--tree", tree, "--before", again, PYTHONPATH=tmp_path)

    assert report.patched
    assert report.seen["layers"] == 2
    assert report.ended.err == ""


def test_another_hook_that_raises_fails_the_import_as_without_us(lab: Lab, name: str, tree: Path) -> None:
    """That is wrapt's way: not ours to change, and not ours to be blamed for."""
    raising = OTHER.replace("wrapt.wrap_function_wrapper(", "raise OSError('theirs') # (")

    seen: list[Any] = []
    for toggle in (None, "1"):
        report = look(lab.installed(name), "--tree", tree, "--before", raising, toggle=toggle)
        seen.append((report.seen["error"], report.ended.err))

    assert seen == [("OSError: theirs", "")] * 2


def test_deactivate_below_another_wrapper(lab: Lab, name: str, tree: Path) -> None:
    """What somebody else has put on top of ours stays; ours below it passes every call on as it came."""
    after = OTHER + "\n    import sglang_dsv4_hotfix\n    sglang_dsv4_hotfix.deactivate()\n"

    report = look(lab.installed(name), "--tree", tree, "--after", after)

    assert report.seen["layers"] == 2
    assert report.seen["sent"] == 0
    assert report.seen["found"] == {"other": 1}


def test_another_meta_path_finder_in_front(lab: Lab, name: str, tree: Path) -> None:
    """An import hook that loads everything itself, as bundlers and lazy importers do, and leaves ours no chance to see
    the module. The plugin entry point, called later, still patches."""
    before = """if True:
        from importlib.machinery import PathFinder
        sys.meta_path.insert(0, PathFinder)
    """
    plugin = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.activate()"

    unseen = look(lab.installed(name), "--tree", tree, "--before", before)
    late = look(lab.installed(name), "--tree", tree, "--before", before, "--after", plugin)

    assert unseen.untouched
    assert late.patched


def test_process_replaced_by_exec(lab: Lab, name: str, tree: Path) -> None:
    """``python -m sglang.launch_server`` under a supervisor that execs: the environment carries the toggle along."""
    code = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(PROBE)!r}, '--tree', {str(tree)!r}])"

    ended = run([lab.installed(name), "-c", code], env={TOGGLE: "1"})

    assert ended.code == 0, ended.err
    assert '"wrappers": {"maybe_send_extra": 1, "send_aux": 1}' in ended.out
