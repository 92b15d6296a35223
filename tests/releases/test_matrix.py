"""Every PyPI release that has `maybe_send_extra`: its real `conn.py`, imported by a fresh interpreter that started as
an operator's does, with the .pth file of the installed wheel. The expectations are in releases.json."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import environments
from shared import releases

PROBE = Path(__file__).with_name("probe_conn.py")
RELEASES = environments.table()["releases"]
FIXES = ("dispatch", "stride", "status", "early_send")
# The fixes that correct what `maybe_send_extra` reads, or carry what became of it to `send_aux`: one wrapper on each
# method serves all three. The fourth sets a variable.
METHOD_FIXES = {"dispatch", "stride", "status"}
# What the build's own configuration says about the early send, by verdict.
EARLY_SEND = {"not applicable": None, "needed": False, "fixed upstream": True}
METHOD = "MooncakeKVManager.maybe_send_extra"
SEND_AUX = "MooncakeKVManager.send_aux"
# Wrapped too where `send_aux` does not always follow: up to 0.5.6.post2.
STATUS_REPORTERS = {"MooncakeKVManager.update_status", "MooncakeKVManager.sync_status_to_decode_endpoint"}

every_release = releases(RELEASES)


def probe(release: str, hotfix: str | None) -> tuple[dict[str, Any], str]:
    environment = environments.environment_for(release)
    done = subprocess.run(
        [environment.python, str(PROBE)],
        env=environment.env(hotfix),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *before, last = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(last)
    assert report["conn"].startswith(f"{environment.site}/")
    assert report["status"]["sglang"]["version"] == release
    # Without the paths in the warnings of others, which name the cache directory, and so us.
    return report, "\n".join([*before, done.stderr]).replace(str(environments.cache()), "")


@every_release
def test_toggle_on(release: str) -> None:
    row = RELEASES[release]

    report, output = probe(release, "1")

    assert report["status"]["sglang"]["conn"] == report["conn"]
    fixes = report["status"]["fixes"]
    assert {name: fix["verdict"] for name, fix in fixes.items()} == {name: row[name] for name in FIXES}, output
    assert [name for name in FIXES if fixes[name]["patched"]] == row["patched"]
    assert sorted(report["status"]["enabled"]) == sorted(FIXES)
    # Not only by its own account: what the class really holds.
    wrapped = {METHOD, SEND_AUX} if METHOD_FIXES & set(row["patched"]) else set()
    if row.get("settled_by") == "status":
        wrapped |= STATUS_REPORTERS
    assert report["wrapped"] == dict.fromkeys(wrapped, 1)
    assert report["original"] is (METHOD not in report["wrapped"])
    assert report["early"] is EARLY_SEND[row["early_send"]]


@every_release
def test_toggle_off(release: str) -> None:
    report, output = probe(release, None)

    assert report["original"]
    assert report["wrapped"] == {}
    assert report["early"] is (None if RELEASES[release]["early_send"] == "not applicable" else True)
    assert report["status"]["enabled"] == []
    assert not any(fix["patched"] for fix in report["status"]["fixes"].values())
    assert report["loaded"] == []
    assert "hotfix" not in output
