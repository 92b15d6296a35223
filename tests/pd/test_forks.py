"""SGLang 0.5.11 as others have changed it: builds that send "dsv4" themselves, and go wrong only at the next defect."""

from __future__ import annotations

from pathlib import Path

import environments
import pytest
import shared
from pairs import assert_arrived, of_group, pair_of

from sglang_dsv4_hotfix.selftest import scenarios

RELEASE = "0.5.11"
BUILDS = {"#24878": (shared.UPSTREAM_FIX,), "own sender": shared.OWN_SENDER}

pytestmark = pytest.mark.xdist_group(RELEASE)


def tree_of(build: str, tmp_path: Path) -> Path:
    return shared.edited_release(environments.environment_for(RELEASE).site, tmp_path / "tree", *BUILDS[build])


@pytest.mark.parametrize("build", BUILDS)
def test_with_the_hotfix(build: str, tmp_path: Path) -> None:
    with pair_of(RELEASE, "1", tree=tree_of(build, tmp_path)) as pair:
        for name in ("equal", "decode-speculates"):
            result = scenarios.run(pair, scenarios.SCENARIOS[name])
            assert result.state_types == ("dsv4",)
            assert result.statuses == "Success/Success", result.reason
            assert_arrived(result.checks)

        refused = scenarios.run(pair, scenarios.SCENARIOS["prefill-speculates"])
        assert refused.statuses == "Failed/Failed"
        assert "speculative decoding on prefill only" in refused.reason
        assert not any(check.changed for check in of_group(refused.checks, "state"))


def test_without_the_hotfix(tmp_path: Path) -> None:
    """Upstream's #24878: the same as with the hotfix at equal lengths, silently misplaced when decode speculates."""
    with pair_of(RELEASE, None, tree=tree_of("#24878", tmp_path)) as pair:
        equal = scenarios.run(pair, scenarios.SCENARIOS["equal"])
        speculating = scenarios.run(pair, scenarios.SCENARIOS["decode-speculates"])

    assert_arrived(equal.checks)
    assert (speculating.state, speculating.statuses) == ("misplaced", "Success/Success")
    rings = [check for check in of_group(speculating.checks, "state") if check.unit == "position"]
    assert rings
    assert all(check.right == 0 and check.stray for check in rings)
