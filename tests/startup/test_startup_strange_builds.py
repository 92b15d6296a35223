"""Builds that the hook cannot make out: the interpreter lives, SGLang imports, one clear line, nothing patched."""

from __future__ import annotations

from pathlib import Path

import pytest
import standin_sglang
from laboratory import Lab, broken, look
from shared import CONN_PATH
from standin_sglang import CONN, edited

AGAIN = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.activate()"

SUMMARY = "sglang_dsv4_hotfix 0.1.0 on SGLang 0.0.0+standin: "


@pytest.mark.parametrize(
    ("conn", "reason"),
    [
        pytest.param(
            edited(("class MooncakeKVManager:", "class RenamedKVManager:")),
            "sglang.srt.disaggregation.mooncake.conn has no class MooncakeKVManager",
            id="class missing",
        ),
        pytest.param("MooncakeKVManager = None\n", "has no class MooncakeKVManager", id="class is no class"),
        pytest.param(
            edited(
                ("    def maybe_send_extra(", "    def send_state("), ("self.maybe_send_extra(", "self.send_state(")
            ),
            "MooncakeKVManager has no method maybe_send_extra",
            id="method missing",
        ),
        pytest.param(
            edited(
                ("req, prefill_state_indices, dst_state_data_ptrs, executor,", "context, plan, executor,"),
                ("req.mooncake_session_id, [], []", "context, [], []"),
                ("self.maybe_send_extra(req, [0], [], None)", "self.maybe_send_extra(req, [0], None)"),
            ),
            "maybe_send_extra(context, plan, executor, target_rank_registration_info) has no parameter req",
            id="unknown signature",
        ),
        pytest.param(
            CONN.replace("dst_state_data_ptrs, executor,", "dst_state_data_ptrs, executor, compass,"),
            "maybe_send_extra has the unknown parameter compass",
            id="unknown parameter",
        ),
        pytest.param(
            CONN + "\nMooncakeKVManager.maybe_send_extra = len\n",
            "MooncakeKVManager.maybe_send_extra is not a plain Python function but builtin_function_or_method",
            id="method is a builtin",
        ),
        pytest.param(
            edited(('if self.kv_args.state_type == "nsa":', "if True:")),
            None,
            id="sends everything",
        ),
        pytest.param(
            edited(
                ('        if self.kv_args.state_type == "nsa":', "        raise RuntimeError('no context')"),
                ("            return self._send_kvcache_generic(req.mooncake_session_id, [], [])", ""),
            ),
            "maybe_send_extra raises on a stand-in with state type 'dsv4' (RuntimeError: no context)",
            id="method raises",
        ),
    ],
)
def test_dispatch_is_not_patched(lab: Lab, name: str, tmp_path: Path, conn: str, reason: str | None) -> None:
    tree = standin_sglang.write(tmp_path / "tree", conn)

    report = look(lab.installed(name), "--tree", tree, "--before", AGAIN, "--after", AGAIN, toggle="dispatch")

    assert report.seen["error"] is None
    assert not any(report.seen["wrappers"].values())
    assert report.seen["layers"] == 0
    fix = report.seen["status"]["fixes"]["dispatch"]
    if reason is None:
        assert fix["verdict"] == "fixed upstream"
        assert report.ended.err == ""
        return
    assert fix["verdict"] == "unrecognised"
    assert reason in fix["observation"]
    # The other fixes may be able to judge such a build; the toggle leaves them out.
    left_out = ["stride", "status"] if "unknown parameter" in reason or "raises" in reason else []
    # Once, although the package was activated three times.
    (line,) = report.ended.err.splitlines()
    assert line.startswith(SUMMARY)
    said = f"{SUMMARY}dispatch: unrecognised, not patched ({fix['observation']})"
    assert line in (said, f"{said}. Needed too, and not switched on: {', '.join(left_out)}")


