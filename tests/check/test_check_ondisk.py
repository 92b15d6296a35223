"""Builds on disk of shapes that releases do not have, but forks may: the guards see there what they see when loaded."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from sglang_dsv4_hotfix import fixes, toggle
from sglang_dsv4_hotfix.build import LoadedBuild, Unreadable
from sglang_dsv4_hotfix.ondisk import OnDiskBuild

MANAGER = """
class MooncakeKVManager(BASES):
    def _send_kvcache_generic(self, session, item_lens):
        return 0

    def send_aux(self, req, prefill_aux_index, dst_aux_ptrs):
        return 0

    def transfer_worker(self, requests):
        for req in requests:
            self.maybe_send_extra(req, [0], [], None)
            if self.send_aux(req, 0, []) != 0:
                req.failed = True


class MooncakeKVSender:
    pass
"""

METHOD = """
def maybe_send_extra(
    self, req, prefill_state_indices, dst_state_data_ptrs, executor, target_rank_registration_info=None
):
    if self.kv_args.state_type in KINDS:
        return self._send_kvcache_generic(req.mooncake_session_id, [])
    return 0
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes an SGLang of these modules; its package can be imported too."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)

    def make(**modules: str) -> Path:
        base = tmp_path / "sglang"
        for name, text in modules.items():
            path = base.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        for directory in {path.parent for path in base.rglob("*.py")} | {base}:
            for parent in [directory, *directory.parents]:
                if parent.is_relative_to(base):
                    (parent / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        invalidate_caches()
        return base

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


CONN = "srt__disaggregation__mooncake__conn"


def manager(method: str = "", bases: str = "") -> str:
    """conn.py's classes, with ``method`` in the manager."""
    text = MANAGER.replace("(BASES)", f"({bases})" if bases else "")
    return text.replace(
        "    def _send_kvcache_generic", textwrap.indent(method, "    ") + "\n    def _send_kvcache_generic", 1
    )


def verdicts(package: Path) -> dict[str, tuple[str, str]]:
    """What the guards say on disk; the same as they say when loaded."""
    on_disk = {name: fixes.judge(name, OnDiskBuild(package)) for name in toggle.FIXES}
    conn = import_module("sglang.srt.disaggregation.mooncake.conn")
    assert Path(str(conn.__file__)).is_relative_to(package)
    loaded = {name: fixes.judge(name, LoadedBuild(conn)) for name in toggle.FIXES}
    assert on_disk == loaded
    return {name: (word.value, observation) for name, (word, observation) in on_disk.items()}


def test_plain(write: Write) -> None:
    package = write(**{CONN: 'KINDS = ("swa", "nsa")\n' + manager(METHOD)})

    found = verdicts(package)

    assert found["dispatch"][0] == found["status"][0] == found["stride"][0] == "needed"


def test_method_of_a_base_class_in_another_module(write: Write) -> None:
    package = write(
        **{
            CONN: "from sglang.srt.disaggregation.common.conn import CommonKVManager as Base\n" + manager(bases="Base"),
            "srt__disaggregation__common__conn": "from .more import KINDS\nclass CommonKVManager:\n"
            + textwrap.indent(METHOD, "    "),
            "srt__disaggregation__common__more": 'KINDS = ["nsa"]\n',
        }
    )

    assert verdicts(package)["dispatch"] == (
        "needed",
        'with state type "dsv4" the method sends nothing; with "nsa" it calls _send_kvcache_generic',
    )


def test_manager_of_another_module(write: Write) -> None:
    package = write(
        **{
            CONN: "from ..vendor import MooncakeKVManager, MooncakeKVSender\n",
            "srt__disaggregation__vendor": 'KINDS = ("dsv4",)\n' + manager(METHOD),
        }
    )

    assert verdicts(package)["dispatch"][0] == "fixed upstream"


def test_decorated_method(write: Write) -> None:
    decorator = """
        import functools

        def traced(level):
            def decorate(function):
                @functools.wraps(function)
                def wrapper(*args, **kwargs):
                    raise RuntimeError("the tracer is not started")
                return wrapper
            return decorate

        KINDS = ("swa",)
        """
    package = write(**{CONN: textwrap.dedent(decorator) + manager("@traced(level=3)" + METHOD)})

    assert verdicts(package)["dispatch"][0] == "needed"


def test_function_of_the_module_as_a_method(write: Write) -> None:
    package = write(**{CONN: 'KINDS = ("swa",)\n' + METHOD + manager("maybe_send_extra = maybe_send_extra\n")})

    assert verdicts(package)["dispatch"][0] == "needed"


def test_method_by_another_name(write: Write) -> None:
    method = METHOD.replace("maybe_send_extra", "_send_state") + "\nmaybe_send_extra = _send_state\n"
    package = write(**{CONN: 'KINDS = ("swa",)\n' + manager(method)})

    assert verdicts(package)["dispatch"][0] == "needed"


def test_last_definition_counts(write: Write) -> None:
    first = METHOD.replace("in KINDS", '== "dsv4"')
    package = write(**{CONN: 'KINDS = ("swa",)\n' + manager(first + "\nif True:\n" + textwrap.indent(METHOD, "    "))})

    assert verdicts(package)["dispatch"][0] == "needed"


def test_private_names_and_super(write: Write) -> None:
    method = METHOD.replace("self.kv_args.state_type in KINDS", "self.__wanted(super().__init__)")
    package = write(**{CONN: 'KINDS = ("swa",)\n' + manager(method)})

    # super() of a stand-in raises, live as on disk.
    assert verdicts(package)["dispatch"][0] == "unrecognised"


def test_numpy_arrays_of_index_lists(write: Write) -> None:
    method = METHOD.replace(
        "    return 0", "    assert len(np.array(prefill_state_indices, dtype=np.int32)) == 1\n    return 0"
    )
    package = write(**{CONN: 'import numpy as np\nKINDS = ("swa",)\n' + manager(method)})

    assert verdicts(package)["dispatch"][0] == "needed"


def test_missing_class_and_method(write: Write) -> None:
    package = write(**{CONN: "class Other: pass\n"})

    assert verdicts(package)["dispatch"] == (
        "unrecognised",
        "sglang.srt.disaggregation.mooncake.conn has no class MooncakeKVManager",
    )


def test_missing_method(write: Write) -> None:
    package = write(**{CONN: manager()})

    assert verdicts(package)["dispatch"] == ("unrecognised", "MooncakeKVManager has no method maybe_send_extra")


def test_nothing_is_guessed(write: Write) -> None:
    """A global that only an import would tell. Live it is known; on disk the guard says that it cannot make it out."""
    package = write(**{CONN: 'KINDS = tuple(sorted({"swa"}))\n' + manager(METHOD)})

    word, observation = fixes.judge("dispatch", OnDiskBuild(package))

    assert word.value == "unrecognised"
    assert "it depends on KINDS, which is not known before SGLang is imported" in observation


def test_file_that_does_not_parse(write: Write) -> None:
    package = write(**{CONN: "class MooncakeKVManager\n"})

    word, observation = fixes.judge("dispatch", OnDiskBuild(package))

    assert word.value == "unrecognised"
    assert "does not parse with this Python" in observation


def test_no_file(tmp_path: Path) -> None:
    build = OnDiskBuild(tmp_path)

    with pytest.raises(Unreadable, match=r"conn\.py cannot be read"):
        build.function("maybe_send_extra")
    assert not build.knows_variable("ANYTHING")
