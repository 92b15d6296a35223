"""Fixtures of the tests of ``check``."""

from __future__ import annotations

import os
from pathlib import Path

import environments
import pytest
from installations import Made, copy_of


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    base = tmp_path_factory.getbasetemp()
    # With pytest-xdist every worker has its own directory below the session's.
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "check"
    directory.mkdir(exist_ok=True)
    return Made(directory)


@pytest.fixture(scope="session")
def sglang() -> Path:
    """The release that anyone can reproduce the lost state on; it has the plugin framework."""
    return environments.release_directory("0.5.11")


@pytest.fixture
def editable_sglang(tmp_path: Path) -> Path:
    """A part of that release which the test may edit."""
    return copy_of("0.5.11", tmp_path / "sglang-copy")
