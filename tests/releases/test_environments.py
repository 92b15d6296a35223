"""What environments.py promises: a build counts once it is whole, and happens once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import environments
import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGLANG_DSV4_HOTFIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_an_interrupted_build_left_is_thrown_away(cache: Path) -> None:
    def interrupted(directory: Path) -> None:
        directory.mkdir()
        (directory / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environments._built("thing", "key", interrupted)
    directory = environments._built("thing", "key", lambda directory: directory.mkdir())

    assert directory.parent == cache
    assert [path.name for path in directory.iterdir()] == ["complete"]


def test_two_builders_at_once_build_once(cache: Path) -> None:
    built = []

    def slow(directory: Path) -> None:
        built.append(directory)
        time.sleep(0.2)
        directory.mkdir()

    # Each opens the lock file for itself, as two processes do.
    threads = [threading.Thread(target=environments._built, args=("thing", "key", slow)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(built) == 1


def test_variables_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DSV4_HOTFIX", "0")
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = environments.Environment("0.5.11", "python", tmp_path / "site", tmp_path / "overlay")

    off, on = environment.env(), environment.env("stride", tmp_path / "first")

    assert "SGLANG_DSV4_HOTFIX" not in off
    assert on["SGLANG_DSV4_HOTFIX"] == "stride"
    assert "SGLANG_PLUGINS" not in on
    assert "PYTHONDONTWRITEBYTECODE" not in on
    assert off["PYTHONPATH"] == f"{tmp_path}/site:{tmp_path}/overlay"
    assert on["PYTHONPATH"] == f"{tmp_path}/first:{tmp_path}/site:{tmp_path}/overlay"


def test_unknown_release() -> None:
    with pytest.raises(LookupError, match=r"no row for SGLang 0\.5\.99"):
        environments.environment_for("0.5.99")
