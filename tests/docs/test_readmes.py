"""The two READMEs are kept in step: same sections, tables and commands; and the pages they link to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh-CN.md"))


def outline(page: Path) -> dict[str, list[object]]:
    """What has to agree between two languages."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.M | re.S)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    rows = re.findall(r"^\|.*\|$", prose, flags=re.M)
    return {
        "heading levels": [len(marks) for marks in re.findall(r"^(#+) ", prose, flags=re.M)],
        "code blocks": [(kind, re.sub(r"\s*#.*", "", code)) for kind, code in blocks],
        "table shapes": [row.count("|") for row in rows],
        "code in tables": [sorted(re.findall(r"`[^`]+`", row)) for row in rows],
        "releases in tables": [re.findall(r"\d+\.\d+\.\d+(?:\.post\d+)?", row) for row in rows],
        "list items": [line[:2] for line in re.findall(r"^(?:- |\d\. ).", prose, flags=re.M)],
    }


def test_the_languages_are_in_step() -> None:
    assert outline(CHINESE) == outline(ENGLISH)


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
