"""Fixtures of the tests of ``check``."""

from __future__ import annotations

from pathlib import Path

import environments
import pytest
from installations import Made, copy_of
from shared import session_directory


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(session_directory(tmp_path_factory, "check"))


@pytest.fixture(scope="session")
def sglang() -> Path:
    """The release that anyone can reproduce the lost state on; it has the plugin framework."""
    return environments.release_directory("0.5.11")


@pytest.fixture
def editable_sglang(tmp_path: Path) -> Path:
    """A part of that release which the test may edit."""
    return copy_of("0.5.11", tmp_path / "sglang-copy")
