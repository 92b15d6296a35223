"""Builds what a test needs to run one SGLang release, and keeps it between runs.

    python tests/environments.py 0.5.11     build the environment of one release, print where it is
    python tests/environments.py --all      build all of them, two at a time
    python tests/environments.py 0.5.11 --run -m module ...    run that release's python with these arguments

`environment_for(release)` is put together from four directories under SGLANG_DSV4_HOTFIX_CACHE (default
~/.cache/sglang_dsv4_hotfix), each named after a hash of what is in it, so that a change makes a new one:

    shared-*        virtual environment: torch, Mooncake, the rest of releases/requirements.txt, a torchvision stand-in
    sglang-*        one SGLang release, nothing else
    overlay-*       transformers and what follows its version, for the releases that want that version
    hotfix-*        small virtual environment: this package, as a wheel built from the sources as they are now; the
                    packages of shared-* follow on its path. Its python is the one to run: the package's .pth is read
                    there as in any installation, and a change of the sources doesn't disturb processes that run.

A directory counts once its `complete` file is there, which is written last; a build that was interrupted is thrown away
by the next. They are built in place, under a lock, because a virtual environment knows its own path.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
REQUIREMENTS = TESTS / "releases" / "requirements.txt"
TORCHVISION_STANDIN = TESTS / "standins" / "torchvision"

# The lock that this thread builds under, if any.
_held = threading.local()

# What would make a child process differ from machine to machine.
_NOT_INHERITED = ("PYTHON", "SGLANG_", "MC_", "MOONCAKE_", "VIRTUAL_ENV", "HF_")


@functools.cache
def table() -> dict[str, Any]:
    """releases/releases.json: "overlays" by transformers version, and "releases" by number."""
    with (TESTS / "releases" / "releases.json").open(encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


@dataclass(frozen=True)
class Environment:
    release: str
    python: str
    site: Path
    """The directory that holds this release: `site / "sglang"`."""
    overlay: Path

    def env(self, hotfix: str | None = None, *extra_path: str | Path) -> dict[str, str]:
        """Variables for a process of this release; `hotfix` is the toggle, `extra_path` comes before the release."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        variables["PYTHONPATH"] = os.pathsep.join(str(path) for path in (*extra_path, self.site, self.overlay))
        variables["MC_FORCE_TCP"] = "1"
        variables["SGLANG_HOST_IP"] = "127.0.0.1"
        variables["HF_HUB_OFFLINE"] = "1"
        # Two processes at a time on two cores; more threads only get into each other's way.
        variables["OMP_NUM_THREADS"] = "1"
        if hotfix is not None:
            variables["SGLANG_DSV4_HOTFIX"] = hotfix
        return variables


@functools.cache
def environment_for(release: str) -> Environment:
    """Builds what is missing. One test session stays with the sources as they were when it first asked."""
    row = table()["releases"].get(release)
    if row is None:
        raise LookupError(f"no row for SGLang {release} in releases.json; there are: {', '.join(table()['releases'])}")
    shared = _shared()
    return Environment(
        release=release,
        python=_python(_hotfix(shared)),
        site=_release(release, shared),
        overlay=_overlay(row["transformers"], shared),
    )


def release_directory(release: str) -> Path:
    """The directory that holds this release, for those who only read it."""
    return _release(release, _shared())


def supported(release: str) -> bool:
    """Whether the interpreter that runs now is recent enough for this release."""
    needed = table()["releases"][release].get("python", "3.10")
    return sys.version_info[:2] >= tuple(int(part) for part in needed.split("."))


