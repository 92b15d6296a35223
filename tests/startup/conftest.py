"""Fixtures of the start-up tests."""

from __future__ import annotations

from pathlib import Path

import interpreters
import pytest
import standin_sglang
from laboratory import Lab, python_of
from shared import session_directory


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(session_directory(tmp_path_factory, "startup"))


@pytest.fixture(params=interpreters.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Each interpreter's name in turn; a skip says which are not on this machine."""
    python_of(request.param)
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def tree(lab: Lab) -> Path:
    """The stand-in for SGLang."""
    return lab.made("tree", lambda place: standin_sglang.write(place))
