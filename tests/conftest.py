"""Options that all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# For `import environments`, whatever import mode pytest is told to use.
sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--release", help="run only the tests of this SGLang release, for example 0.5.16")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--release")
    if wanted is None:
        return
    # By parameter, not with -k: the text "0.5.1" is in the name of every test of 0.5.10 to 0.5.19.
    kept = [item for item in items if isinstance(item, pytest.Function) and _release(item) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _release(item: pytest.Function) -> object:
    return item.callspec.params.get("release") if hasattr(item, "callspec") else None
