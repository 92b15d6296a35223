"""What becomes of a return value, read from the source of transfer_worker."""

from __future__ import annotations

import ast
import textwrap
from types import FunctionType

import pytest

from sglang_dsv4_hotfix import fixes
from sglang_dsv4_hotfix.build import Unreadable
from sglang_dsv4_hotfix.fixes import status
from sglang_dsv4_hotfix.verdict import Word

RAISES = "raise RuntimeError(str(error))"


class Written:
    """A build whose worker is the given lines."""

    def __init__(self, lines: str, handler: str = RAISES) -> None:
        body = textwrap.indent(textwrap.dedent(lines), "        ")
        self.source = (
            f"def transfer_worker(self, queue):\n    try:\n{body}\n    except Exception as error:\n        {handler}\n"
        )

    def function(self, name: str) -> FunctionType:
        def maybe_send_extra(self, req, prefill_state_indices, dst_state_data_ptrs, executor): ...  # type: ignore[no-untyped-def]
        def send_aux(self, req, prefill_aux_index, dst_aux_ptrs): ...  # type: ignore[no-untyped-def]

        return {"maybe_send_extra": maybe_send_extra, "send_aux": send_aux}[name]

    def tree(self, name: str) -> ast.FunctionDef:
        (function,) = ast.parse(self.source).body
        assert isinstance(function, ast.FunctionDef)
        return function

    def sender_mentions(self, text: str) -> bool:
        raise Unreadable("not here")

    def knows_variable(self, name: str) -> bool:
        return False


AUX = "ret = self.send_aux(req)\npolls.append(ret == 0)\n"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("self.maybe_send_extra(req)", Word.NEEDED),
        ("if req:\n    self.maybe_send_extra(\n        req,\n    )", Word.NEEDED),
        ("state_rc = self.maybe_send_extra(req)", Word.NEEDED),
        ("state_rc = self.maybe_send_extra(req)\nif state_rc != 0:\n    fail()", Word.FIXED),
        ("if self.maybe_send_extra(req):\n    fail()", Word.FIXED),
        ("if (rc := self.maybe_send_extra(req)):\n    fail(rc)", Word.FIXED),
        ("req.state = self.maybe_send_extra(req)", Word.FIXED),
        ("results.append(self.maybe_send_extra(req))", Word.FIXED),
        ("self.maybe_send_extra(req)\nrc = self.maybe_send_extra(req)\nuse(rc)", Word.FIXED),
        ("ret = self.maybe_send_extra(req)", Word.NEEDED),
        ("ret = self.maybe_send_extra(req)\nret = ret or other()", Word.FIXED),
        ("rc: int = self.maybe_send_extra(req)", Word.NEEDED),
        ("rc: int = self.maybe_send_extra(req)\nuse(rc)", Word.FIXED),
        ("pass", Word.UNRECOGNISED),
    ],
)
def test_value_of_the_state_send(state: str, word: Word) -> None:
    assert fixes.judge("status", Written(f"{state}\n{AUX}")).word is word


@pytest.mark.parametrize("aux", ["self.send_aux(req)", "ret = self.send_aux(req)", "pass"])
def test_a_dropped_aux_status_is_not_recognised(aux: str) -> None:
    assert fixes.judge("status", Written(f"self.maybe_send_extra(req)\n{aux}")).word is Word.UNRECOGNISED


@pytest.mark.parametrize(
    ("handler", "ends"), [(RAISES, True), ("if fatal(error):\n            raise", True), ("log(error)", False)]
)
def test_whether_exceptions_end_the_thread(handler: str, ends: bool) -> None:
    assert status.exceptions_end_thread(Written(f"self.maybe_send_extra(req)\n{AUX}", handler)) is ends
