"""releases.json against the sources of each release, read as text: without importing SGLang and without our guards.

So the expectations of test_matrix.py rest on the wheels themselves, not on what the guards happen to say.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import environments
import pytest

RELEASES = environments.table()["releases"]
FAMILIES = {
    1: ["self", "req", "prefill_state_indices", "dst_state_data_ptrs"],
    2: ["self", "req", "prefill_state_indices", "dst_state_data_ptrs", "executor"],
    3: ["self", "req", "prefill_state_indices", "dst_state_data_ptrs", "executor", "target_rank_registration_info"],
    4: ["self", "req", "prefill_state_indices", "executor", "target_rank_registration_info"],
}
EARLY_SEND_KNOB = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
EARLY_SEND_EVENT = "_early_send_wait_event"


class Sources:
    def __init__(self, release: str) -> None:
        self.site = environments.release_directory(release)
        self.srt = self.site / "sglang" / "srt"
        self.disaggregation = self.srt / "disaggregation"
        tree = ast.parse(self.text(self.disaggregation / "mooncake" / "conn.py"))
        (manager,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "MooncakeKVManager")
        self.methods = {node.name: node for node in manager.body if isinstance(node, ast.FunctionDef)}

    @staticmethod
    def text(path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def parameters(self, method: str) -> list[str]:
        return [argument.arg for argument in self.methods[method].args.args]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sources(release: str) -> Sources:
    return Sources(release)


def test_metadata(release: str, sources: Sources) -> None:
    (metadata,) = sources.site.glob("sglang-*.dist-info/METADATA")
    text = sources.text(metadata)
    row = RELEASES[release]

    assert re.findall(r"^Version: (.+)$", text, re.M) == [release]
    # Where a release asks for a version of transformers that one of the others serves as well, the row says which.
    assert re.findall(r"^Requires-Dist: transformers==(\S+)$", text, re.M) == [row.get("asks_for", row["transformers"])]
    assert re.findall(r"^Requires-Python: >=(\S+)$", text, re.M) == [row.get("python", "3.10")]


def test_family(release: str, sources: Sources) -> None:
    assert sources.parameters("maybe_send_extra") == FAMILIES[RELEASES[release]["family"]]


def test_dispatch(release: str, sources: Sources) -> None:
    """Scalar releases compare the type with names, none of which is "dsv4"; list releases have no such type."""
    texts = {
        node.value
        for node in ast.walk(sources.methods["maybe_send_extra"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert "dsv4" not in texts
    if RELEASES[release]["dispatch"] == "needed":
        assert {"state_type", "mamba", "swa", "nsa"} <= texts
    else:
        assert RELEASES[release]["dispatch"] == "not applicable"
        assert "state_types" in texts
        assert "state_type" not in texts


def test_stride(release: str, sources: Sources) -> None:
    if "dst_item_lens" in sources.parameters("_send_kvcache_generic"):
        expected = "fixed upstream"
    elif "target_rank_registration_info" in sources.parameters("maybe_send_extra"):
        expected = "needed"
    else:
        expected = "not applicable"

    assert RELEASES[release]["stride"] == expected


def test_status(release: str, sources: Sources) -> None:
    """Whether `transfer_worker` does anything with what `maybe_send_extra` returns."""
    calls = [
        node
        for node in ast.walk(sources.methods["transfer_worker"])
        if isinstance(node, ast.stmt)
        and isinstance(call := getattr(node, "value", None), ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "maybe_send_extra"
    ]
    assert len(calls) == 1
    dropped = isinstance(calls[0], ast.Expr)

    assert RELEASES[release]["status"] == ("needed" if dropped else "fixed upstream")


def test_patched(release: str, sources: Sources) -> None:
    """What is needed is patched, and nothing else, but for the half of `status` that no release has fixed: an exception
    of `maybe_send_extra` leaves `transfer_worker`, and ends its thread."""
    row = RELEASES[release]
    needed = [name for name in ("dispatch", "stride", "status", "early_send") if row[name] == "needed"]
    ends_thread = any(
        isinstance(node, ast.Raise)
        for handler in ast.walk(sources.methods["transfer_worker"])
        if isinstance(handler, ast.ExceptHandler)
        for node in ast.walk(handler)
    )

    assert ends_thread
    assert row["patched"] == sorted({*needed, "status"}, key=("dispatch", "stride", "status", "early_send").index)


def test_settled_by(release: str, sources: Sources) -> None:
    """Whether only the last pipeline stage sends aux data, so that a failed state send has to be reported otherwise."""
    last_stage_only = any(
        isinstance(node, ast.If)
        and "is_last_rank" in ast.unparse(node.test)
        and any(isinstance(below, ast.Attribute) and below.attr == "send_aux" for below in ast.walk(node))
        for node in ast.walk(sources.methods["transfer_worker"])
    )

    assert RELEASES[release].get("settled_by", "aux") == ("status" if last_stage_only else "aux")


def test_early_send(release: str, sources: Sources) -> None:
    """Whether prefill may send a cached prefix early, and whether Mooncake's sender looks at the event to wait for."""
    knob = EARLY_SEND_KNOB in sources.text(sources.srt / "environ.py")
    # In 0.5.23 the sender's `send` moved to the base class that Mooncake shares with others.
    honoured = any(
        EARLY_SEND_EVENT in sources.text(sources.disaggregation / backend / "conn.py")
        for backend in ("mooncake", "common")
    )
    expected = "not applicable" if not knob else "fixed upstream" if honoured else "needed"

    assert RELEASES[release]["early_send"] == expected
