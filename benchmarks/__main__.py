"""python -m benchmarks [PART ...]: prints every figure beside its goal; exit code 1 if one is missed.

Parts: startup, hook, call (with growth), transfer. All without a GPU; the ones that need SGLang use the environments of
tests/environments.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import Figure, table

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("startup", "hook", "call", "transfer")
RELEASES = {"hook": ("0.5.11", "0.5.16", "0.5.23"), "call": ("0.5.11",), "transfer": ("0.5.11",)}
#: What happens once a process is measured in several; the median is shown.
PROCESSES = {"hook": 5}
MARKS = ("<!-- figures -->", "<!-- /figures -->")
MODULES = {"hook": "hook", "call": "calls", "transfer": "transfers"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--page", metavar="FILE", help="put the table into that page, between its marks")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for part in arguments.parts or PARTS:
        if part == "startup":
            from benchmarks import startup

            figures += startup.run()
            continue
        for release in RELEASES[part]:
            runs = [_in_release(release, MODULES[part]) for _ in range(PROCESSES.get(part, 1))]
            figures += [
                sorted(same, key=lambda figure: figure.value)[len(same) // 2] for same in zip(*runs, strict=True)
            ]
    print(table(figures))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([figure.to_json() for figure in figures], indent=1) + "\n")
    if arguments.page:
        page = Path(arguments.page)
        before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        text = f"{MARKS[0]}\n```text\n{table(figures)}\n```\n{MARKS[1]}"
        page.write_text(f"{before}{text}{after}", encoding="utf-8")
    return 1 if any(figure.verdict == "missed" for figure in figures) else 0


def _in_release(release: str, module: str) -> list[Figure]:
    sys.path.insert(0, str(ROOT / "tests"))
    import environments

    environment = environments.environment_for(release)
    command = [environment.python, "-m", f"benchmarks.{module}"]
    # From the repository's root, for this package; the hotfix comes from the environment's own wheel all the same.
    done = subprocess.run(command, cwd=ROOT, env=environment.env("1"), stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    return [Figure(**{name: value for name, value in row.items() if name != "verdict"}) for row in rows]


if __name__ == "__main__":
    sys.exit(main())
