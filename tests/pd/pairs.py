"""Pairs of a release's environment, and requests that are not a scenario of the self-test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import environments
import pytest
import shared

from sglang_dsv4_hotfix.selftest.compare import BufferCheck, Image, Request
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Manager, Outcome, Pair, Process, worker_environment

RELEASES: dict[str, Any] = environments.table()["releases"]


def with_transfers(*named: str, **wanted: object) -> pytest.MarkDecorator:
    """Parametrizes `release`: those that can transfer here, or those `named`, whose row says `wanted`."""
    chosen = [
        release
        for release, row in RELEASES.items()
        if row.get("transfer", True)
        and (not named or release in named)
        and all(row[key] == value for key, value in wanted.items())
    ]
    return shared.releases(chosen, together=True, indirect=True, scope="session")


@contextmanager
def pair_of(
    release: str,
    hotfix: str | None,
    decodes: Mapping[str, Mapping[str, str]] | Sequence[str] = ("decode",),
    tree: Path | None = None,
) -> Iterator[Pair]:
    """A pair of `release`, or of the `tree` that was made of it."""
    environment = environments.environment_for(release)
    env = worker_environment(environment.env(hotfix, *([tree] if tree else [])))
    with Pair(environment.python, env, decodes) as pair:
        assert str(pair.prefill.info["conn"]).startswith(f"{tree or environment.site}/")
        # By the .pth file of the installed wheel; with the toggle off nothing of it may be there.
        assert pair.prefill.info["activation"] == ("startup" if hotfix else "off")
        yield pair


class Bench:
    """A prefill manager and a decode manager of a pair, filled, with what their pools held before the transfers."""

    def __init__(
        self,
        pair: Pair,
        prefill: LayoutSpec,
        decode: LayoutSpec | None = None,
        process: Process | None = None,
        prefill_manager: Manager | None = None,
        register_state: bool = True,
    ) -> None:
        self.pair = pair
        self.process = process or pair.decode
        name = f"bench-{pair.new_room()}"
        self.prefill = prefill_manager or pair.make(pair.prefill, name, prefill)
        if prefill_manager is None:
            pair.fill(pair.prefill, self.prefill, 1)
        self.decode = pair.make(self.process, name, decode or prefill, register_state)
        pair.fill(self.process, self.decode, 2)
        self.sent: dict[str, Image] = pair.snapshot(pair.prefill, self.prefill)
        self.before: dict[str, Image] = pair.snapshot(self.process, self.decode)

    def request(
        self,
        prefill_state: Sequence[int] | None,
        decode_state: Sequence[int] | None,
        prefill_kv: Sequence[int] = (1, 2, 3),
        decode_kv: Sequence[int] = (4, 3, 5),
        aux: tuple[int, int] = (1, 2),
        chunks: int = 2,
    ) -> Request:
        """A request whose state is one component of these pages; None: no state indices on that side."""
        return Request(
            self.pair.new_room(),
            tuple(prefill_kv),
            tuple(decode_kv),
            *aux,
            None if prefill_state is None else (tuple(prefill_state),),
            None if decode_state is None else (tuple(decode_state),),
            chunks=chunks,
        )

    def run(self, *requests: Request, timeout: float = 30) -> list[Outcome]:
        return self.pair.run(self.prefill, self.decode, requests, self.process, timeout)

    def check(self, requests: Sequence[Request], strangers: Sequence[Request] = ()) -> list[BufferCheck]:
        return self.pair.check(self.prefill, self.decode, self.sent, self.before, requests, strangers, self.process)


def reconnect(pair: Pair, process: Process) -> None:
    """Sends to a decode process until something arrives. To be called after the engine was refused a write there.

    Decode's engine closes a connection on which it refuses a write. When prefill's has lost all of them at the moment
    when it has nothing else queued, it fails what it is given next without connecting again (Mooncake 0.3.13.post1,
    ``runGroupPump`` in tcp_transport_lane_impl.h).
    """
    outcomes = []
    for _ in range(3):
        bench = Bench(pair, LayoutSpec(kind="none", pages=8), process=process)
        outcomes += bench.run(bench.request(None, None))
        if outcomes[-1].statuses == "Success/Success":
            return
    pytest.fail(f"no connection to {process.label}: {outcomes}")


def of_group(checks: Sequence[BufferCheck], group: str) -> list[BufferCheck]:
    return [check for check in checks if check.group == group]


def assert_arrived(checks: Sequence[BufferCheck]) -> None:
    """Every unit that was wanted is in place, and no byte changed that must not."""
    wrong = [check for check in checks if check.right != check.wanted or check.stray]
    assert not wrong, "\n".join(map(str, wrong))
    assert any(check.wanted for check in checks)


def warnings_of(process: Process, since: int) -> list[str]:
    """WARNING lines that the process has logged after the first `since` characters of its log."""
    return [line for line in process.log()[since:].splitlines() if " WARNING " in line]