def test_only_bytecode(lab: Lab, name: str, tmp_path: Path) -> None:
    """A build that was delivered without sources. What needs none, still works; what does, says so."""
    tree = standin_sglang.write(tmp_path / "tree")
    file = tree / CONN_PATH
    compile_it = f"import py_compile; py_compile.compile({str(file)!r}, {str(file) + 'c'!r})"

    report = look(lab.installed(name), "--tree", tree, "--before", f"{compile_it}; import os; os.unlink({str(file)!r})")

    assert report.seen["error"] is None
    assert report.seen["status"]["sglang"]["conn"] == f"{file}c"
    fixes = report.seen["status"]["fixes"]
    assert fixes["dispatch"] == {
        "verdict": "needed",
        "observation": 'with state type "dsv4" the method sends nothing; with "nsa" it calls _send_kvcache_generic',
        "patched": True,
    }
    assert fixes["status"]["verdict"] == "unrecognised"
    assert "cannot be read" in fixes["status"]["observation"]
    assert not fixes["status"]["patched"]
    (line,) = report.ended.err.splitlines()
    assert line.startswith(f"{SUMMARY}dispatch: needed, patched; ")
    assert "status: unrecognised, not patched (the source of MooncakeKVManager.transfer_worker cannot be read" in line


def test_hook_raises(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """A mistake of ours, at the worst place: where an exception would fail SGLang's import."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sglang_dsv4_hotfix.hook as hook\n"
        "def broken(conn): raise ZeroDivisionError('ours')\n"
        "hook._patch = broken\n",
        encoding="utf-8",
    )

    report = look([lab.installed(name)], "--tree", tree, "--before", AGAIN, "--after", AGAIN, PYTHONPATH=tmp_path)

    assert report.seen["error"] is None
    assert report.untouched
    assert report.ended.err == (
        "sglang_dsv4_hotfix: the hook failed (ZeroDivisionError: ours); SGLang runs unpatched. Please report this with "
        "the output of: sglang-dsv4-hotfix check\n"
    )


def test_half_patched_is_undone(lab: Lab, name: str, tree: Path, tmp_path: Path) -> None:
    """The second of the two wrappers cannot be put on: the first comes off again."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sglang_dsv4_hotfix.hook as hook\n"
        "wrap = hook._wrap\n"
        "def broken(manager, name, wrapper):\n"
        "    if name == 'maybe_send_extra': raise TypeError('cannot set')\n"
        "    wrap(manager, name, wrapper)\n"
        "hook._wrap = broken\n",
        encoding="utf-8",
    )

    report = look([lab.installed(name)], "--tree", tree, PYTHONPATH=tmp_path)

    assert report.seen["error"] is None
    assert report.untouched
    assert report.ended.err.startswith("sglang_dsv4_hotfix: the hook failed (TypeError: cannot set); SGLang runs unpat")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("toggle", "raise SystemError('unreadable')"),
        ("hook", "raise SystemError('unreadable')"),
        ("fixes/__init__", "raise SystemError('unreadable')"),
    ],
)
def test_package_is_broken(lab: Lab, name: str, tree: Path, tmp_path: Path, module: str, text: str) -> None:
    """A module of ours cannot be imported: a disk that went bad, a copy that was cut short."""
    (tmp_path / "sitecustomize.py").write_text("import sglang_dsv4_hotfix\nsglang_dsv4_hotfix.activate()\n", "utf-8")
    package = broken(tmp_path / "copy", module, text)

    report = look([lab.empty(name)], "--tree", tree, "--no-status", PYTHONPATH=f"{tmp_path}:{package}")

    assert report.seen["error"] is None
    assert report.untouched
    assert report.ended.err == (
        "sglang_dsv4_hotfix: could not be activated (SystemError: unreadable); SGLang runs unpatched. Reinstall the "
        "package, or unset SGLANG_DSV4_HOTFIX.\n"
    )


