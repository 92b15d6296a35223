"""The command's answer as a whole: exit codes, the JSON's shape, the text, and finding an SGLang."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import environments
import pytest
from installations import CONN, TOGGLE, Made, check, python_of, site_packages

from sglang_dsv4_hotfix import __version__, toggle

#: A build with nothing left to do: it sends by components, compares lengths, uses the value, contains exceptions.
RETIRED = """
class MooncakeKVManager:
    def _send_kvcache_generic(self, session, item_lens, dst_item_lens):
        return 0

    def send_aux(self, req, prefill_aux_index, dst_aux_ptrs):
        return 0

    def maybe_send_extra(self, req, prefill_state_indices, executor, target_rank_registration_info=None):
        return 0

    def transfer_worker(self, requests):
        for req in requests:
            try:
                if self.maybe_send_extra(req, [0], None) != 0 or self.send_aux(req, 0, []) != 0:
                    req.failed = True
            except Exception:
                HANDLER


class MooncakeKVSender:
    pass
"""


@pytest.fixture
def python(made: Made) -> Path:
    return python_of(made.venv())


def retired(place: Path, handler: str = "req.failed = True") -> Path:
    (place / CONN).parent.mkdir(parents=True)
    (place / CONN).write_text(RETIRED.replace("HANDLER", handler), encoding="utf-8")
    return place


def test_json(python: Path, sglang: Path) -> None:
    found = check(python, "--json", "--sglang", sglang).data

    assert list(found) == [
        "package",
        "sglang",
        "toggle",
        "ways",
        "active",
        "fixes",
        "obstacles",
        "hazards",
        "conclusion",
        "exit_code",
    ]
    assert found["package"] == __version__
    assert set(found["sglang"]) == {"version", "metadata_version", "path", "conn", "has_model"}
    assert found["toggle"] == {"value": None, "enabled": []}
    assert found["active"] is False
    assert list(found["fixes"]) == list(toggle.FIXES)
    assert all(set(fix) == {"verdict", "observation", "to_do"} for fix in found["fixes"].values())
    assert all(set(way) == {"name", "works", "detail"} for way in found["ways"])
    assert [set(hazard) for hazard in found["hazards"]] == [{"name", "when", "what", "do", "found", "releases"}]


def test_affected_and_off(python: Path, sglang: Path) -> None:
    checked = check(python, "--sglang", sglang)

    assert checked.code == 1
    assert checked.err == ""
    assert checked.out.endswith(
        "Verdict: Affected (dispatch, stride, status). The hotfix is not active. Set SGLANG_DSV4_HOTFIX=1 in\n"
        "the environment of the prefill and decode servers and restart them.\n"
    )


def test_whether_the_build_has_the_model(python: Path, editable_sglang: Path) -> None:
    """0.5.11 has the transfer code without the model; a fork may keep it elsewhere, so that is no verdict."""
    without = check(python, "--sglang", editable_sglang)
    model = editable_sglang / "sglang" / "srt" / "models" / "deepseek_v4.py"
    model.parent.mkdir()
    model.touch()
    with_model = check(python, "--sglang", editable_sglang)

    assert "without that model dispatch and stride do not matter" in " ".join(without.out.split())
    assert "DeepSeek-V4" not in with_model.out
    assert without.code == with_model.code == 1


def test_a_reader_that_has_seen_enough(python: Path, sglang: Path) -> None:
    """As in "| head": no traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [python, "-m", "sglang_dsv4_hotfix", "check", "--sglang", sglang]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, cwd="/")
    os.close(write)

    assert done.stderr == ""


@pytest.mark.parametrize("value", ["1", "dispatch,stride,status", " Status , stride,dispatch "])
def test_affected_and_on(python: Path, sglang: Path, value: str) -> None:
    checked = check(python, "--json", "--sglang", sglang, **{TOGGLE: value})

    assert checked.code == 0
    assert checked.data["active"] is True
    assert checked.data["conclusion"] == (
        "Affected (dispatch, stride, status). The hotfix is active and mends it in every process that is started like "
        "this one."
    )


def test_affected_and_partly_on(python: Path, sglang: Path) -> None:
    checked = check(python, "--json", "--sglang", sglang, **{TOGGLE: "dispatch"})

    assert checked.code == 1
    assert checked.data["active"] is True
    assert "SGLANG_DSV4_HOTFIX=dispatch leaves out stride, status" in checked.data["conclusion"]


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_switched_off(python: Path, sglang: Path, value: str) -> None:
    checked = check(python, "--json", "--sglang", sglang, **{TOGGLE: value})

    assert checked.code == 1
    assert checked.data["toggle"] == {"value": value, "enabled": []}


@pytest.mark.parametrize("value", ["0", "1"])
def test_nothing_left(python: Path, tmp_path: Path, value: str) -> None:
    checked = check(python, "--sglang", retired(tmp_path), **{TOGGLE: value})

    assert checked.code == 0
    assert checked.out.endswith(
        "Verdict: Not affected: nothing left for this package to do on this build: remove it.\n"
    )


