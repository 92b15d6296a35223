"""Measures the version matrix and writes docs/matrix.json: python scripts/measure_matrix.py [RELEASE ...]

For each release of tests/releases/releases.json: the verdicts of the live guards and what they patched, and, where the
table says that transfers are tested, what the self-test finds without and with the hotfix. Releases that are not named
keep what was measured before. Half a minute to a minute a release.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "matrix.json"
PROBE = ROOT / "tests" / "releases" / "probe_conn.py"

sys.path.insert(0, str(ROOT / "tests"))
import environments  # noqa: E402


def measure(release: str) -> dict[str, Any]:
    environment = environments.environment_for(release)
    probe = subprocess.run(
        [environment.python, str(PROBE)], env=environment.env("1"), capture_output=True, text=True, check=True
    )
    fixes = json.loads(probe.stdout.splitlines()[-1])["status"]["fixes"]
    row: dict[str, Any] = {
        "verdicts": {name: fix["verdict"] for name, fix in fixes.items()},
        "patched": [name for name, fix in fixes.items() if fix["patched"]],
    }
    if environments.table()["releases"][release]["transfer"]:
        command = [environment.python, "-m", "sglang_dsv4_hotfix.cli", "selftest", "--hotfix", "both", "--json"]
        done = subprocess.run(command, env=environment.env(), capture_output=True, text=True, check=False)
        if done.returncode == 2:
            raise SystemExit(f"{release}: {done.stdout}{done.stderr}")
        for run in json.loads(done.stdout):
            side = "with" if run["hotfix"] == "on" else "without"
            row[side] = {
                result["name"]: {"state": result["state"], "statuses": result["statuses"], "verdict": result["verdict"]}
                for result in run["results"]
            }
    print(f"{release}: {json.dumps(row)}", flush=True)
    return row


def main() -> None:
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    wanted = sys.argv[1:] or [
        release for release in environments.table()["releases"] if environments.supported(release)
    ]
    with ThreadPoolExecutor(2) as pool:
        known.update(zip(wanted, pool.map(measure, wanted), strict=True))
    ordered = {release: known[release] for release in environments.table()["releases"] if release in known}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
