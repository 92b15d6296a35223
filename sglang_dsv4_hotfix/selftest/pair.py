"""The parent's side: starts the workers, gives them requests, and returns what happened as plain data."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from sglang_dsv4_hotfix.selftest import compare
from sglang_dsv4_hotfix.selftest.adapter import CannotRun
from sglang_dsv4_hotfix.selftest.compare import BufferCheck, Image, Request
from sglang_dsv4_hotfix.selftest.layouts import Buffer, LayoutSpec

IMPORT_TIMEOUT = 180.0
COMMAND_TIMEOUT = 60.0

Progress = Callable[[str], None]


class WorkerDied(Exception):
    """A worker ended or stopped answering; the message has the tail of what it wrote to stderr."""


class WorkerError(Exception):
    """An operation raised in a worker; the message is the exception's."""


@dataclasses.dataclass(frozen=True)
class Manager:
    """A manager in a worker: its name there, its layout, and its buffers in the order of a snapshot."""

    name: str
    spec: LayoutSpec
    address: str
    buffers: tuple[Buffer, ...]
    state_types: tuple[str, ...]

    @property
    def components(self) -> int:
        return 1 + max((buffer.component for buffer in self.buffers), default=-1)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a room ended on each side: `KVPoll` names, the failure reasons, and the longer side's seconds to the end."""

    room: int
    prefill: str
    decode: str
    prefill_reason: str
    decode_reason: str
    seconds: float

    @property
    def statuses(self) -> str:
        return f"{self.prefill}/{self.decode}"


