"""Every PyPI release that has `maybe_send_extra`: its real `conn.py`, imported by a fresh interpreter that started as
an operator's does, with the .pth file of the installed wheel.

Here are the releases that no transfer is tried on; of the others tests/pd/test_guards.py asks the processes that
transfer, which start and import in the same way.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import environments
from guards import PROBE, RELEASES, assert_patched, assert_untouched
from shared import releases

without_transfers = releases(release for release, row in RELEASES.items() if not row["transfer"])


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
    # Without the paths in the warnings of others, which name the cache directory, and so us.
    return json.loads(last), "\n".join([*before, done.stderr]).replace(str(environments.cache()), "")


@without_transfers
def test_toggle_on(release: str) -> None:
    report, _ = probe(release, "1")

    assert_patched(release, report)


@without_transfers
def test_toggle_off(release: str) -> None:
    report, output = probe(release, None)

    assert_untouched(release, report)
    assert report["loaded"] == []
    assert "hotfix" not in output
