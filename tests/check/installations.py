"""Real virtual environments with the package as an operator has it, and SGLang trees to judge with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
from shared import CONN_PATH as CONN
from shared import Once, tool

REPOSITORY = Path(__file__).resolve().parents[2]
TOGGLE = "SGLANG_DSV4_HOTFIX"
WRAPT = "wrapt==2.5.2"


#: What check reads of an SGLang; enough for a copy that a test may edit.
READ_FILES = (
    CONN,
    Path("sglang/srt/disaggregation/common/conn.py"),
    Path("sglang/srt/disaggregation/base/conn.py"),
    Path("sglang/srt/environ.py"),
    Path("sglang/srt/models/deepseek_v4.py"),
    Path("sglang/srt/plugins/__init__.py"),
    Path("sglang/version.py"),
    Path("sglang/_version.py"),
)


@dataclass(frozen=True)
class Checked:
    """A run of the command, from outside."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        assert found["exit_code"] == self.code
        return found

    @property
    def obstacles(self) -> dict[str, dict[str, Any]]:
        return {obstacle["name"]: obstacle for obstacle in self.data["obstacles"]}


def check(python: str | Path | Sequence[str | Path], *arguments: str | Path, **env: str | Path) -> Checked:
    """Runs ``python ... -m sglang_dsv4_hotfix.cli check`` with the variables of ``env`` and no others."""
    command = [python] if isinstance(python, (str, Path)) else list(python)
    done = subprocess.run(
        [*map(str, command), "-m", "sglang_dsv4_hotfix.cli", "check", *map(str, arguments)],
        env={name: str(value) for name, value in env.items()},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Checked(done.returncode, done.stdout, done.stderr)


class Made(Once):
    """What the tests share, made once a session and common to pytest's workers."""

    def wheel(self) -> Path:
        def make(place: Path) -> None:
            pip(sys.executable, "wheel", "--no-deps", "-w", place, REPOSITORY)

        (wheel,) = self.made("wheel", make).glob("*.whl")
        return wheel

    def wrapt(self, requirement: str = WRAPT) -> Path:
        """A directory with one wheel of wrapt."""
        return self.made(requirement, lambda place: pip(sys.executable, "wheel", "--no-deps", "-w", place, requirement))

    def venv(self) -> Path:
        """The package and wrapt, nothing else: for tests that leave it as it is."""
        return self.made("venv", lambda place: self.make_venv(place))

    def make_venv(self, place: Path, wrapt: str | None = WRAPT) -> Path:
        """A virtual environment of a test's own."""
        tool(sys.executable, "-m", "venv", "--without-pip", place)
        self._install("--python", python_of(place), wrapt=wrapt)
        return place

    def target(self) -> Path:
        """What ``pip install --target`` leaves behind."""
        return self.made("target", lambda place: self._install(target=place))

    def user_base(self) -> Path:
        """What ``pip install --user`` leaves behind, for PYTHONUSERBASE."""

        def make(place: Path) -> None:
            self._install(target=user_site(place))

        return self.made("user", make)

    def _install(self, *options: str | Path, wrapt: str | None = WRAPT, target: Path | None = None) -> None:
        packages: list[Path] = [self.wheel(), *(self.wrapt(wrapt).glob("*.whl") if wrapt else ())]
        where: list[str | Path] = ["--target", target] if target is not None else []
        pip(sys.executable, *options, "install", "--no-deps", "--no-index", *where, *packages)


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def base_python() -> str:
    """The interpreter that virtual environments are made from. Its own site-packages have none of our packages."""
    return str(sys._base_executable)  # type: ignore[attr-defined]


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def user_site(base: Path) -> Path:
    return base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def copy_of(release: str, place: Path) -> Path:
    """A directory with the files of a release that check reads, its metadata included."""
    source = environments.release_directory(release)
    for file in READ_FILES:
        if (source / file).exists():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, place / file)
    (metadata,) = source.glob("sglang-*.dist-info")
    shutil.copytree(metadata, place / metadata.name)
    return place


def pip(python: str | Path, *arguments: str | Path) -> None:
    tool(python, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *arguments)
