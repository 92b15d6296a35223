"""The hazards, on every release: those that hazards.py names, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import environments
import pytest

from sglang_dsv4_hotfix.check import hazards
from sglang_dsv4_hotfix.ondisk import OnDiskBuild

RELEASES = list(environments.table()["releases"])


def named(releases: str) -> set[str]:
    """The releases that "A to B" or "A and B" stands for."""
    first, word, last = re.match(r"(\S+) (to|and) (\S+)", releases).groups()  # type: ignore[union-attr]
    return {first, last} if word == "and" else set(RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1])


@pytest.mark.parametrize("release", RELEASES)
def test_releases(release: str) -> None:
    package = environments.release_directory(release) / "sglang"

    found = {hazard["name"] for hazard in hazards.look(package, OnDiskBuild(package))}

    assert found == {hazard.name for hazard in hazards.HAZARDS if release in named(hazard.releases)}


def test_variable_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    package = environments.release_directory("0.5.20") / "sglang"
    monkeypatch.delenv("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", raising=False)

    (unset,) = hazards.look(package, OnDiskBuild(package))
    monkeypatch.setenv("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", "1")
    (on,) = hazards.look(package, OnDiskBuild(package))

    assert unset["name"] == on["name"] == "early-release"
    assert unset["found"].endswith("off unless set; not set here")
    assert on["found"].endswith("set to '1' here")


def test_a_build_without_these_files(tmp_path: Path) -> None:
    assert hazards.look(tmp_path, OnDiskBuild(tmp_path)) == []
