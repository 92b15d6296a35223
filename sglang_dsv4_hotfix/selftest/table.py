"""The results of a run as a text table, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_dsv4_hotfix.selftest.compare import BufferCheck
from sglang_dsv4_hotfix.selftest.scenarios import Result

HEAD = ("scenario", "KV", "state", "prefill/decode", "verdict")


def text(results: Sequence[Result]) -> str:
    """One row a scenario; below a row whose state is not in its place, how much of each kind of buffer is."""
    rows = [HEAD] + [(r.name, word(r.kv), word(r.state), r.statuses, r.verdict) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row, result in zip(rows, [None, *results], strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if result is None:
            lines.append("  ".join("-" * width for width in widths))
            continue
        if result.state != "right":
            lines.append("    " + detail(result.checks))
        if result.reason:
            lines.append("    reason: " + result.reason)
    return "\n".join(lines)


def word(verdict: str) -> str:
    return "arrived" if verdict == "right" else verdict


def detail(checks: Iterable[BufferCheck]) -> str:
    """For example "swa 30 of 30 pages, c4 0 of 48 positions; 65536 bytes overwritten in rows of others"."""
    kinds: dict[str, list[int]] = {}
    units: dict[str, str] = {}
    stray = 0
    for check in checks:
        if check.group != "state":
            continue
        kind = check.name.partition(".")[0]
        counts = kinds.setdefault(kind, [0, 0])
        counts[0] += check.right
        counts[1] += check.wanted
        units[kind] = "positions" if check.unit == "position" else "pages"
        stray += check.stray
    parts = [f"{kind} {right} of {wanted} {units[kind]}" for kind, (right, wanted) in kinds.items()]
    line = "in place: " + ", ".join(parts)
    return line + (f"; {stray} bytes overwritten in rows of others" if stray else "")


def headline(hotfix: str, hello: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """What ran: SGLang's version, whether the hotfix was on, how it came in, and what each fix says."""
    line = f"SGLang {hello['sglang']}, hotfix {hotfix}"
    fixes: Mapping[str, Any] = status.get("fixes") or {}
    if fixes:
        said = (f"{name} {fix['verdict']}{', patched' if fix['patched'] else ''}" for name, fix in fixes.items())
        line += f" (came in by {hello['activation']}): " + "; ".join(said)
    elif status.get("problem") or status.get("error"):
        line += f": {status.get('problem') or status.get('error')}"
    return line


def data(hotfix: str, hello: Mapping[str, Any], status: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    return {
        "hotfix": hotfix,
        "sglang": hello["sglang"],
        "worker": dict(hello),
        "status": dict(status),
        "results": [result.to_json() for result in results],
    }
