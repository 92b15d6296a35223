"""What several test directories need: things made once a session, and releases as parameters."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import environments
import pytest


class Once:
    """Makes things once a session; ``directory`` is common to pytest's workers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """The place that ``make`` was called with, by this worker or by another one."""
        place = self.directory / name
        done = place.with_name(f"{name}.done")
        with place.with_name(f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(place, ignore_errors=True)
                make(place)
                done.touch()
        return place


def session_directory(factory: pytest.TempPathFactory, name: str) -> Path:
    """A directory for the whole session: with pytest-xdist every worker has one of its own below that."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    directory.mkdir(exist_ok=True)
    return directory


def releases(chosen: Iterable[str], together: bool = False, **options: Any) -> pytest.MarkDecorator:
    """Parametrizes ``release``; those that want a later Python than this one are skipped, and say so.

    ``together``: all tests of a release run in one of pytest's workers, which share what a release's tests start.
    """

    def marks(release: str) -> list[pytest.MarkDecorator]:
        reason = f"SGLang {release} needs a later Python than this one"
        late = pytest.mark.skipif(not environments.supported(release), reason=reason)
        return [late, pytest.mark.xdist_group(release)] if together else [late]

    parameters = [pytest.param(release, marks=marks(release)) for release in chosen]
    return pytest.mark.parametrize("release", parameters, **options)
