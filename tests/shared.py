"""What several test directories need: things made once a session, releases as parameters, releases edited."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import environments
import pytest

CONN_PATH = Path("sglang/srt/disaggregation/mooncake/conn.py")

#: Edits for ``edited_release`` that make of 0.5.11 what others made of it: #24878, and a sender of a fork's own, which
#: compares the two sides' item lengths.
UPSTREAM_FIX = ('elif state_type in ["swa", "nsa"]:', 'elif state_type in ["swa", "nsa", "dsv4"]:')
OWN_SENDER = (
    (
        "    def _send_mamba_state(\n",
        "    def _send_dsv4_state(self, req, indices, pointers, executor, registration):\n"
        "        assert self.kv_args.state_item_lens == registration.dst_state_item_lens\n"
        "        return self._send_kvcache_generic(\n"
        "            mooncake_session_id=req.mooncake_session_id,\n"
        "            src_data_ptrs=self.kv_args.state_data_ptrs,\n"
        "            dst_data_ptrs=pointers,\n"
        "            item_lens=self.kv_args.state_item_lens,\n"
        "            prefill_data_indices=np.array(indices, dtype=np.int32),\n"
        "            dst_data_indices=np.array(req.dst_state_indices, dtype=np.int32),\n"
        "            executor=executor,\n"
        "        )\n\n"
        "    def _send_mamba_state(\n",
    ),
    (
        'elif state_type in ["swa", "nsa"]:',
        'elif state_type == "dsv4":\n'
        "            return self._send_dsv4_state(\n"
        "                req, prefill_state_indices, dst_state_data_ptrs, executor, target_rank_registration_info\n"
        "            )\n"
        '        elif state_type in ["swa", "nsa"]:',
    ),
)


def edited_release(site: Path, tree: Path, *edits: tuple[str, str]) -> Path:
    """Makes ``tree``: the release installed at ``site`` with conn.py edited, everything else linked to it."""
    here, there = tree, site
    for part in CONN_PATH.parts:
        here.mkdir()
        for entry in there.iterdir():
            if entry.name not in (part, "__pycache__"):
                (here / entry.name).symlink_to(entry)
        here, there = here / part, there / part
    text = there.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, f"{there} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    here.write_text(text, encoding="utf-8")
    return tree


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


def tool(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a command that has to succeed, without the variables that configure this Python; returns its stdout."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | dict(env or {})
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, env=variables, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


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
