"""The real SGLang 0.5.11: judged by what it does where its version says something else, beside SGLang's own hooks, and
reached by SGLang's own plugin loader."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shared
from environments import Environment, environment_for
from interpreters import run

RELEASE = "0.5.11"
PROBE = Path(__file__).with_name("probe_real.py")
PATCHED = {"maybe_send_extra": 1, "send_aux": 1}


@pytest.fixture(scope="module")
def environment() -> Environment:
    return environment_for(RELEASE)


def probe(
    environment: Environment,
    *arguments: str,
    toggle: str | None = "1",
    path: tuple[Path, ...] = (),
    python: Path | None = None,
    **variables: str,
) -> dict[str, Any]:
    ended = run(
        [python or environment.python, PROBE, *arguments], env=environment.env(toggle, *path) | variables, timeout=300
    )
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
    return report


@pytest.fixture
def edited(environment: Environment, tmp_path: Path) -> Callable[..., Path]:
    def make(*edits: tuple[str, str]) -> Path:
        return shared.edited_release(environment.site, tmp_path / "tree", *edits)

    return make


def test_as_released(environment: Environment) -> None:
    on, off = probe(environment), probe(environment, toggle=None)

    assert on["verdicts"]["dispatch"] == "needed"
    assert on["wrappers"] == PATCHED
    assert on["sent"] == ["session"]
    summary, transfer = on["log"]
    assert summary[0] == transfer[0] == "INFO"
    assert summary[1].startswith("sglang_dsv4_hotfix ")
    assert f" on SGLang {RELEASE}: dispatch: needed, patched; " in summary[1]
    assert transfer[1].startswith("sglang_dsv4_hotfix: first changed transfer: room 1: state sent as ")
    assert off["wrappers"] == {"maybe_send_extra": 0, "send_aux": 0}
    assert off["sent"] == []
    assert off["log"] == []


def test_upstream_fix_under_this_version(environment: Environment, edited: Callable[..., Path]) -> None:
    tree = edited(shared.UPSTREAM_FIX)

    report = probe(environment, toggle="dispatch", path=(tree,))

    assert report["conn"].startswith(str(tree))
    assert report["status"]["sglang"]["version"] == RELEASE
    assert report["verdicts"] == {"dispatch": "fixed upstream"}
    assert report["layers"] == 0
    assert report["sent"] == ["session"]
    assert [level for level, _ in report["log"]] == ["INFO"]


def test_own_sender_under_this_version(environment: Environment, edited: Callable[..., Path]) -> None:
    tree = edited(*shared.OWN_SENDER)

    report = probe(environment, toggle="dispatch", path=(tree,))

    assert report["conn"].startswith(str(tree))
    assert report["status"]["sglang"]["version"] == RELEASE
    assert report["verdicts"] == {"dispatch": "fixed upstream"}
    assert "_send_dsv4_state" in report["status"]["fixes"]["dispatch"]["observation"]
    assert report["layers"] == 0
    assert report["sent"] == ["session"]


def test_a_number_that_promises_the_fix(environment: Environment, edited: Callable[..., Path]) -> None:
    """The other way round: the method is as broken as ever under a version that claims better."""
    tree = edited(('elif state_type in ["swa", "nsa"]:', 'elif state_type in ["nsa"]:'))
    lie = "import types; sys.modules['sglang.version'] = types.SimpleNamespace(__version__='0.5.99')"

    report = probe(environment, "--before", lie, toggle="dispatch", path=(tree,))

    assert report["status"]["sglang"]["version"] == "0.5.99"
    assert report["verdicts"] == {"dispatch": "needed"}
    assert report["wrappers"] == PATCHED
    assert report["sent"] == ["session"]


HOOK = """if True:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    def around(original, *args, **kwargs):
        found["around"] = found.get("around", 0) + 1
        return original(*args, **kwargs)
    HookRegistry.register(f"{TARGET}.MooncakeKVManager.maybe_send_extra", around, HookType.AROUND)
"""


@pytest.mark.parametrize("order", ["theirs on top", "ours on top"])
def test_around_hook_of_sglangs_registry(environment: Environment, tmp_path: Path, order: str) -> None:
    apply = "    HookRegistry.apply_hooks()\n"
    if order == "theirs on top":
        arguments, python = ("--after", HOOK + apply), None
    else:
        # Without our .pth file: SGLang's hook is there before we are, the plugin entry point then wraps it.
        arguments = ("--after", HOOK + apply + "    import sglang_dsv4_hotfix\n    sglang_dsv4_hotfix.activate()\n")
        python = without_pth(environment, tmp_path)

    report = probe(environment, *arguments, python=python)

    assert report["verdicts"]["dispatch"] == "needed"
    assert report["wrappers"]["maybe_send_extra"] == 1
    assert report["layers"] == 2
    assert report["found"] == {"around": 1}
    assert report["sent"] == ["session"]


LOAD_PLUGINS = "from sglang.srt.plugins import load_plugins\nload_plugins()\n"


@pytest.mark.parametrize(
    ("pth", "allowed", "moment", "patched"),
    [
        pytest.param(True, "somebody_else", "--before", True, id="left out, with the .pth file"),
        pytest.param(False, "somebody_else", "--before", False, id="left out, without it"),
        pytest.param(False, None, "--before", True, id="before conn.py is imported"),
        pytest.param(False, None, "--after", True, id="after conn.py was imported"),
        pytest.param(True, "somebody_else, sglang_dsv4_hotfix", "--after", True, id="listed, with the .pth file"),
    ],
)
def test_sglangs_plugin_loader(
    environment: Environment, tmp_path: Path, pth: bool, allowed: str | None, moment: str, patched: bool
) -> None:
    """SGLANG_PLUGINS may leave us out, which only the .pth file does not mind."""
    python = None if pth else without_pth(environment, tmp_path)
    variables = {} if allowed is None else {"SGLANG_PLUGINS": allowed}

    report = probe(environment, moment, LOAD_PLUGINS, python=python, **variables)

    if patched:
        assert report["wrappers"] == PATCHED
        assert report["sent"] == ["session"]
        assert len(report["log"]) == 2
    else:
        assert report["wrappers"] == {"maybe_send_extra": 0, "send_aux": 0}
        assert report["sent"] == []


def test_plugin_is_off_with_the_toggle(environment: Environment, tmp_path: Path) -> None:
    report = probe(environment, "--before", LOAD_PLUGINS, toggle=None, python=without_pth(environment, tmp_path))

    assert report["layers"] == 0
    assert report["log"] == []


def without_pth(environment: Environment, tmp_path: Path) -> Path:
    """The same environment without our .pth file: its python."""
    venv = tmp_path / "venv"
    shutil.copytree(Path(environment.python).parents[1], venv, symlinks=True)
    (file,) = venv.glob("lib/*/site-packages/sglang_dsv4_hotfix.pth")
    file.unlink()
    assert os.access(venv / "bin" / "python", os.X_OK)
    return venv / "bin" / "python"
