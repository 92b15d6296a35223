"""A wheel of the sources as they are, and each interpreter with it installed in the ways that people install things.

All of it is made once a session, in a temporary directory, and shared by pytest's workers.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import interpreters
import pytest
from interpreters import Ended, run
from shared import Once, tool

REPOSITORY = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe_start.py")
TOGGLE = "SGLANG_DSV4_HOTFIX"
WRAPT = "wrapt>=1.15,<3"

#: The stamp of a second version, made from the same sources.
OTHER_VERSION = "99.0"


@dataclass(frozen=True)
class Report:
    """What probe_start.py saw, and its process from outside."""

    ended: Ended
    seen: dict[str, Any]

    @property
    def patched(self) -> bool:
        """Exactly one of our wrappers on each of the two methods, and DeepSeek-V4's state goes through them."""
        return self.seen["wrappers"] == {"maybe_send_extra": 1, "send_aux": 1} and self.seen["sent"] in (1, None)

    @property
    def untouched(self) -> bool:
        return not any(self.seen["wrappers"].values()) and self.seen["sent"] in (0, None)


class Lab(Once):
    """What the start-up tests share."""

    def wheel(self, version: str | None = None) -> Path:
        """Our wheel; with ``version``, one of the same sources with that number."""

        def make(place: Path) -> None:
            source = copy_sources(place.with_name(f"{place.name}-source"), version)
            self.build("build_wheel", source, place)

        (wheel,) = self.made(f"wheel-{version or 'current'}", make).glob("*.whl")
        return wheel

    def editable_wheel(self) -> tuple[Path, Path]:
        """What ``pip install -e`` builds and installs, and the checkout that it points at."""
        checkout = self.directory / "editable-checkout"
        place = self.made("editable-wheel", lambda place: self.build("build_editable", copy_sources(checkout), place))
        (wheel,) = place.glob("*.whl")
        return wheel, checkout

    def build(self, what: str, source: Path, place: Path) -> None:
        """Calls the build backend's function ``what`` (PEP 517), in an environment that is made once."""

        def make(builder: Path) -> None:
            make_venv(interpreters.mine(), builder)
            pip(builder / "bin" / "python", "install", "hatchling>=1.26", "editables")

        python = self.made("builder", make) / "bin" / "python"
        place.mkdir()
        done = run([python, "-c", f"from hatchling.build import {what}; {what}({str(place)!r})"], cwd=source)
        assert done.code == 0, done.err

    def wheels(self, name: str, *requirements: str) -> Path:
        """A directory with what pip would install for ``requirements`` with the interpreter ``name``."""

        def make(place: Path) -> None:
            pip(python_of(name), "download", "-d", place, *requirements)

        return self.made(f"wheels-{name}-{'-'.join(requirements).translate(str.maketrans('<>=,', '____'))}", make)

    def empty(self, name: str) -> str:
        """The python of a virtual environment with nothing in it but a .pth file without effect.

        To read one Python 3.13 imports a codec, and every environment with anything installed tends to have one.
        """

        def make(place: Path) -> None:
            make_venv(name, place)
            (site_packages(place) / "nothing.pth").write_text("# nothing\n", encoding="utf-8")

        return str(self.made(f"empty-{name}", make) / "bin" / "python")

    def installed(self, name: str) -> str:
        """The python of a virtual environment with our wheel, and wrapt, installed by pip."""

        def make(place: Path) -> None:
            make_venv(name, place)
            self.install(name, place, self.wheel())

        return str(self.made(f"installed-{name}", make) / "bin" / "python")

    def without_wrapt(self, name: str) -> str:
        """The same without wrapt."""

        def make(place: Path) -> None:
            make_venv(name, place)
            self.install(name, place, "--no-deps", self.wheel())

        return str(self.made(f"without-wrapt-{name}", make) / "bin" / "python")

    def target(self, name: str, version: str | None = None) -> Path:
        """What ``pip install --target`` makes of our wheel, wrapt included."""
        return self.made(
            f"target-{name}-{version or 'current'}",
            lambda place: self.install(name, python_of(name), self.wheel(version), "--target", place),
        )

    def install(self, name: str, where: str | Path, *what: str | Path, env: Mapping[str, str] | None = None) -> None:
        """pip install into the interpreter or virtual environment ``where``, from the wheels of this session."""
        python = where if isinstance(where, str) else where / "bin" / "python"
        found = self.wheels(name, WRAPT)
        pip(python, "install", "--no-index", "--find-links", found, *what, env=env)


def broken(directory: Path, module: str, text: str) -> Path:
    """A directory for PYTHONPATH with our package, one module of it replaced by ``text``."""
    package = directory / "sglang_dsv4_hotfix"
    shutil.copytree(REPOSITORY / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / f"{module}.py").write_text(text, encoding="utf-8")
    return directory


def copy_sources(destination: Path, version: str | None = None) -> Path:
    """What the wheel is built from, with another version number if one is given."""
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    for path in REPOSITORY.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, destination)
    package = destination / "sglang_dsv4_hotfix"
    shutil.copytree(REPOSITORY / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    if version is not None:
        init = package / "__init__.py"
        text, count = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', init.read_text("utf-8"))
        assert count == 1
        init.write_text(text, "utf-8")
    return destination


def python_of(name: str) -> str:
    found = interpreters.find(name)
    if found is None:
        pytest.skip(f"there is no {name} Python on this machine: not tested with it")
    return found


def make_venv(name: str, place: Path, *options: str) -> None:
    done = run([python_of(name), "-m", "venv", "--without-pip", *options, place])
    assert done.code == 0, done.err


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def pip(python: str | Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Runs pip for ``python``, which need not have one."""
    command, *rest = arguments
    own = ("--python", python) if str(python) != sys.executable else ()
    return tool(sys.executable, "-m", "pip", *own, command, "-q", "--no-input", *rest, env=env)


def look(
    python: str | Path | list[str | Path], *arguments: str | Path, toggle: str | None = "1", **env: str | Path
) -> Report:
    """Runs probe_start.py with ``python`` (a list: a command with options) and the variables of ``env`` alone."""
    command = python if isinstance(python, list) else [python]
    variables = {name: str(value) for name, value in env.items()}
    if toggle is not None:
        variables[TOGGLE] = toggle
    ended = run([*command, PROBE, *arguments], env=variables)
    assert ended.code == 0, f"exit code {ended.code}\n{ended.out}{ended.err}"
    assert ended.out.count("\n") == 1, f"something else is on stdout:\n{ended.out}"
    return Report(ended, json.loads(ended.out))
