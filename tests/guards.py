"""What a process of a release must say of itself once it has imported conn.py; releases.json says what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environments

#: Looks at a process from inside: `report()` in that file.
PROBE = Path(__file__).parent / "releases" / "probe_conn.py"
RELEASES = environments.table()["releases"]
FIXES = ("dispatch", "stride", "status", "early_send")

# The fixes that correct what `maybe_send_extra` reads, or carry what became of it to `send_aux`: one wrapper on each
# method serves all three. The fourth sets a variable.
_METHOD_FIXES = {"dispatch", "stride", "status"}
# What the build's own configuration says about the early send, by verdict.
_EARLY_SEND = {"not applicable": None, "needed": False, "fixed upstream": True}
_METHOD = "MooncakeKVManager.maybe_send_extra"
_SEND_AUX = "MooncakeKVManager.send_aux"
# Wrapped too where `send_aux` does not always follow: up to 0.5.6.post2.
_STATUS_REPORTERS = {"MooncakeKVManager.update_status", "MooncakeKVManager.sync_status_to_decode_endpoint"}


def assert_patched(release: str, report: dict[str, Any]) -> None:
    """The toggle is on: verdicts as expected, what is needed is patched, and nothing else."""
    row = RELEASES[release]
    _assert_this_release(release, report)
    assert report["status"]["sglang"]["conn"] == report["conn"]
    fixes = report["status"]["fixes"]
    assert {name: fix["verdict"] for name, fix in fixes.items()} == {name: row[name] for name in FIXES}
    assert [name for name in FIXES if fixes[name]["patched"]] == row["patched"]
    assert sorted(report["status"]["enabled"]) == sorted(FIXES)
    # Not only by its own account: what the class really holds.
    wrapped = {_METHOD, _SEND_AUX} if _METHOD_FIXES & set(row["patched"]) else set()
    if row.get("settled_by") == "status":
        wrapped |= _STATUS_REPORTERS
    assert report["wrapped"] == dict.fromkeys(wrapped, 1)
    assert report["original"] is (_METHOD not in report["wrapped"])
    assert report["early"] is _EARLY_SEND[row["early_send"]]


def assert_untouched(release: str, report: dict[str, Any]) -> None:
    """The toggle is off: the build is as released, and what would patch it is not loaded."""
    _assert_this_release(release, report)
    assert report["original"]
    assert report["wrapped"] == {}
    assert report["early"] is (None if RELEASES[release]["early_send"] == "not applicable" else True)
    assert report["status"]["enabled"] == []
    assert not any(fix["patched"] for fix in report["status"]["fixes"].values())
    assert not {"wrapt", "sglang_dsv4_hotfix.hook"} & set(report["loaded"])


def _assert_this_release(release: str, report: dict[str, Any]) -> None:
    assert report["conn"].startswith(f"{environments.environment_for(release).site}/")
    assert report["status"]["sglang"]["version"] == release
