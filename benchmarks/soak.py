"""A pair under steady mixed load with faults thrown in: `python -m benchmarks.soak MINUTES` in a release's python.

Batches of rooms with DeepSeek-V4 state go from one prefill manager to two decode servers, one of which speculates, and
a fifth of them fail: half of those at a third decode server whose layout is refused, half from a page whose sending
raises. After each batch every byte of the good decode pools is compared. Memory, threads and file descriptors of the
processes must stay flat. Exit code 1, and the reason, if anything is wrong.
"""

from __future__ import annotations

import dataclasses
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sglang_dsv4_hotfix.selftest import scenarios
from sglang_dsv4_hotfix.selftest.compare import Image, Request
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Manager, Pair, Process, worker_environment

PREFILL = LayoutSpec(kind="dsv4", pages=64, slots=64)
#: Each decode server's settings, and its rooms in a batch.
DECODES = {
    "alike": (PREFILL, 27),
    "speculates": (dataclasses.replace(PREFILL, speculative=True), 27),
    "misfit": (dataclasses.replace(PREFILL, state_dtype="bfloat16"), 6),
}
GOOD = ("alike", "speculates")
#: Rooms of each good decode server in a batch that are sent from the page that raises. With those of the misfit, 14 of
#: 60 rooms fail.
POISONED = 4
POISON = PREFILL.pages - 1
BATCH = sum(rooms for _, rooms in DECODES.values())
#: Up to two pages a room.
LONGEST = 2 * PREFILL.page_size

# Growth that a run may end with, however long it is: allocators keep some pages.
GROWTH_KILOBYTES = 4_000


@dataclasses.dataclass(frozen=True)
class Size:
    memory: int
    threads: int
    files: int


def size_of(process: Process) -> Size:
    directory = Path("/proc") / str(process.process.pid)
    fields = dict(
        line.split(":", 1) for line in (directory / "status").read_text(encoding="utf-8").splitlines() if ":" in line
    )
    return Size(int(fields["VmRSS"].split()[0]), int(fields["Threads"]), len(os.listdir(directory / "fd")))


class Soak:
    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.chance = random.Random(4)
        self.prefill = pair.make(pair.prefill, "soak", PREFILL)
        pair.fill(pair.prefill, self.prefill, 1)
        self.sent = pair.snapshot(pair.prefill, self.prefill)
        self.decodes: dict[str, Manager] = {}
        for label, (spec, _) in DECODES.items():
            self.decodes[label] = pair.make(pair.processes[label], label, spec)
            pair.fill(pair.processes[label], self.decodes[label], 2)
        self.rooms = self.failed = 0
        self.wrong: list[str] = []
        # The hotfix asks the build's own sender what it pairs, once for each decode server: before it is tampered with.
        self.batch(poisoned=0)
        pair.prefill.ask("raise_in_sender", name="soak", message="injected", pages=[POISON])

    def batch(self, poisoned: int = POISONED) -> None:
        """One batch of rooms, all at once; what is wrong with it is noted in `wrong`."""
        rooms: dict[str, list[Request]] = {}
        bad: set[int] = set()
        for label, (_, count) in DECODES.items():
            rooms[label] = self._requests(label, count, poisoned if label in GOOD else 0)
            failing = count if label == "misfit" else poisoned
            bad |= {request.room for request in rooms[label][:failing]}
        before = {label: self.pair.snapshot(self.pair.processes[label], self.decodes[label]) for label in GOOD}
        for label, requests in rooms.items():
            self.pair.begin(self.prefill, self.decodes[label], requests, self.pair.processes[label], timeout=60)
        for label, requests in rooms.items():
            self._settle(label, [request.room for request in requests], bad)
        for label in GOOD:
            self._compare(label, rooms[label], bad, before[label])
        self.rooms += BATCH
        self.failed += len(bad)

    def _requests(self, label: str, count: int, poisoned: int) -> list[Request]:
        """`count` requests of any length on any pages; the first `poisoned` of them include the page that raises."""

        def shuffle(pages: list[int]) -> None:
            if POISON in pages:
                pages.remove(POISON)
            self.chance.shuffle(pages)

        lengths = [self.chance.randint(1, LONGEST) for _ in range(count)]
        requests = scenarios.dsv4_requests(
            self.pair, self.prefill, self.decodes[label], self.pair.processes[label], lengths, shuffle
        )
        for number in range(poisoned):
            (first, *others) = requests[number].prefill_state or ()
            requests[number] = dataclasses.replace(
                requests[number], prefill_state=((POISON, *first[1:]), *others), tokens=None
            )
        return requests

    def _settle(self, label: str, rooms: list[int], bad: set[int]) -> None:
        for outcome in self.pair.wait(rooms, self.pair.processes[label], timeout=60):
            wanted = "Failed/Failed" if outcome.room in bad else "Success/Success"
            if outcome.statuses != wanted:
                self.wrong.append(f"room {outcome.room}: {outcome.statuses}, not {wanted} {outcome.prefill_reason}")
        for process in (self.pair.prefill, self.pair.processes[label]):
            process.ask("forget", rooms=rooms)

    def _compare(self, label: str, requests: list[Request], bad: set[int], before: Mapping[str, Image]) -> None:
        good = [request for request in requests if request.room not in bad]
        failed = [request for request in requests if request.room in bad]
        process = self.pair.processes[label]
        checks = self.pair.check(self.prefill, self.decodes[label], self.sent, before, good, failed, process)
        self.wrong += [f"{label}: {check}" for check in checks if check.right != check.wanted or check.stray]


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with Pair(env=worker_environment(hotfix="1"), decodes=tuple(DECODES)) as pair:
        soak = Soak(pair)
        for _ in range(10):  # every thread and cache is there before sizes are compared
            soak.batch()
        start = {label: size_of(process) for label, process in pair.processes.items()}
        seconds: list[float] = []
        end = time.monotonic() + 60 * minutes
        said = 0.0
        while time.monotonic() < end and not soak.wrong:
            begin = time.monotonic()
            soak.batch()
            seconds.append(time.monotonic() - begin)
            if begin - said > 30:
                said = begin
                print(f"{soak.rooms} rooms, {soak.failed} failed as they must, {_sizes(pair)}", flush=True)
        wrong = list(soak.wrong)
        for label, process in pair.processes.items():
            now, then = size_of(process), start[label]
            if now.memory - then.memory > GROWTH_KILOBYTES:
                wrong.append(f"{label}: memory grew from {then.memory} to {now.memory} kB")
            if now.threads > then.threads or now.files > then.files + 4:
                wrong.append(f"{label}: {then} became {now}")
        pace = f"median batch of {BATCH}: {statistics.median(seconds):.2f} s; " if seconds else ""
        print(f"{soak.rooms} rooms in {minutes:g} minutes, {soak.failed} failed as they must; {pace}{_sizes(pair)}")
    print("\n".join(wrong) if wrong else "every room settled right, every byte in place, nothing grew")
    return 1 if wrong else 0


def _sizes(pair: Pair) -> str:
    return ", ".join(
        f"{label} {size.memory // 1024} MB {size.threads} threads {size.files} files"
        for label, size in ((label, size_of(process)) for label, process in pair.processes.items())
    )


if __name__ == "__main__":
    sys.exit(main())
