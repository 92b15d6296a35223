"""Every release that transfers: what its guards say, and what its classes hold, in the processes of the pairs.

They are fresh interpreters that the .pth file of the installed wheel has started the hotfix in (`pairs.pair_of`).
"""

from __future__ import annotations

import guards
from pairs import with_transfers

from sglang_dsv4_hotfix.selftest.pair import Pair


@with_transfers()
def test_toggle_on(release: str, patched: Pair) -> None:
    for process in (patched.prefill, patched.decode):
        guards.assert_patched(release, process.ask("report", file=str(guards.PROBE)))


@with_transfers()
def test_toggle_off(release: str, bare: Pair) -> None:
    for process in (bare.prefill, bare.decode):
        guards.assert_untouched(release, process.ask("report", file=str(guards.PROBE)))
        assert "sglang_dsv4_hotfix:" not in process.log()
