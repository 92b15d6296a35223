"""A pair under steady mixed load with faults thrown in: `python -m benchmarks.soak MINUTES` in a release's python.

Batches of rooms go from one prefill manager to two decode processes, and a fifth of them fail: half of those at a third
decode server whose layout is refused, half from a page whose sending raises. After each batch every byte of the good
decode pools is compared. Memory, threads and file descriptors of the processes must stay flat. Exit code 1, and the
reason, if anything is wrong.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from pathlib import Path

from sglang_dsv4_hotfix.selftest.compare import Request
from sglang_dsv4_hotfix.selftest.layouts import LayoutSpec
from sglang_dsv4_hotfix.selftest.pair import Manager, Pair, Process, worker_environment

SPEC = LayoutSpec(kind="nsa", pages=128, slots=64)
MISFIT = dataclasses.replace(SPEC, state_dtype="bfloat16")
POISON = SPEC.pages - 1
BATCH = 60
GOOD = ("first", "second")
# Growth that a run may end with: allocators keep some pages, and SGLang's own tables of rooms grow.
KILOBYTES_A_ROOM = 2.0
FLOOR_KILOBYTES = 20_000


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
        self.prefill = pair.make(pair.prefill, "soak", SPEC)
        pair.fill(pair.prefill, self.prefill, 1)
        self.sent = pair.snapshot(pair.prefill, self.prefill)
        self.decodes: dict[str, Manager] = {}
        for label, spec in (*((label, SPEC) for label in GOOD), ("misfit", MISFIT)):
            self.decodes[label] = pair.make(pair.processes[label], label, spec)
            pair.fill(pair.processes[label], self.decodes[label], 2)
        pair.prefill.ask("raise_in_sender", name="soak", message="injected", pages=[POISON])
        self.rooms = self.failed = 0
        self.wrong: list[str] = []

    def batch(self) -> None:
        rooms: dict[str, list[Request]] = {label: [] for label in self.decodes}
        bad: set[int] = set()
        for number in range(BATCH):
            fails = number % 5 == 4
            label = "misfit" if number % 10 == 9 else GOOD[number % len(GOOD)]
            page = len(rooms[label])
            source = POISON if fails and label != "misfit" else (self.rooms + number) % POISON
            request = Request(
                self.pair.new_room(),
                prefill_kv=(number, number + 1),
                decode_kv=(2 * page, 2 * page + 1),
                prefill_aux=number,
                decode_aux=page,
                prefill_state=((source,),),
                decode_state=((page,),),
            )
            rooms[label].append(request)
            if fails:
                bad.add(request.room)
        before = {label: self._image(label) for label in GOOD}
        for label, requests in rooms.items():
            self.pair.begin(self.prefill, self.decodes[label], requests, self.pair.processes[label], timeout=60)
        for label, requests in rooms.items():
            numbers = [request.room for request in requests]
            for outcome in self.pair.wait(numbers, self.pair.processes[label], timeout=60):
                wanted = "Failed/Failed" if outcome.room in bad else "Success/Success"
                if outcome.statuses != wanted:
                    self.wrong.append(f"room {outcome.room}: {outcome.statuses}, not {wanted}")
            for process in (self.pair.prefill, self.pair.processes[label]):
                process.ask("forget", rooms=numbers)
        for label in GOOD:
            good = [request for request in rooms[label] if request.room not in bad]
            failed = [request for request in rooms[label] if request.room in bad]
            checks = self.pair.check(
                self.prefill, self.decodes[label], self.sent, before[label], good, failed, self.pair.processes[label]
            )
            self.wrong += [f"{label}: {check}" for check in checks if check.right != check.wanted or check.stray]
        self.rooms += BATCH
        self.failed += len(bad)

    def _image(self, label: str) -> dict[str, object]:
        return self.pair.snapshot(self.pair.processes[label], self.decodes[label])  # type: ignore[return-value]


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with Pair(env=worker_environment(hotfix="1"), decodes=(*GOOD, "misfit")) as pair:
        soak = Soak(pair)
        for _ in range(10):  # every thread and cache is there before sizes are compared
            soak.batch()
        warm = soak.rooms
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
            allowed = FLOOR_KILOBYTES + KILOBYTES_A_ROOM * (soak.rooms - warm)
            if now.memory - then.memory > allowed:
                wrong.append(f"{label}: memory grew from {then.memory} to {now.memory} kB")
            if now.threads > then.threads or now.files > then.files + 4:
                wrong.append(f"{label}: {then} became {now}")
        print(
            f"{soak.rooms} rooms in {minutes:g} minutes, {soak.failed} failed as they must; "
            f"median batch of {BATCH}: {statistics.median(seconds):.2f} s; {_sizes(pair)}"
        )
    print("\n".join(wrong) if wrong else "every room settled right, every byte in place, nothing grew")
    return 1 if wrong else 0


def _sizes(pair: Pair) -> str:
    return ", ".join(
        f"{label} {size.memory // 1024} MB {size.threads} threads {size.files} files"
        for label, size in ((label, size_of(process)) for label, process in pair.processes.items())
    )


if __name__ == "__main__":
    sys.exit(main())
