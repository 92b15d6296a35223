"""The command ``sglang-dsv4-hotfix``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code."""
    parser = argparse.ArgumentParser(prog="sglang-dsv4-hotfix", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("check", add_help=False, help="judge an SGLang installation without importing it")
    commands.add_parser(
        "selftest",
        add_help=False,
        help="transfer DeepSeek-V4 state between two processes on the installed SGLang and Mooncake",
    )
    commands.add_parser("path", help="print what to put on PYTHONPATH where .pth files are not read")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "check":
        from . import check

        try:
            code = check.main(rest)
            sys.stdout.flush()
        except BrokenPipeError:  # "| head" has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = check.UNKNOWN
        return code
    if arguments.command == "selftest":
        from .selftest import run

        return run.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    print(pythonpath())
    return 0


def pythonpath() -> str:
    """The directories, joined by a colon, that make Python find sitecustomize.py and this package."""
    package = Path(__file__).resolve().parent
    shipped = package / "pythonpath"
    # A checkout has its sitecustomize.py beside the package; the wheel ships that file inside it.
    return f"{shipped}:{package.parent}" if (shipped / "sitecustomize.py").exists() else str(package.parent)


if __name__ == "__main__":
    sys.exit(main())