class Process:
    """A worker process. Not to be used after `kill` or `stop`."""

    def __init__(self, role: str, label: str, python: str, env: Mapping[str, str], log: Path) -> None:
        self.label = label
        self.log_path = log
        read, write = os.pipe()
        self._log = log.open("wb")
        try:
            self.process = subprocess.Popen(
                [python, "-m", "sglang_dsv4_hotfix.selftest.worker", role, str(write)],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=dict(env),
                pass_fds=(write,),
            )
        finally:
            os.close(write)
        self._replies = os.fdopen(read, "rb", buffering=0)
        self._buffer = b""
        self.info: dict[str, Any] = {}

    def ask(self, op: str, timeout: float = COMMAND_TIMEOUT, **arguments: Any) -> Any:
        """Runs an operation of `worker.Worker` and returns its value.

        Raises WorkerError when it raised there, CannotRun when it said so, WorkerDied without an answer in `timeout`
        seconds.
        """
        self.post(op, **arguments)
        return self.answer(timeout)

    def post(self, op: str, **arguments: Any) -> None:
        """Sends an operation without waiting; `answer` must follow."""
        stdin: IO[bytes] | None = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise WorkerDied(f"the {self.label} process is gone\n{self.tail()}") from error

    def answer(self, timeout: float) -> Any:
        line = self._line(time.monotonic() + timeout)
        message = json.loads(line)
        if message["ok"]:
            return message["value"]
        raise (CannotRun if message["cannot_run"] else WorkerError)(f"{self.label}: {message['error']}")

    def _line(self, deadline: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise WorkerDied(f"the {self.label} process did not answer in time\n{self.tail()}")
                data = os.read(self._replies.fileno(), 1 << 20)
                if not data:
                    code = self.process.wait()
                    raise WorkerDied(f"the {self.label} process ended with {code}\n{self.tail()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def ready(self, poll: float) -> bool:
        """Whether an answer has begun to arrive within `poll` seconds."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            return bool(self._buffer or selector.select(poll))

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(WorkerDied):
                self.post("exit")
            try:
                self.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self._replies.close()
        self._log.close()


def worker_environment(env: Mapping[str, str] | None = None, hotfix: str | None = "inherit") -> dict[str, str]:
    """`env` (default: this process's) with what keeps a pair on loopback, over TCP, on the CPU.

    `hotfix`: value of SGLANG_DSV4_HOTFIX for the workers, None to remove it, "inherit" to leave it.
    """
    variables = dict(os.environ if env is None else env)
    variables |= {"MC_FORCE_TCP": "1", "SGLANG_HOST_IP": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}
    variables.setdefault("SGLANG_DISAGGREGATION_QUEUE_SIZE", "4")
    variables.setdefault("SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", "4")
    variables.setdefault("MC_LOG_LEVEL", "ERROR")
    # Requests to the bootstrap server must not go through a proxy.
    variables["NO_PROXY"] = variables["no_proxy"] = "127.0.0.1,localhost"
    if hotfix is None:
        variables.pop("SGLANG_DSV4_HOTFIX", None)
    elif hotfix != "inherit":
        variables["SGLANG_DSV4_HOTFIX"] = hotfix
    root = str(Path(__file__).resolve().parents[2])
    if env is None and root not in (os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")):
        # A checkout, or another directory on the path: the workers find it, and its sitecustomize, in the same way.
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, variables.get("PYTHONPATH"))))
    return variables


class Pair:
    """A prefill process and one or more decode processes, as a context manager.

    `python` and `env` choose the interpreter and the installation (default: this one). `decodes` maps labels of decode
    processes to variables that only they get. `progress` is told what is going on, a line at a time.
    Raises CannotRun when SGLang or Mooncake isn't there, WorkerDied when a process ends.
    """

    def __init__(
        self,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        decodes: Mapping[str, Mapping[str, str]] | Sequence[str] = ("decode",),
        progress: Progress = lambda line: None,
        log_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._python = python
        self._env = worker_environment() if env is None else dict(env)
        self._own_variables: dict[str, Mapping[str, str]] = (
            dict(decodes) if isinstance(decodes, Mapping) else {label: {} for label in decodes}
        )
        self._progress = progress
        self._directory = tempfile.TemporaryDirectory(prefix="pd-pair-", ignore_cleanup_errors=True)
        self._logs = Path(log_directory or self._directory.name)
        self.processes: dict[str, Process] = {}
        self._room = 0

    def __enter__(self) -> Pair:
        try:
            self._start("prefill", "prefill", {})
            for label, variables in self._own_variables.items():
                self._start("decode", label, variables)
            self._await_imports(list(self.processes.values()))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes.values():
            process.stop()
        self._directory.cleanup()

    def _start(self, role: str, label: str, variables: Mapping[str, str]) -> Process:
        log = self._logs / f"{label}.log"
        process = self.processes[label] = Process(role, label, self._python, {**self._env, **variables}, log)
        return process

    def add_decodes(self, *labels: str, **variables: str) -> list[Process]:
        """Decode processes of these labels; those that are not there yet are started, with `variables` of their own."""
        started = [self._start("decode", label, variables) for label in labels if label not in self.processes]
        self._await_imports(started)
        return [self.processes[label] for label in labels]

    def _await_imports(self, processes: Sequence[Process]) -> None:
        start = time.monotonic()
        waiting = list(processes)
        said = start
        while waiting:
            for process in list(waiting):
                if process.ready(0.2):
                    process.info = process.answer(5)
                    waiting.remove(process)
            now = time.monotonic()
            if waiting and now - said > 10:
                said = now
                names = " and ".join(process.label for process in waiting)
                self._progress(f"{names}: importing SGLang ({now - start:.0f} s)")
            if waiting and now - start > IMPORT_TIMEOUT:
                raise WorkerDied(f"SGLang was not imported within {IMPORT_TIMEOUT:.0f} s\n{waiting[0].tail()}")

    @property
    def prefill(self) -> Process:
        return self.processes["prefill"]

    @property
    def decode(self) -> Process:
        return next(process for label, process in self.processes.items() if label != "prefill")

    def new_room(self) -> int:
        self._room += 1
        return self._room

    # Managers and pools

    def make(self, process: Process, name: str, spec: LayoutSpec, register_state: bool = True) -> Manager:
        made = process.ask("make", name=name, spec=spec.to_json(), register_state=register_state)
        buffers = tuple(Buffer(**buffer) for buffer in made["buffers"])
        return Manager(name, spec, made["address"], buffers, tuple(made["state_types"]))

    def fill(self, process: Process, manager: Manager, salt: int) -> None:
        process.ask("fill", name=manager.name, salt=salt)

    def snapshot(self, process: Process, manager: Manager) -> dict[str, Image]:
        """The bytes of every buffer of `manager`, by name."""
        path = Path(self._directory.name) / f"{process.label}-{manager.name}.bin"
        process.ask("snapshot", name=manager.name, path=str(path))
        content = np.fromfile(path, dtype=np.uint8)
        path.unlink()
        images = {}
        start = 0
        for buffer in manager.buffers:
            images[buffer.name] = content[start : start + buffer.nbytes]
            start += buffer.nbytes
        return images

    # Requests

    def run(
        self,
        prefill: Manager,
        decode: Manager,
        requests: Sequence[Request],
        process: Process | None = None,
        timeout: float = 20.0,
    ) -> list[Outcome]:
        """Sends `requests` from `prefill` to `decode` (in `process`, default the first decode) and waits for the ends.

        Rooms that are still open after `timeout` seconds come back with the status they have.
        """
        self.begin(prefill, decode, requests, process, timeout)
        return self.wait([request.room for request in requests], process, timeout)

    def begin(
        self,
        prefill: Manager,
        decode: Manager,
        requests: Sequence[Request],
        process: Process | None = None,
        timeout: float = 20.0,
    ) -> None:
        """Announces and queues `requests`, doesn't wait for them."""
        receiving = process or self.decode
        receiving.ask(
            "receive",
            name=decode.name,
            address=prefill.address,
            rooms=[
                {
                    "room": request.room,
                    "kv": request.decode_kv,
                    "aux": request.decode_aux,
                    "state": request.decode_state,
                }
                for request in requests
            ],
        )
        self.prefill.ask(
            "send",
            timeout + COMMAND_TIMEOUT,
            name=prefill.name,
            patience=timeout,
            rooms=[
                {
                    "room": request.room,
                    "kv": request.prefill_kv,
                    "aux": request.prefill_aux,
                    "state": request.prefill_state,
                    "chunks": list(chunks(request.prefill_kv, request.chunks)),
                }
                for request in requests
            ],
        )

    def wait(self, rooms: Sequence[int], process: Process | None = None, timeout: float = 20.0) -> list[Outcome]:
        """How `rooms` ended. A side whose process is no more says "Gone"."""
        gone: dict[str, list[Any]] = {str(room): ["Gone", "", 0.0] for room in rooms}
        both = (self.prefill, process or self.decode)
        alive = [side for side in both if side.process.poll() is None]
        for side in alive:
            side.post("wait", rooms=list(rooms), patience=timeout)
        answers = {side.label: side.answer(timeout + COMMAND_TIMEOUT) for side in alive}
        sides: list[dict[str, list[Any]]] = [answers.get(side.label, gone) for side in both]
        outcomes = []
        for room in rooms:
            (first, why, took), (second, reason, also) = (side[str(room)] for side in sides)
            outcomes.append(Outcome(room, first, second, why, reason, max(took, also)))
        return outcomes

    def count(self, prefill: Manager) -> None:
        """From now on remembers what prefill's engine is asked to do; forgets what was before."""
        self.prefill.ask("count", name=prefill.name)

    def counted(self, prefill: Manager, decode: Manager) -> list[tuple[Block, ...]]:
        """What the engine was asked to do since `count`, a batch each, in names instead of addresses, to be compared.

        Batches are in the order in which the transfer threads made them. Blocks between other managers are left out.
        """
        batches = []
        for sources, destinations, lengths in self.prefill.ask("counted", name=prefill.name):
            named = (
                (_locate(prefill.buffers, source), _locate(decode.buffers, destination), length)
                for source, destination, length in zip(sources, destinations, lengths, strict=True)
            )
            blocks = tuple(Block(*source, *target, length) for source, target, length in named if source and target)
            if blocks:
                batches.append(blocks)
        return batches

    def check(
        self,
        prefill: Manager,
        decode: Manager,
        sent: Mapping[str, Image],
        before: Mapping[str, Image],
        requests: Sequence[Request],
        strangers: Sequence[Request] = (),
        process: Process | None = None,
    ) -> list[BufferCheck]:
        """Compares decode's pools as they are now with what `requests` must have put there."""
        after = self.snapshot(process or self.decode, decode)
        return compare.check(prefill.buffers, decode.buffers, sent, before, after, requests, strangers)


@dataclasses.dataclass(frozen=True)
class Block:
    """A write the engine was asked for: `length` bytes from an offset of prefill's buffer to one of decode's."""

    source: str
    source_offset: int
    target: str
    target_offset: int
    length: int


def _locate(buffers: Sequence[Buffer], address: int) -> tuple[str, int] | None:
    for buffer in buffers:
        if buffer.pointer <= address < buffer.pointer + buffer.nbytes:
            return buffer.name, address - buffer.pointer
    return None


def chunks(pages: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """`pages` in `count` runs, or fewer when there are fewer pages; the last one is the longest."""
    size = max(1, len(pages) // count)
    starts = [i * size for i in range(count) if i * size < len(pages)] or [0]
    for start, end in zip(starts, [*starts[1:], len(pages)], strict=True):
        yield tuple(pages[start:end])
