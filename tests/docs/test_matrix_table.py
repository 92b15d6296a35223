"""The tables and pictures are what docs/matrix.json says, and that is what the version matrix expects and tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import environments

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import matrix_table  # noqa: E402

MEASURED = json.loads((ROOT / "docs" / "matrix.json").read_text(encoding="utf-8"))
EXPECTED = environments.table()["releases"]


def test_written_by_the_script() -> None:
    for path, text in matrix_table.rendered().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/matrix_table.py"


def test_measured_as_the_matrix_expects() -> None:
    assert list(MEASURED) == list(EXPECTED)
    for release, row in MEASURED.items():
        expected = EXPECTED[release]
        assert row["verdicts"] == {fix: expected[fix] for fix in matrix_table.FIXES}, release
        assert row["patched"] == expected["patched"], release
        assert ("with" in row) == expected["transfer"], release


def test_with_the_hotfix_nothing_is_silently_wrong_where_prefill_knows_the_lengths() -> None:
    for release, row in MEASURED.items():
        for scenario, result in row.get("with", {}).items():
            if scenario == "decode-speculates" and row["verdicts"]["stride"] == "not applicable":
                assert (result["state"], result["statuses"]) == ("misplaced", "Success/Success"), release
            elif result["statuses"] == "Success/Success":
                assert result["state"] == "right", (release, scenario)
            else:
                assert result["statuses"] == "Failed/Failed", (release, scenario)
