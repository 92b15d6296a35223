"""`sglang-dsv4-hotfix selftest`: a real transfer on the installed SGLang and Mooncake, over loopback, without a GPU.

Exit code 0: in every scenario the state arrived, or the request failed as it must; 1: state was lost or misplaced, or a
side reported something else than what happened; 2: could not run, with the reason in one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

ARRIVED, LOST, COULD_NOT_RUN = 0, 1, 2

SWITCHES = {"on": ("on",), "off": ("off",), "both": ("off", "on"), "inherit": ("inherit",)}


def main(argv: Sequence[str]) -> int:
    """Parses `argv` (without the program's name), runs, prints to stdout, returns the exit code.

    With `--hotfix both` the code is that of the second run, the one with the hotfix on.
    """
    if importlib.util.find_spec("sglang") is None:
        return _could_not_run(f"SGLang is not installed for {sys.executable}; run this with the Python of SGLang")
    try:
        # NumPy comes with every SGLang, but its absence has to be a sentence, not a traceback.
        from sglang_dsv4_hotfix.selftest import adapter, pair, scenarios
    except ImportError as error:
        return _could_not_run(f"a package of SGLang's is missing: {error}")
    arguments = _arguments(argv, scenarios.SCENARIOS, scenarios.DEFAULT)
    chosen = scenarios.in_order(arguments.scenario or scenarios.DEFAULT)
    documents = []
    code = ARRIVED
    for switch in SWITCHES[arguments.hotfix]:
        try:
            code, document = _run(switch, chosen, arguments)
        except (adapter.CannotRun, pair.WorkerError) as error:
            return _could_not_run(str(error))
        except pair.WorkerDied as error:
            reason, _, log = str(error).partition("\n")
            print(log, file=sys.stderr)
            return _could_not_run(reason)
        documents.append(document)
    if arguments.json:
        json.dump(documents, sys.stdout, indent=2)
        print()
    return code


def _arguments(argv: Sequence[str], names: Any, default: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang-dsv4-hotfix selftest", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the results as JSON, and nothing else, to stdout")
    parser.add_argument(
        "--scenario",
        action="append",
        choices=sorted(names),
        metavar="NAME",
        help=f"run only this one, repeatable (default: {', '.join(default)}; there are: {', '.join(names)})",
    )
    parser.add_argument(
        "--hotfix",
        choices=sorted(SWITCHES),
        default="inherit",
        help="set or remove SGLANG_DSV4_HOTFIX for the two processes, or do both, one after the other "
        "(default: as it is in the environment)",
    )
    parser.add_argument("--keep-logs", metavar="DIRECTORY", help="write what the two processes log to this directory")
    return parser.parse_args(argv)


def _run(switch: str, chosen: Sequence[Any], arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    from sglang_dsv4_hotfix.selftest import scenarios, table
    from sglang_dsv4_hotfix.selftest.pair import Pair, worker_environment

    variable = {"on": "1", "off": None, "inherit": "inherit"}[switch]
    env = worker_environment(hotfix=variable)
    label = switch if switch != "inherit" else f"as in the environment ({env.get('SGLANG_DSV4_HOTFIX', 'unset')})"
    progress = _progress(label)
    logs = None
    if arguments.keep_logs:
        logs = os.path.join(arguments.keep_logs, f"hotfix-{switch}")
        os.makedirs(logs, exist_ok=True)
    progress("starting two processes")
    results = []
    with Pair(env=env, progress=progress, log_directory=logs) as pair:
        for scenario in chosen:
            progress(f"{scenario.name}: {scenario.title}")
            results.append(scenarios.run(pair, scenario))
        hello, status = pair.prefill.info, pair.prefill.ask("status")
    if not arguments.json:
        print(f"{table.headline(label, hello, status)}\n\n{table.text(results)}\n", flush=True)
    fine = all(result.fine for result in results)
    return (ARRIVED if fine else LOST), table.data(switch, hello, status, results)


def _progress(label: str) -> Any:
    start = time.monotonic()

    def say(line: str) -> None:
        print(f"[hotfix {label}, {time.monotonic() - start:.0f} s] {line}", file=sys.stderr, flush=True)

    return say


def _could_not_run(reason: str) -> int:
    print(f"selftest: could not run: {reason}", file=sys.stderr)
    return COULD_NOT_RUN
