"""The report of ``check`` for people: aligned, within 100 columns except for paths."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import __version__, toggle
from ..verdict import Word

if TYPE_CHECKING:
    from . import Report

_WIDTH = 100


def render(report: Report) -> str:
    return "\n".join(
        [
            *table(list(_about(report))),
            *_section("Fixes", list(_fixes(report))),
            *_section("Obstacles", [(o.name, f"{o.found}.\nTo do: {o.do}.") for o in report.obstacles]),
            *_section("Hazards that no hotfix mends, in the deployments that they name", list(_hazards(report))),
            "",
            *paragraph(f"Verdict: {report.conclusion()}"),
        ]
    )


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Aligned columns; the last one is wrapped."""
    widths = [max(len(cell) for cell in column) + 2 for column in zip(*(row[:-1] for row in rows), strict=True)]
    blank = indent + " " * sum(widths)
    lines = []
    for *labels, content in rows:
        label = indent + "".join(cell.ljust(width) for cell, width in zip(labels, widths, strict=True))
        for part in content.split("\n"):
            lines += _wrap(part, label, blank)
            label = blank
    return lines


def paragraph(content: str) -> list[str]:
    return _wrap(content, "", "")


def _wrap(content: str, first: str, following: str) -> list[str]:
    # Paths and commands are not broken: they are there to be copied.
    return textwrap.wrap(
        content,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _section(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", title, *table(rows, "  ")] if rows else []


def _about(report: Report) -> Iterator[tuple[str, str]]:
    yield "sglang_dsv4_hotfix", __version__
    found = report.installation
    if found is None:
        yield "SGLang", f"not found: {report.not_found}"
    else:
        yield "SGLang", found.version or "of unknown version"
        if found.written and found.metadata and found.written != found.metadata:
            yield "", f"(its files say {found.written}, its metadata {found.metadata}; go by the verdicts)"
        yield "conn.py", str(found.conn)
        if not found.has_model:
            yield "DeepSeek-V4", without_model()
    value = f"{toggle.VARIABLE}={report.toggle}" if report.toggle is not None else f"{toggle.VARIABLE} is not set"
    yield "Toggle", f"{'on' if report.enabled else 'off'} ({value})"
    working = [way for way in report.ways if way.works]
    yield "Way in", working[0].detail if working else "none in an interpreter that is started like this one"


def without_model() -> str:
    """For a build that has not got the model itself. A fork may keep it elsewhere, so this changes no verdict."""
    return "no srt/models/deepseek_v4.py; without that model dispatch and stride do not matter"


def _fixes(report: Report) -> Iterator[tuple[str, str, str]]:
    for name, fix in report.fixes.items():
        word, observation = fix.verdict
        if word is Word.FIXED and fix.to_do:
            observation += ", but an exception still ends the transfer thread"
        yield name, word.value, observation


def _hazards(report: Report) -> Iterator[tuple[str, str]]:
    for hazard in report.hazards:
        yield (
            hazard["name"],
            f"{hazard['when']}: {hazard['what']}.\nFound: {hazard['found']}.\nTo do: {hazard['do']}.",
        )
