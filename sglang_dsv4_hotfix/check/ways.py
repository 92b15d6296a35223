"""Which way in runs in an interpreter that is started like this one, and what stands in the way.

Three ways lead to ``activate()``: the ``.pth`` file in a site directory, ``sitecustomize.py`` on PYTHONPATH, and
SGLang's plugin framework. The first two run in every interpreter; the third not in all of SGLang's processes. That is
worked out from files and flags. With the toggle on it is also seen: activate() has then run in this very interpreter.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path

from .. import _is_waiting, hook, toggle
from .findings import Obstacle, Way

_NAME = "sglang_dsv4_hotfix"

#: What tells our sitecustomize.py from others; the same text as _MARK in that file.
SITECUSTOMIZE_MARK = b"sglang_dsv4_hotfix for directories on PYTHONPATH"

_PLUGINS = "SGLANG_PLUGINS"
_PLUGIN_GROUP = "sglang.srt.plugins"

_USE_PYTHONPATH = "put what `python -m sglang_dsv4_hotfix path` prints on PYTHONPATH"


@dataclass(frozen=True)
class Interpreter:
    """This interpreter as site found it at its start."""

    package: Path
    """The directory of this package."""
    has_plugins: bool | None
    """Whether the SGLang that is judged has the plugin framework; None without an SGLang."""

    @property
    def home(self) -> Path:
        return self.package.parent

    @cached_property
    def path(self) -> list[str]:
        """sys.path without the script's own directory, which was not there yet when sitecustomize was imported."""
        own = 0 if sys.flags.isolated or getattr(sys.flags, "safe_path", False) else 1
        return [os.path.abspath(entry) for entry in sys.path[own:] if entry]

    @cached_property
    def site_directories(self) -> list[str]:
        """The directories whose .pth files were read."""
        if sys.flags.no_site:
            return []
        import site

        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        return [*site.getsitepackages(), *user]

    @cached_property
    def ways(self) -> list[Way]:
        ways = [self._pth, self._sitecustomize, self._plugin]
        if self.was_activated and not any(way.works for way in ways[:2]):
            ways.append(Way("other", True, "activated at this interpreter's start, by a way that is not known here"))
        return ways

    @property
    def starts(self) -> bool:
        """Whether a way that runs in every interpreter works."""
        return any(way.works for way in self.ways if way.name != "plugin")

    @property
    def was_activated(self) -> bool:
        """Whether activate() has started to wait for SGLang in this very interpreter."""
        return _is_waiting()

    @cached_property
    def _pth(self) -> Way:
        for directory in self.site_directories:
            for suffix in (".pth", ".start") if sys.version_info >= (3, 15) else (".pth",):
                if _activates(Path(directory, _NAME + suffix)):
                    return Way("pth", True, f"{_NAME}{suffix} in {directory}")
        return Way("pth", False, f"no {_NAME}.pth is read")

    @cached_property
    def sitecustomizes(self) -> list[str]:
        """Every sitecustomize on the path, in order; Python runs the first."""
        specs = [PathFinder.find_spec("sitecustomize", [entry]) for entry in dict.fromkeys(self.path)]
        return [spec.origin for spec in specs if spec is not None and spec.origin]

    @cached_property
    def _sitecustomize(self) -> Way:
        if sys.flags.no_site:
            return Way("sitecustomize", False, "sitecustomize is not imported with -S")
        ours = [file for file in self.sitecustomizes if _is_ours(file)]
        if not ours:
            return Way("sitecustomize", False, "ours is not on the path")
        if ours[0] != self.sitecustomizes[0]:
            return Way("sitecustomize", False, f"{ours[0]} comes after {self.sitecustomizes[0]}")
        return Way("sitecustomize", True, ours[0])

    @cached_property
    def _plugin(self) -> Way:
        if not self.has_plugins:
            return Way("plugin", False, "this SGLang has no plugin framework")
        if not any(_entry_point(directory) for directory in map(Path, dict.fromkeys(self.path))):
            return Way("plugin", False, "no metadata of this package with its entry point is on the path")
        if self._left_out:
            return Way("plugin", False, f"{_PLUGINS}={os.environ[_PLUGINS]} leaves {_NAME} out")
        return Way("plugin", True, "SGLang's plugin framework")

    @property
    def _left_out(self) -> bool:
        allowed = {name.strip() for name in os.environ.get(_PLUGINS, "").split(",") if name.strip()}
        return bool(allowed) and _NAME not in allowed

    def obstacles(self) -> Iterator[Obstacle]:
        yield from self._anyway()
        if not self.starts:
            yield from self._not_started()
        elif self._toggle_is_on and not self.was_activated:
            yield Obstacle(
                "not-activated",
                f"a way in is there ({next(way.detail for way in self.ways if way.works)}), but this interpreter has "
                "started without the hotfix",
                "look at what this command printed before; reinstall this package",
                blocks=True,
            )

    def _anyway(self) -> Iterator[Obstacle]:
        """What is an obstacle whichever way is taken."""
        value = os.environ.get(toggle.VARIABLE)
        try:
            toggle.parse(value)
        except ValueError as unknown:
            yield Obstacle(
                "toggle-unknown",
                f"{toggle.VARIABLE}={value!r} is not understood (unknown: {unknown}): the hotfix stays off",
                f"use 1, 0, or a comma-separated list of: {', '.join(toggle.FIXES)}",
                blocks=True,
            )
        unusable = hook.wrapt_problem()
        if unusable is not None:
            found, _, do = unusable.partition("; SGLang runs unpatched. ")
            yield Obstacle("wrapt", found, do, blocks=True)
        others = [directory for directory in self._copies() if directory != self.package]
        if others:
            listed = ", ".join(f"{directory} ({_version(directory)})" for directory in others)
            yield Obstacle(
                "installed-twice",
                f"{self.package} ({_version(self.package)}) is in use, and there is also {listed}",
                "remove one of them: which one is used depends on the order of the path",
            )

    def _not_started(self) -> Iterator[Obstacle]:
        """Why neither the .pth file nor sitecustomize runs."""
        if sys.flags.no_site:
            yield Obstacle(
                "no-site",
                "this Python runs with -S: neither .pth files nor sitecustomize are read",
                "start the servers without -S",
            )
            return
        yield from self._user_site()
        yield from self._pythonpath()
        if Path(self.home, f"{_NAME}.pth").is_file():
            if str(self.home) not in self.site_directories:
                yield Obstacle(
                    "pth-not-read",
                    f"{self.home} is not a site directory: Python does not read {_NAME}.pth there",
                    f"{_USE_PYTHONPATH} (its sitecustomize.py stands in for the .pth file)",
                )
        elif str(self.home) in self.site_directories:
            yield Obstacle(
                "pth-missing",
                f"there is no {_NAME}.pth in {self.home}, beside this package",
                "reinstall this package with pip: copying its directory alone is not enough",
            )
        else:
            yield Obstacle(
                "not-installed",
                f"{self.home} is a directory on the path, without a sitecustomize.py of this package in front",
                f"{_USE_PYTHONPATH}, or install this package with pip",
            )
        if self._left_out and self.has_plugins:
            yield Obstacle(
                "plugins-left-out",
                f"{_PLUGINS}={os.environ[_PLUGINS]} leaves {_NAME} out, and nothing else activates it",
                f"add {_NAME} to {_PLUGINS}",
            )
        elif self._plugin.works:
            yield Obstacle(
                "plugin-only",
                "only SGLang's plugin framework activates the hotfix here, and some processes (Ray's scheduler actors) "
                "never load plugins",
                f"install this package with pip where .pth files are read, or {_USE_PYTHONPATH}",
            )

    def _user_site(self) -> Iterator[Obstacle]:
        import site

        user = site.getusersitepackages()
        if not site.ENABLE_USER_SITE and Path(user, f"{_NAME}.pth").is_file():
            flags = [flag for flag, is_set in (("-I", sys.flags.isolated), ("-s", sys.flags.no_user_site)) if is_set]
            why = (
                f"with {flags[0]} or PYTHONNOUSERSITE" if flags else "in a virtual environment without system packages"
            )
            yield Obstacle(
                "user-site-disabled",
                f"this package is in the user site directory ({user}), which is not read {why}",
                "install it into the environment that SGLang is in, or start the servers without that flag",
            )

    def _pythonpath(self) -> Iterator[Obstacle]:
        if sys.flags.ignore_environment:
            entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
            if any(_is_ours(os.path.join(entry, "sitecustomize.py")) for entry in entries):
                yield Obstacle(
                    "pythonpath-ignored",
                    "our sitecustomize.py is on PYTHONPATH, which Python ignores with -E and -I",
                    "start the servers without -E and -I, or install this package with pip",
                )
        hidden = [file for file in self.sitecustomizes[1:] if _is_ours(file)]
        if hidden:
            yield Obstacle(
                "sitecustomize-hidden",
                f"{self.sitecustomizes[0]} comes first and hides {hidden[0]}: Python imports one sitecustomize only",
                f"put {os.path.dirname(hidden[0])} in front on PYTHONPATH: ours runs the one that it shadows",
            )

    @property
    def _toggle_is_on(self) -> bool:
        try:
            return bool(toggle.parse(os.environ.get(toggle.VARIABLE)))
        except ValueError:
            return False

    def _copies(self) -> list[Path]:
        """Every directory of this package on the path, the one in use included."""
        found = [Path(entry, _NAME).resolve() for entry in dict.fromkeys(self.path)]
        return [directory for directory in dict.fromkeys(found) if (directory / "__init__.py").is_file()]


def _activates(file: Path) -> bool:
    text = _read(file)
    return any(_NAME.encode() in line and b"activate" in line for line in text.splitlines() if line[:1] != b"#")


def _is_ours(file: str) -> bool:
    return SITECUSTOMIZE_MARK in _read(Path(file))[:1024]


def _entry_point(directory: Path) -> bool:
    if not directory.is_dir():
        return False
    files = directory.glob(f"{_NAME}-*.dist-info/entry_points.txt")
    return any(f"[{_PLUGIN_GROUP}]".encode() in _read(file) for file in files)


def _version(package: Path) -> str:
    match = re.search(rb"""^__version__ = ["']([^"']+)""", _read(package / "__init__.py"), re.MULTILINE)
    return match[1].decode() if match else "unknown version"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
