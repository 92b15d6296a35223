"""A few seconds of the soak (`make soak MINUTES=30` for a real one): rooms of every kind, faults, sizes compared."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import environments

ROOT = Path(__file__).resolve().parents[2]


def test_soak() -> None:
    environment = environments.environment_for("0.5.11")
    done = subprocess.run(
        [environment.python, "-m", "benchmarks.soak", "0.1"],
        cwd=ROOT,
        env=environment.env(),
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) rooms in .*, (\d+) failed as they must", done.stdout, flags=re.M)
    assert found, done.stdout
    rooms, failed = map(int, found.groups())
    assert rooms > 600
    assert failed >= rooms / 5
    assert done.stdout.endswith("every room settled right, every byte in place, nothing grew\n")
