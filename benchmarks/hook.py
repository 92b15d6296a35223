"""What the hook itself takes when SGLang's conn.py is imported. Runs in a release's python: prints JSON figures."""

from __future__ import annotations

import importlib
import json
import sys
import time

import wrapt  # noqa: F401  its import is not the hook's work

from benchmarks.timing import Figure


def main() -> None:
    from sglang_dsv4_hotfix import hook

    seconds: list[float] = []
    original = hook.on_import

    def timed(conn: object) -> None:
        start = time.perf_counter()
        original(conn)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)

    hook.on_import = timed  # type: ignore[assignment]
    start = time.perf_counter()
    importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    took = time.perf_counter() - start
    version = sys.modules["sglang_dsv4_hotfix.report"].sglang_version()
    remark = f"of an import that took {took:.1f} s"
    print(
        json.dumps(
            [Figure("hook", f"judge, patch, report on {version}", seconds[0] * 1e3, "ms", 5.0, remark).to_json()]
        )
    )


if __name__ == "__main__":
    main()