def cache() -> Path:
    chosen = os.environ.get("SGLANG_DSV4_HOTFIX_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang_dsv4_hotfix"


@functools.cache
def _shared() -> Path:
    key = _hash(REQUIREMENTS.read_bytes(), *_contents(TORCHVISION_STANDIN))

    def build(directory: Path) -> None:
        _run(sys.executable, "-m", "venv", directory)
        # pip first: the requirements want one that knows --python, and the one that venv brings may be years old.
        _pip(directory, "install", "pip==26.3")
        _pip(directory, "install", "-r", REQUIREMENTS)
        _pip(directory, "install", "--no-deps", _wheel(directory, TORCHVISION_STANDIN, directory / "wheels"))
        cuda = _run(_python(directory), "-c", "import torch; print(torch.version.cuda or '')").strip()
        if cuda:
            _say(f"torch came as a CUDA {cuda} build, which works but is large; see the head of {REQUIREMENTS.name}")

    return _built("shared", key, build)


def _release(release: str, shared: Path) -> Path:
    def build(directory: Path) -> None:
        # From 0.5.11 the wheels are tagged for CPython 3.12, for the sake of an extension that none of this imports.
        target = ("--python-version", "3.12", "--only-binary", ":all:")
        _pip(shared, "install", "--no-deps", *target, "--target", directory, f"sglang=={release}")

    return _built(f"sglang-{release}", _hash(release.encode()), build)


def _overlay(transformers: str, shared: Path) -> Path:
    requirements = table()["overlays"][transformers]

    def build(directory: Path) -> None:
        _pip(shared, "install", "--no-deps", "--target", directory, *requirements)

    return _built(f"overlay-{transformers}", _hash(*(line.encode() for line in requirements)), build)


@functools.cache
def _hotfix(shared: Path) -> Path:
    def build(directory: Path) -> None:
        _run(sys.executable, "-m", "venv", "--without-pip", directory)
        wheel = _wheel(shared, REPOSITORY, directory / "wheels")
        _run(_python(shared), "-m", "pip", "--python", _python(directory), "install", "-q", "--no-deps", wheel)
        (_site_packages(directory) / "shared.pth").write_text(f"{_site_packages(shared)}\n", encoding="utf-8")

    sources = (path for path in REPOSITORY.iterdir() if path.is_file() and not path.name.startswith("."))
    parts = [part for path in sorted(sources) for part in (path.name.encode(), path.read_bytes())]
    return _built("hotfix", _hash(shared.name.encode(), *parts, *_contents(REPOSITORY / "sglang_dsv4_hotfix")), build)


def _built(name: str, key: str, build: Callable[[Path], None]) -> Path:
    directory = cache() / f"{name}-{sysconfig.get_python_version()}-{key}"
    complete = directory / "complete"
    if complete.exists():
        return directory
    with _locked(directory.with_name(f"{directory.name}.lock")):
        if not complete.exists():
            shutil.rmtree(directory, ignore_errors=True)
            _say(f"building {directory}")
            build(directory)
            complete.touch()
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.lock = file.fileno()
        try:
            yield
        finally:
            _held.lock = None


def _wheel(environment: Path, source: Path, destination: Path) -> Path:
    _pip(environment, "wheel", "--no-deps", "-w", destination, source)
    (wheel,) = destination.glob("*.whl")
    return wheel


def _pip(environment: Path, command: str, *arguments: str | Path) -> None:
    _run(_python(environment), "-m", "pip", command, "-q", "--no-input", "--disable-pip-version-check", *arguments)


def _run(*command: str | Path) -> str:
    # From an empty directory and without the caller's PYTHON*, so that only the environment's own packages are seen.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    lock = getattr(_held, "lock", None)
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=empty,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # Should this process be killed, pip goes on for a while, and the next builder has to wait for it.
            pass_fds=() if lock is None else (lock,),
        )
    if done.returncode != 0:
        line = " ".join(str(part) for part in command)
        raise RuntimeError(f"{line}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def _site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def _contents(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(directory)).encode()
            yield path.read_bytes()


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in (sys.implementation.cache_tag.encode(), platform.machine().encode(), *parts):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:12]


def _say(line: str) -> None:
    print(f"environments: {line}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the environments of SGLang releases.")
    parser.add_argument("release", nargs="*", help="for example 0.5.11")
    parser.add_argument("--all", action="store_true", help="every release of the table")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="run the release's python")
    arguments = parser.parse_args()
    if arguments.run is not None:
        if len(arguments.release) != 1:
            parser.error("--run wants one release before it")
        environment = environment_for(arguments.release[0])
        os.execve(environment.python, [environment.python, *arguments.run], environment.env())
    releases = arguments.release
    if arguments.all:
        releases = [release for release in table()["releases"] if supported(release)]
    if not releases:
        parser.error("name a release, or --all")
    _hotfix(_shared())
    with ThreadPoolExecutor(2) as pool:
        for environment in pool.map(environment_for, releases):
            print(environment.release, environment.python, environment.site, environment.overlay, flush=True)


if __name__ == "__main__":
    main()