@pytest.mark.parametrize("toggle", [None, "1"])
def test_conn_is_missing(lab: Lab, name: str, tmp_path: Path, toggle: str | None) -> None:
    """An SGLang from before Mooncake: what SGLang sees is what it would see without us."""
    tree = standin_sglang.write(tmp_path / "tree", None)

    report = look(lab.installed(name), "--tree", tree, toggle=toggle)

    assert report.seen["error"] == ("ModuleNotFoundError: No module named 'sglang.srt.disaggregation.mooncake.conn'")
    assert report.ended.err == ""


def test_sglang_is_missing(lab: Lab, name: str) -> None:
    report = look(lab.installed(name))

    assert report.seen["error"] == "ModuleNotFoundError: No module named 'sglang'"
    assert report.ended.err == ""


@pytest.mark.parametrize("toggle", [None, "1"])
def test_import_of_conn_fails_then_works(lab: Lab, name: str, tmp_path: Path, toggle: str | None) -> None:
    """Mooncake's engine, for one, may not be importable; SGLang falls back, and may try again later."""
    tree = standin_sglang.write(
        tmp_path / "tree", f"import sys\nif sys.ready is None: raise OSError('no rdma')\n{CONN}"
    )
    before = """if True:
        import importlib
        sys.ready = None
        for attempt in (1, 2):
            try:
                importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
            except Exception as error:
                found[f"attempt {attempt}"] = f"{type(error).__name__}: {error}"
        sys.ready = True
    """

    report = look(lab.installed(name), "--tree", tree, "--before", before, toggle=toggle)

    assert report.seen["found"] == {"attempt 1": "OSError: no rdma", "attempt 2": "OSError: no rdma"}
    assert report.seen["error"] is None
    assert report.ended.err == ""
    assert report.patched if toggle else report.untouched


@pytest.mark.parametrize("toggle", [None, "1"])
def test_looked_for_first_and_imported_later(lab: Lab, name: str, tree: Path, toggle: str | None) -> None:
    """Some ask whether the module is there before they import it: the answer is the same, and the import is patched."""
    before = """if True:
        from importlib.util import find_spec
        spec = find_spec("sglang.srt.disaggregation.mooncake.conn")
        found["origin"] = spec.origin
        found["imported"] = "sglang.srt.disaggregation.mooncake.conn" in sys.modules
    """

    report = look(lab.installed(name), "--tree", tree, "--before", before, toggle=toggle)

    assert report.seen["found"] == {"origin": str(tree / CONN_PATH), "imported": False}
    assert report.patched if toggle else report.untouched


def test_imported_by_two_threads(lab: Lab, name: str, tree: Path) -> None:
    before = """if True:
        import importlib, threading
        threads = [
            threading.Thread(target=importlib.import_module, args=("sglang.srt.disaggregation.mooncake.conn",))
            for _ in range(16)
        ]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """

    report = look(lab.installed(name), "--tree", tree, "--before", before)

    assert report.patched
    assert report.ended.err == ""


def test_imported_before_activation(lab: Lab, name: str, tree: Path) -> None:
    """The plugin entry point alone, in a process that has imported conn.py already."""
    package = lab.target(name)
    after = "import sglang_dsv4_hotfix; sglang_dsv4_hotfix.activate()"

    report = look([lab.empty(name)], "--tree", tree, "--after", after, PYTHONPATH=package)

    assert report.patched


def test_a_log_filter_that_raises(lab: Lab, name: str, tree: Path) -> None:
    """Logging lets the exceptions of filters out; the import of SGLang must not see them."""
    broken = """if True:
        import logging
        class Broken(logging.Filter):
            def filter(self, record):
                raise KeyError("request_id")
        logging.basicConfig(level="INFO")
        logging.getLogger("sglang_dsv4_hotfix").addFilter(Broken())
        """

    report = look(lab.installed(name), "--tree", tree, "--before", broken)

    assert report.patched
    assert report.seen["error"] is None
