"""A stand-in for SGLang in tests of interpreter start-up, and of nothing else: imports at once, transfers nothing.

Its ``conn.py`` has the class and the methods that the hotfix looks for, in the shape of the scalar builds, a few lines
each and none of them upstream's. What the hotfix makes of real builds is tested on real builds.
"""

from __future__ import annotations

from pathlib import Path

from shared import CONN_PATH

VERSION = "0.0.0+standin"

CONN = """\
class MooncakeKVManager:
    def __init__(self, state_type):
        self.kv_args = KVArgs(state_type)
        self.is_mla_backend = True
        self.sent = []

    def _send_kvcache_generic(self, mooncake_session_id, src_data_ptrs, item_lens):
        self.sent.append(mooncake_session_id)
        return 0

    def send_aux(self, req, prefill_aux_index, dst_aux_ptrs):
        return 0

    def maybe_send_extra(
        self, req, prefill_state_indices, dst_state_data_ptrs, executor, target_rank_registration_info=None
    ):
        if self.kv_args.state_type == "nsa":
            return self._send_kvcache_generic(req.mooncake_session_id, [], [])
        return 0

    def transfer_worker(self, requests):
        for req in requests:
            self.maybe_send_extra(req, [0], [], None)
            ret = self.send_aux(req, 0, [])
            if ret != 0:
                req.failed = True


class KVArgs:
    def __init__(self, state_type):
        self.state_type = state_type
        self.state_data_ptrs = []
        self.state_item_lens = []


class MooncakeKVSender:
    pass


class Request:
    room = 1
    mooncake_session_id = "session"
    dst_state_indices = [0]
"""


def write(directory: Path, conn: str | None = CONN) -> Path:
    """Writes the stand-in under ``directory`` and returns it; ``conn`` is the text of conn.py, None for none."""
    file = directory / CONN_PATH
    file.parent.mkdir(parents=True)
    for parent in file.parents:
        if parent == directory:
            break
        parent.joinpath("__init__.py").touch()
    (directory / "sglang" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n', encoding="utf-8")
    if conn is not None:
        file.write_text(conn, encoding="utf-8")
    return directory


def edited(*replacements: tuple[str, str]) -> str:
    """CONN with each text, which must be there once, replaced."""
    text = CONN
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
