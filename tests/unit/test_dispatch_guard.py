"""What the dispatch guard takes for sending."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from builds import ScalarManager

from sglang_dsv4_hotfix import fixes
from sglang_dsv4_hotfix.build import LoadedBuild
from sglang_dsv4_hotfix.verdict import Word


class LooksUp(ScalarManager):
    """Asks tables that have "send" or "transfer" in their names, for whatever type."""

    def maybe_send_extra(
        self, req: Any, prefill_state_indices: Any, dst_state_data_ptrs: Any, executor: Any, registration: Any = None
    ) -> int:
        if self.transfer_infos.get(req.room) is None:  # type: ignore[attr-defined]
            return 0
        self.send_statistics.add(1)  # type: ignore[attr-defined]
        if self.kv_args.state_type in ("swa", "nsa"):
            return self._send_kvcache_generic(req, [], [], [], [], [], executor)
        return 0


class Refuses(ScalarManager):
    """Raises for types that it does not know."""

    def maybe_send_extra(
        self, req: Any, prefill_state_indices: Any, dst_state_data_ptrs: Any, executor: Any, registration: Any = None
    ) -> int:
        if self.kv_args.state_type not in ("swa", "nsa", "dsv4"):
            raise ValueError(self.kv_args.state_type)
        return self._send_kvcache_generic(req, [], [], [], [], [], executor)


@pytest.mark.parametrize(("manager", "word"), [(LooksUp, Word.NEEDED), (Refuses, Word.FIXED)])
def test_only_what_the_type_itself_reaches_is_sending(manager: type, word: Word) -> None:
    conn = ModuleType("conn")
    conn.MooncakeKVManager = manager  # type: ignore[attr-defined]
    assert fixes.judge("dispatch", LoadedBuild(conn)).word is word