def test_exceptions_are_left(python: Path, tmp_path: Path) -> None:
    """The status fix is "fixed upstream" there, and is applied all the same: not a build without anything to do."""
    off = check(python, "--json", "--sglang", retired(tmp_path, handler="raise RuntimeError"))
    on = check(python, "--json", "--sglang", tmp_path, **{TOGGLE: "1"})

    assert off.code == 1
    assert off.data["fixes"]["status"]["verdict"] == "fixed upstream"
    assert off.data["fixes"]["status"]["to_do"] is True
    assert "an exception while it is sent still ends the transfer thread" in off.data["conclusion"]
    assert on.code == 0


def test_unrecognised(python: Path, tmp_path: Path) -> None:
    retired(tmp_path)
    text = (tmp_path / CONN).read_text(encoding="utf-8").replace("def maybe_send_extra", "def send_something_else")
    (tmp_path / CONN).write_text(text, encoding="utf-8")

    checked = check(python, "--json", "--sglang", tmp_path, **{TOGGLE: "1"})

    assert checked.code == 2
    assert checked.data["fixes"]["dispatch"] == {
        "verdict": "unrecognised",
        "observation": "MooncakeKVManager has no method maybe_send_extra",
        "to_do": False,
    }
    assert checked.data["conclusion"].startswith("Can't tell: dispatch, stride, status not recognised on this build")


def test_no_sglang(python: Path) -> None:
    checked = check(python, "--json")

    assert checked.code == 2
    assert set(checked.data["sglang"].values()) == {None}
    assert checked.data["fixes"] == {}
    assert checked.data["conclusion"].startswith("Can't tell: this Python (")
    assert "name one with --sglang PATH" in check(python).out


def test_path_without_sglang(python: Path, tmp_path: Path) -> None:
    checked = check(python, "--sglang", tmp_path)

    assert checked.code == 2
    assert f"there is no SGLang in {tmp_path}" in " ".join(checked.out.split())


def test_sglang_without_mooncake(python: Path, editable_sglang: Path) -> None:
    (editable_sglang / CONN).unlink()

    assert check(python, "--sglang", editable_sglang).code == 2


def test_the_ways_to_name_a_tree(python: Path, editable_sglang: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "python").mkdir(parents=True)
    (editable_sglang / "sglang").rename(checkout / "python" / "sglang")

    found = {
        check(python, "--json", "--sglang", path).data["sglang"]["path"]
        for path in (checkout, checkout / "python", checkout / "python" / "sglang")
    }

    assert found == {str(checkout / "python" / "sglang")}


def test_the_one_that_would_be_imported(python: Path, sglang: Path) -> None:
    found = check(python, "--json", PYTHONPATH=sglang).data

    assert found["sglang"]["path"] == str(sglang / "sglang")
    assert found["sglang"]["metadata_version"] == "0.5.11"


def test_editable_installation(made: Made, editable_sglang: Path, tmp_path: Path) -> None:
    """The package is elsewhere, by way of a finder; its metadata is in site-packages, and of another version."""
    venv = made.make_venv(tmp_path / "venv")
    site = site_packages(venv)
    (site / "editable_finder.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(editable_sglang)!r}]) if name == 'sglang' else None\n"
        "sys.meta_path.append(Finder)\n"
    )
    (site / "editable.pth").write_text("import editable_finder\n")
    (metadata,) = editable_sglang.glob("*.dist-info")
    moved = metadata.rename(site / "sglang-0.5.10.dist-info")
    (moved / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.10\n")

    checked = check(python_of(venv), "--json")
    text = check(python_of(venv))

    assert checked.data["sglang"]["path"] == str(editable_sglang / "sglang")
    assert checked.data["sglang"]["version"] == "0.5.11"
    assert checked.data["sglang"]["metadata_version"] == "0.5.10"
    assert checked.data["obstacles"] == []
    assert "(its files say 0.5.11, its metadata 0.5.10; go by the verdicts)" in text.out


@pytest.mark.parametrize("release", ["0.5.3.post3", "0.5.13", "0.5.20", "0.5.23"])
def test_text_fits(python: Path, release: str) -> None:
    out = check(python, "--sglang", environments.release_directory(release), PYTHONPATH="/").out

    # Only a path may be longer: it is there to be copied.
    assert [line for line in out.splitlines() if len(line) > 100 and "/" not in line] == []
    assert "\t" not in out
    for title in ("Fixes", "Verdict: "):
        assert f"\n{title}" in out


def test_command_line(made: Made, sglang: Path) -> None:
    """By its own name, with help, and with what it does not know."""
    command = made.venv() / "bin" / "sglang-dsv4-hotfix"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, "check", *arguments], env={}, capture_output=True, text=True, timeout=60)

    assert run("--sglang", str(sglang)).returncode == 1
    usage = run("--help")
    assert usage.returncode == 0
    assert (
        "Exit codes: 0 nothing to do, or the hotfix will do it; 1 affected and not active; 2 can't tell."
        in " ".join(usage.stdout.split())
    )
    assert run("--nonsense").returncode == 2
