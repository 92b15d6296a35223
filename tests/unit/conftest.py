"""The wrappers on the managers of builds.py, put on and taken off as the hook does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from builds import EarlyManager, ListManager, Poll, ScalarManager, StageManager

from sglang_dsv4_hotfix import hook


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``patched(manager class, toggle)`` runs the hook on a module that holds this class."""

    def patch(manager: type, toggle: str = "dispatch,stride,status") -> None:
        monkeypatch.setenv("SGLANG_DSV4_HOTFIX", toggle)
        hook._reverted = False
        conn = ModuleType("conn")
        conn.MooncakeKVManager = manager  # type: ignore[attr-defined]
        conn.KVPoll = Poll  # type: ignore[attr-defined]
        hook.on_import(conn)

    yield patch
    hook.revert()
    for manager in (EarlyManager, StageManager, ScalarManager, ListManager):
        wrapped = [name for name, value in vars(manager).items() if type(value).__name__ == "FunctionWrapper"]
        assert not wrapped
