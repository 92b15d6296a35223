"""Interpreter start-up: bare, with the package off and on, beside others that run code at every start.

Each in a virtual environment of its own, made from wheels as pip installs them. A start is `python -c pass`, seen from
outside. Runs in the python that calls it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import Figure, median_ratio, rounds_of

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 150

# Environment, what is installed there, variables.
CANDIDATES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "bare": ("bare", (), {}),
    "bare again": ("bare2", (), {}),
    "hotfix off": ("hotfix", ("hotfix",), {}),
    "hotfix on, no SGLang": ("hotfix", ("hotfix",), {"SGLANG_DSV4_HOTFIX": "1"}),
    "autowrapt unset": ("autowrapt", ("autowrapt==2.0.0",), {}),
    "autowrapt set": ("autowrapt", ("autowrapt==2.0.0",), {"AUTOWRAPT_BOOTSTRAP": "nothing"}),
    "coverage's .pth": ("coverage", ("coverage==7.15.2",), {}),
    "sglang-radeon-rdna3, disabled": ("radeon", ("sglang-radeon-rdna3",), {}),
}
GOALS = {"hotfix on, no SGLang": 1.05}


def run(rounds: int = ROUNDS) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        starts, failed = _starts(Path(directory))
        seconds: dict[str, list[float]] = {name: [] for name in starts}
        memory: dict[str, list[int]] = {name: [] for name in starts}
        for start in starts.values():
            start()
        for name in rounds_of(starts, rounds):
            took, kilobytes = starts[name]()
            seconds[name].append(took)
            memory[name].append(kilobytes)
    noise = median_ratio(seconds["bare again"], seconds["bare"])
    unset = median_ratio(seconds["autowrapt unset"], seconds["bare"]) if "autowrapt unset" in seconds else None
    for name in seconds:
        if name == "bare":
            continue
        ratio = median_ratio(seconds[name], seconds["bare"])
        goal = GOALS.get(name)
        remark = f"A/A {noise:.3f}"
        if name == "hotfix off":
            goal = 1.01 + abs(noise - 1)
            remark += "" if unset is None else f"; autowrapt unset {unset:.3f}"
        figures.append(Figure("start-up", f"{name}: to bare", ratio, "", goal, remark))
    for name in ("hotfix off", "hotfix on, no SGLang"):
        more = statistics.median(memory[name]) - statistics.median(memory["bare"])
        figures.append(Figure("start-up", f"{name}: memory over bare", more, "kB", 200.0))
    for name in failed:
        figures.append(Figure("start-up", f"{name}: to bare", float("nan"), "", None, "could not be installed here"))
    return figures


def _starts(directory: Path) -> tuple[dict[str, Callable[[], tuple[float, int]]], list[str]]:
    built: dict[str, bool] = {}
    starts: dict[str, Callable[[], tuple[float, int]]] = {}
    failed = []
    for name, (environment, packages, variables) in CANDIDATES.items():
        target = directory / environment
        if environment not in built:
            built[environment] = _environment(target, packages)
        if built[environment]:
            starts[name] = _start(target / "bin" / "python", variables)
        else:
            failed.append(name)
    return starts, failed


def _environment(target: Path, packages: tuple[str, ...]) -> bool:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True)
    for package in packages:
        what = [str(ROOT)] if package == "hotfix" else [package]
        # Without dependencies but for wrapt: torch and SGLang are not what is measured.
        also = ["wrapt>=2"] if package == "hotfix" or package.startswith("autowrapt") else []
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(target / "bin" / "python"),
            "install",
            "-q",
            "--no-deps",
        ]
        if subprocess.run([*command, *what, *also], check=False, capture_output=True).returncode:
            return False
    return True


def _start(python: Path, variables: dict[str, str]) -> Callable[[], tuple[float, int]]:
    environment = {"PATH": os.environ["PATH"], **variables}
    arguments = [str(python), "-c", "pass"]

    def start() -> tuple[float, int]:
        begin = time.perf_counter()
        pid = os.posix_spawn(arguments[0], arguments, environment)
        _, status, usage = os.wait4(pid, 0)
        took = time.perf_counter() - begin
        assert status == 0, f"{arguments[0]} ended with {status}"
        return took, usage.ru_maxrss

    return start
