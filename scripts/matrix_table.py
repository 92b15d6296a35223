"""Writes the release tables of both READMEs and the pictures in docs/ from docs/matrix.json.

    python scripts/matrix_table.py            write
    python scripts/matrix_table.py --check    exit 1 if something would change

docs/matrix.json is measured by scripts/measure_matrix.py.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "matrix.json"
FIXES = ("dispatch", "stride", "status", "early_send")
SCENARIOS = ("equal", "decode-speculates", "state-write-refused")
#: The head of each README's table, and the word between the first and the last release of a row.
READMES = {
    "README.md": (("release", "equal layouts", "decode speculates", "engine refuses the write"), "to"),
    "README.zh-CN.md": (("版本", "布局相同", "只有 decode 投机", "引擎拒绝写入"), "至"),
}


class Rows(NamedTuple):
    """Releases that stand next to each other and have the same results."""

    releases: list[str]
    result: dict[str, Any]

    def name(self, to: str = "to") -> str:
        first, last = self.releases[0], self.releases[-1]
        return first if first == last else f"{first} {to} {last}"


def grouped(matrix: dict[str, Any]) -> list[Rows]:
    return [
        Rows([release for release, _ in members], json.loads(key))
        for key, members in groupby(matrix.items(), key=lambda item: json.dumps(item[1], sort_keys=True))
    ]


def outcome(result: dict[str, Any], side: str, scenario: str) -> str:
    """What became of a scenario, in one word: the bytes when both sides say success, else that it failed."""
    found = result.get(side, {}).get(scenario)
    if found is None:
        return "-"
    if found["statuses"] == "Failed/Failed":
        return "fails"
    word = found["state"] if found["statuses"] == "Success/Success" else found["statuses"]
    return {"right": "arrives"}.get(word, word)


def table(rows: list[Rows], head: tuple[str, ...], to: str) -> str:
    """Markdown: the verdicts, then without -> with for each scenario."""
    release, *scenarios = head
    lines = [f"| {' | '.join((release, *(f'`{fix}`' for fix in FIXES), *scenarios))} |"]
    lines.append("|---" * (1 + len(FIXES) + len(scenarios)) + "|")
    for row in rows:
        cells = [row.name(to)]
        cells += [f"**{verdict}**" if verdict == "needed" else verdict for verdict in _verdicts(row)]
        for scenario in SCENARIOS:
            before, after = (outcome(row.result, side, scenario) for side in ("without", "with"))
            cells.append(before if before == after else f"{before} → **{after}**")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdicts(row: Rows) -> list[str]:
    return [row.result["verdicts"][fix] for fix in FIXES]


# The picture: a column a group of releases, two lines a scenario (without, with).
_COLOURS = {
    "light": {
        "on": "#ffffff",
        "text": "#1f2328",
        "faint": "#59636e",
        "good": "#1a7f37",
        "bad": "#cf222e",
        "fails": "#9a6700",
        "-": "#d1d9e0",
    },
    "dark": {
        "on": "#0d1117",
        "text": "#f0f6fc",
        "faint": "#9198a1",
        "good": "#3fb950",
        "bad": "#f85149",
        "fails": "#d29922",
        "-": "#3d444d",
    },
}
_TITLES = {
    "equal": "state, equal layouts",
    "decode-speculates": "state, only decode speculates",
    "state-write-refused": "engine refuses the state write",
    "early_send": "early send of a cached prefix",
}


def picture(rows: list[Rows], theme: str) -> str:
    """An SVG: green arrives, or fails as it must; amber is a clear failure; red is silently wrong."""
    colour = _COLOURS[theme]
    left, top, width, height = 250, 46, 92, 20
    lines = [(title, side) for title in _TITLES for side in ("without", "with")]
    total = (left + width * len(rows) + 10, top + len(lines) * height + 4 * 8 + 34)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" '
        f'viewBox="0 0 {total[0]} {total[1]}" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="{colour["text"]}">',
        "<title>What becomes of DeepSeek-V4's state on each SGLang release, without and with the hotfix</title>",
    ]
    for column, row in enumerate(rows):
        x = left + column * width + width / 2
        first, _, last = row.name().partition(" to ")
        parts.append(f'<text x="{x}" y="{top - 26}" text-anchor="middle">{first}</text>')
        parts.append(f'<text x="{x}" y="{top - 10}" text-anchor="middle">{"to " + last if last else ""}</text>')
    for number, (title, side) in enumerate(lines):
        y = top + number * height + (number // 2) * 8
        if side == "without":
            parts.append(f'<text x="8" y="{y + 14}">{_TITLES[title]}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end" fill="{colour["faint"]}">{side}</text>')
        for column, row in enumerate(rows):
            word, kind = _cell(row, title, side)
            x = left + column * width
            parts.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="3" fill="{colour[kind]}">'
                f"<title>{row.name()}, {side} the hotfix: {word}</title></rect>"
            )
            if kind != "-":  # colour is not all that tells them apart
                parts.append(
                    f'<text x="{x + width / 2}" y="{y + 14}" text-anchor="middle" font-size="11" '
                    f'fill="{colour["on"]}">{word}</text>'
                )
    x, y = 8, total[1] - 12
    for kind, text in (
        ("good", "right"),
        ("fails", "fails clearly"),
        ("bad", "silently wrong"),
        ("-", "not measured, or not there"),
    ):
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour[kind]}"/>')
        parts.append(f'<text x="{x + 17}" y="{y}">{text}</text>')
        x += 32 + 7 * len(text)
    return "\n".join([*parts, "</svg>", ""])


def _cell(row: Rows, title: str, side: str) -> tuple[str, str]:
    """The word for a cell of the picture, and its kind."""
    if title == "early_send":
        verdict = row.result["verdicts"]["early_send"]
        if verdict == "not applicable":
            return "no early send", "-"
        wrong = verdict == "needed" and not (side == "with" and "early_send" in row.result["patched"])
        return ("too early", "bad") if wrong else ("in time", "good")
    word = outcome(row.result, side, title)
    if word == "-":
        return "not measured", "-"
    if title == "state-write-refused":
        return word, "good" if word == "fails" else "bad"
    return word, {"arrives": "good", "fails": "fails"}.get(word, "bad")


def rendered() -> dict[Path, str]:
    rows = grouped(json.loads(RESULTS.read_text(encoding="utf-8")))
    files = {ROOT / "docs" / f"matrix-{theme}.svg": picture(rows, theme) for theme in _COLOURS}
    for name, (head, to) in READMES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        body = f"<!-- matrix -->\n{table(rows, head, to)}\n<!-- /matrix -->"
        files[ROOT / name] = re.sub(r"<!-- matrix -->.*?<!-- /matrix -->", lambda _, body=body: body, text, flags=re.S)
    return files


def main() -> int:
    stale = [path for path, text in rendered().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is not what docs/matrix.json says: run scripts/matrix_table.py")
        else:
            path.write_text(rendered()[path], encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
