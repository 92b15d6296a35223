"""Interpreter start-up: bare, with the package off and on, beside others that run code at every start.

Each in a virtual environment of its own, made from wheels as pip installs them. A start is `python -c pass`, seen from
outside. Runs in the python that calls it.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.timing import Figure, interleaved, median_ratio, rounds_of

#: Runs a statement in a new interpreter.
Start = Callable[[str], None]

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "sglang_dsv4_hotfix"
ROUNDS = 300
#: For those that take several times as long and are held against no goal.
FEW_ROUNDS = 30
SLOW = ("autowrapt set", "sglang-radeon-rdna3, disabled")

ON = {"SGLANG_DSV4_HOTFIX": "1"}

#: From another directory, where .pth files are not read; with {site} for where the hotfix is installed.
BY_PATH = {"PYTHONPATH": "{site}/sglang_dsv4_hotfix/pythonpath:{site}"}

#: What Python itself takes for any .pth file, and for any package that is imported at a start: there is no way below.
FLOORS = {
    "comment": {"comment.pth": "# nothing\n"},
    "empty": {
        "empty.pth": (ROOT / "sglang_dsv4_hotfix.pth").read_text(encoding="utf-8").replace(PACKAGE, "empty"),
        "empty/__init__.py": "def activate(): pass\n",
    },
}

# Environment, what is installed there, variables.
CANDIDATES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "bare": ("bare", (), {}),
    "bare again": ("bare2", (), {}),
    "a .pth of one comment": ("comment", ("comment",), {}),
    "hotfix off": ("hotfix", ("hotfix",), {}),
    "an empty package by our line": ("empty", ("empty",), ON),
    "hotfix on, no SGLang": ("hotfix", ("hotfix",), ON),
    "hotfix on PYTHONPATH, off": ("bare", (), BY_PATH),
    "hotfix on PYTHONPATH, on, no SGLang": ("bare", (), {**BY_PATH, **ON}),
    "autowrapt unset": ("autowrapt", ("autowrapt==2.0.0",), {}),
    "autowrapt set": ("autowrapt", ("autowrapt==2.0.0",), {"AUTOWRAPT_BOOTSTRAP": "nothing"}),
    "coverage's .pth": ("coverage", ("coverage==7.15.2",), {}),
    "sglang-radeon-rdna3, disabled": ("radeon", ("sglang-radeon-rdna3",), {}),
}
GOALS = {"hotfix on, no SGLang": 1.05}


def run(rounds: int = ROUNDS) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        pythons, failed = _pythons(Path(directory))
        usual = {name: python for name, python in pythons.items() if name not in SLOW}
        ratios = _ratios(usual, rounds)
        ratios |= _ratios({name: pythons[name] for name in ("bare", *SLOW) if name in pythons}, FEW_ROUNDS)
        memory = _memory(usual)
    noise, unset = ratios["bare again"], ratios.get("autowrapt unset")
    for name, ratio in ratios.items():
        goal = GOALS.get(name)
        remark = "" if name in SLOW else f"A/A {noise:.3f}"
        if name == "hotfix off":
            goal = 1.01 + abs(noise - 1)
            remark += "" if unset is None else f"; autowrapt unset {unset:.3f}"
        figures.append(Figure("start-up", f"{name}: to bare", ratio, "", goal, remark))
    remark = f"A/A {memory['bare again'] - memory['bare']:.0f} kB"
    for name in memory:
        if name.startswith("hotfix"):
            more = memory[name] - memory["bare"]
            figures.append(Figure("start-up", f"{name}: memory over bare", more, "kB", 200.0, remark))
    for name in failed:
        figures.append(Figure("start-up", f"{name}: to bare", float("nan"), "", None, "could not be installed here"))
    return figures


def _ratios(pythons: Mapping[str, Start], rounds: int) -> dict[str, float]:
    """By candidate: its time's ratio to that of "bare", which is left out."""
    seconds = interleaved({name: partial(start, "pass") for name, start in pythons.items()}, rounds)
    return {name: median_ratio(taken, seconds["bare"]) for name, taken in seconds.items() if name != "bare"}


def _memory(pythons: Mapping[str, Start]) -> dict[str, float]:
    """By candidate: the most that a start has resident, in kB, by its own account.

    Not what wait4 says of a child: the kernel counts in what the parent had before exec.
    """
    kilobytes: dict[str, list[int]] = {name: [] for name in pythons}
    with tempfile.NamedTemporaryFile() as report:
        for name in rounds_of(pythons, FEW_ROUNDS):
            pythons[name](f"open({report.name!r}, 'w').write(open('/proc/self/status').read())")
            (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(report.name).read_text(encoding="utf-8"), re.MULTILINE)
            kilobytes[name].append(int(peak))
    return {name: statistics.median(used) for name, used in kilobytes.items()}


def _pythons(directory: Path) -> tuple[dict[str, Start], list[str]]:
    """A function that runs a statement in a new interpreter, by candidate; and those that could not be installed."""
    built: dict[str, bool] = {}
    pythons: dict[str, Start] = {}
    failed = []
    for name, (environment, packages, variables) in CANDIDATES.items():
        target = directory / environment
        if environment not in built:
            built[environment] = _environment(target, packages)
        if built[environment]:
            site = _site_packages(directory / "hotfix") if variables.keys() & BY_PATH.keys() else ""
            variables = {variable: value.format(site=site) for variable, value in variables.items()}
            pythons[name] = _start(target / "bin" / "python", variables)
        else:
            failed.append(name)
    return pythons, failed


def _environment(target: Path, packages: tuple[str, ...]) -> bool:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True)
    for package in packages:
        if package in FLOORS:
            for file, text in FLOORS[package].items():
                path = _site_packages(target) / file
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            continue
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


def _site_packages(environment: Path) -> Path:
    (directory,) = environment.glob("lib/python*/site-packages")
    return directory


def _start(python: Path, variables: dict[str, str]) -> Start:
    environment = {"PATH": os.environ["PATH"], **variables}

    def start(statement: str) -> None:
        arguments = [str(python), "-c", statement]
        pid = os.posix_spawn(arguments[0], arguments, environment)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{arguments[0]} ended with {status}"

    return start
