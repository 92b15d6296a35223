"""What the hook takes when SGLang's conn.py is imported. Runs in a release's python: prints JSON figures."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sglang_dsv4_hotfix
from benchmarks.timing import Figure

GOAL = 5.0


def main() -> None:
    milliseconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        milliseconds[name] = (time.perf_counter() - start) * 1e3

    def register() -> None:
        with timed("wrapt"):
            import wrapt  # noqa: F401
        with timed("load"):
            from sglang_dsv4_hotfix import build, hook
        hook.on_import = timed("work")(hook.on_import)
        build.parse = timed("parse")(build.parse)
        hook.register(sglang_dsv4_hotfix.TARGET)

    # As the finder calls it when SGLang looks for the module.
    sglang_dsv4_hotfix._register_hook = register
    with timed("import"):
        importlib.import_module(sglang_dsv4_hotfix.TARGET)
    status = sglang_dsv4_hotfix.status()
    assert status["problem"] is None
    assert any(fix["patched"] for fix in status["fixes"].values())  # type: ignore[attr-defined]
    remark = (
        f"{milliseconds['load']:.1f} of it to load its modules, {milliseconds['parse']:.1f} to parse; "
        f"besides, wrapt's import {milliseconds['wrapt']:.0f} and SGLang's {milliseconds['import']:.0f}"
    )
    name = f"load, judge, patch, report on {status['sglang']['version']}"  # type: ignore[index]
    print(json.dumps([Figure("hook", name, milliseconds["load"] + milliseconds["work"], "ms", GOAL, remark).to_json()]))


if __name__ == "__main__":
    main()
