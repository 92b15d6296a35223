"""One side of the pair: `python -m sglang_dsv4_hotfix.selftest.worker prefill|decode REPLY_FD`.

Reads commands as JSON lines on stdin ({"op": ..., ...}), answers each with one JSON line on REPLY_FD ({"ok": true,
"value": ...} or {"ok": false, "error": ..., "cannot_run": bool}). stdout and stderr are for SGLang's log. An operation
is a method `do_<op>` below. The first answer comes unasked, when SGLang has been imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import inspect
import json
import logging
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import sglang_dsv4_hotfix
from sglang_dsv4_hotfix.selftest import patterns
from sglang_dsv4_hotfix.selftest.adapter import HOST, CannotRun, Release, free_port
from sglang_dsv4_hotfix.selftest.layouts import Buffer, LayoutSpec


class Managed:
    """A manager of this process with what it was made from."""

    def __init__(self, manager: Any, spec: LayoutSpec, buffers: list[Buffer], pool: Any, port: int) -> None:
        self.manager = manager
        self.spec = spec
        self.buffers = buffers
        self.pool = pool
        self.port = port
        self.held = threading.Event()
        self.release = threading.Event()


class Worker:
    def __init__(self, role: str) -> None:
        self.role = role
        self.activation = activate()
        self.release = Release(role)
        self.managed: dict[str, Managed] = {}
        # By room, whatever the manager: the parent numbers its rooms once for all managers.
        self.ends: dict[int, Any] = {}
        self.begun: dict[int, float] = {}
        self.settled: dict[int, tuple[str, str, float]] = {}
        self.engine_calls: list[tuple[list[int], list[int], list[int]]] = []
        self.state_seconds: dict[str, list[float]] = {}

    def hello(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "sglang": version("sglang"),
            "mooncake": version("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"),
            "conn": self.release.conn.__file__,
            "lists": self.release.has_lists,
            "pool_class": self.release.has_pool_class,
            "activation": self.activation,
        }

    def do_make(self, name: str, spec: dict[str, Any], register_state: bool = True) -> dict[str, Any]:
        """A manager with pools of `spec`. Without `register_state` the engine doesn't get to know the state memory."""
        layout = LayoutSpec.from_json(spec)
        port = self.release.bootstrap_server() if self.role == "prefill" else free_port()
        server_args = self.release.server_args(port, layout)
        kv_args, buffers, pool = self.release.build(layout)
        lengths = kv_args.state_data_lens
        if not register_state:
            # The managers register what these lengths say and send only pointers and item lengths to their peer, so
            # that this is a decode server that forgot to register: everything else about it is as it should be.
            kv_args.state_data_lens = [[] for _ in lengths] if self.release.has_lists else []
        manager = self.release.manager(kv_args, layout, server_args)
        kv_args.state_data_lens = lengths
        self.managed[name] = Managed(manager, layout, buffers, pool, port)
        types = getattr(kv_args, "state_types", None) or [getattr(kv_args, "state_type", "none")]
        return {
            "address": f"{HOST}:{port}",
            "buffers": [buffer.to_json() for buffer in buffers],
            "state_types": [str(kind) for kind in types],
        }

    def do_request_state(self, name: str, slot: int, seq_len: int) -> list[int]:
        managed = self.managed[name]
        return self.release.request_state_indices(managed.pool, managed.spec, slot, seq_len)

    def do_fill(self, name: str, salt: int) -> None:
        for buffer in self.managed[name].buffers:
            patterns.fill(memory(buffer), f"{salt}/{buffer.name}")

    def do_snapshot(self, name: str, path: str) -> None:
        """Writes the buffers' bytes one after the other, in the order in which `make` described them."""
        with open(path, "wb") as file:
            for buffer in self.managed[name].buffers:
                file.write(memory(buffer).data)

    def do_receive(self, name: str, address: str, rooms: list[dict[str, Any]]) -> None:
        managed = self.managed[name]
        for room in rooms:
            self.begun[room["room"]] = time.monotonic()
            self.ends[room["room"]] = self.release.receiver(
                managed.manager, address, room["room"], room["kv"], room["aux"], room["state"]
            )

    def do_send(self, name: str, rooms: list[dict[str, Any]], patience: float) -> None:
        """Queues every chunk of every room whose decode side has announced itself within `patience` seconds."""
        managed = self.managed[name]
        waiting = {}
        for room in rooms:
            address = f"{HOST}:{managed.port}"
            sender = self.release.sender(managed.manager, address, room["room"], len(room["kv"]), room["aux"])
            self.ends[room["room"]] = sender
            self.begun[room["room"]] = time.monotonic()
            waiting[room["room"]] = (room, sender)
        deadline = time.monotonic() + patience
        while waiting and time.monotonic() < deadline:
            for number, (room, sender) in list(waiting.items()):
                status = self.release.status(sender)
                if status == "Bootstrapping":
                    continue
                del waiting[number]
                self.begun[number] = time.monotonic()
                if status == "WaitingForInput":
                    for index, chunk in enumerate(room["chunks"]):
                        last = index == len(room["chunks"]) - 1
                        self.release.send(sender, chunk, room["state"] if last else None)
            time.sleep(0.002)

    def do_wait(self, rooms: list[int], patience: float) -> dict[str, list[Any]]:
        """[status, failure reason, seconds] of each room, once all are settled or `patience` seconds have passed.

        The seconds count from the moment when this side handed the room to SGLang: on prefill from the first chunk.
        """
        start = time.monotonic()
        open_rooms = [room for room in rooms if room not in self.settled]
        while open_rooms:
            for room in list(open_rooms):
                status = self.release.status(self.ends[room])
                if status in ("Success", "Failed"):
                    seconds = time.monotonic() - self.begun[room]
                    reason = self.release.failure(self.ends[room]) if status == "Failed" else ""
                    self.settled[room] = (status, reason, seconds)
                    open_rooms.remove(room)
            if time.monotonic() - start > patience:
                break
            time.sleep(0.002)
        unsettled = {room: (self.release.status(self.ends[room]), "", patience) for room in open_rooms}
        return {str(room): list(self.settled.get(room) or unsettled[room]) for room in rooms}

    def do_forget(self, rooms: list[int]) -> None:
        """Clears rooms as the scheduler does when a request leaves it.

        Of failed rooms SGLang keeps the transfer infos for good, about 1 kB each; they are taken away too, so that what
        a long run's memory shows is not that.
        """
        for room in rooms:
            self.ends.pop(room).clear()
            for managed in self.managed.values():
                getattr(managed.manager, "transfer_infos", {}).pop(room, None)
            self.settled.pop(room, None)
            self.begun.pop(room, None)

    def do_threads(self) -> dict[str, int]:
        """Live threads by the name of the function that they run."""
        counts: dict[str, int] = {}
        for thread in threading.enumerate():
            function = thread.name.partition("(")[2].rstrip(")") or thread.name
            counts[function] = counts.get(function, 0) + 1
        return counts

    def do_status(self) -> dict[str, Any]:
        """What the hotfix says about this process."""
        try:
            return dict(sglang_dsv4_hotfix.status())
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def do_report(self, file: str) -> Any:
        """What the function `report` of a Python file says when it is called in this process."""
        return runpy.run_path(file)["report"]()

    def do_blacklisted(self, name: str) -> list[str]:
        """Decode sessions this prefill manager refuses to serve any more."""
        return sorted(getattr(self.managed[name].manager, "failed_sessions", ()))

    # Faults and observers. Each is put on the instance, so that the class, and what wraps its methods, stays as it is.

    def do_raise_in_sender(self, name: str, message: str, pages: list[int]) -> None:
        """Injected fault: the build's generic sender raises for one of these pages of the first state component.

        No pages take the fault away.
        """
        managed = self.managed[name]
        vars(managed.manager).pop("_send_kvcache_generic", None)
        if not pages:
            return
        original = managed.manager._send_kvcache_generic
        signature = inspect.signature(original)
        state = {buffer.pointer for buffer in managed.buffers if buffer.group == "state" and buffer.component == 0}

        def raising(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            if arguments["src_data_ptrs"][0] in state and not set(pages).isdisjoint(
                int(page) for page in arguments["prefill_data_indices"]
            ):
                raise RuntimeError(message)
            return original(*args, **kwargs)

        managed.manager._send_kvcache_generic = raising

    def do_hold_state(self, name: str) -> None:
        """Observer: the next state send waits, after KV and before the (patched) method, until `release`."""
        managed = self.managed[name]
        managed.held.clear()
        managed.release.clear()
        manager = managed.manager

        def holding(*args: Any, **kwargs: Any) -> Any:
            managed.held.set()
            managed.release.wait()
            return type(manager).maybe_send_extra(manager, *args, **kwargs)

        manager.maybe_send_extra = holding

    def do_wait_held(self, name: str, patience: float) -> bool:
        return self.managed[name].held.wait(patience)

    def do_release(self, name: str) -> None:
        managed = self.managed[name]
        managed.release.set()
        vars(managed.manager).pop("maybe_send_extra", None)

    def do_count(self, name: str) -> None:
        """Observer: from now on, remembers every batch that is handed to the manager's engine."""
        calls = self.engine_calls
        calls.clear()
        engine = self.managed[name].manager.engine
        if "batch_transfer_sync" in vars(engine):
            return
        original = engine.batch_transfer_sync

        def counting(session: str, sources: Any, destinations: Any, lengths: Any) -> Any:
            calls.append((list(sources), list(destinations), list(lengths)))
            return original(session, sources, destinations, lengths)

        engine.batch_transfer_sync = counting

    def do_counted(self, name: str) -> list[list[list[int]]]:
        """[sources, destinations, lengths] of every batch since `count`, as addresses and bytes. Ends the counting."""
        vars(self.managed[name].manager.engine).pop("batch_transfer_sync", None)
        return [[list(part) for part in batch] for batch in self.engine_calls]

    def do_time_state(self, name: str) -> None:
        """Observer: from now on, takes the time of every state send, with the (patched) method and the engine."""
        manager = self.managed[name].manager
        seconds = self.state_seconds[name] = []

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return type(manager).maybe_send_extra(manager, *args, **kwargs)
            finally:
                seconds.append(time.perf_counter() - start)

        manager.maybe_send_extra = timed

    def do_state_seconds(self, name: str) -> list[float]:
        """The times since `time_state`, in the order in which the sends ended. Ends the timing."""
        vars(self.managed[name].manager).pop("maybe_send_extra", None)
        return self.state_seconds.pop(name)


def version(*distributions: str) -> str:
    """Version of the first of `distributions` that is installed, as it is reported and never decided on."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of unknown version"


def memory(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The buffer's own bytes, not a copy."""
    return np.frombuffer((ctypes.c_ubyte * buffer.nbytes).from_address(buffer.pointer), dtype=np.uint8)


def activate() -> str:
    """Which way the hotfix came into this process: "startup", "fallback" (called here) or "off".

    "startup" is the .pth file or sitecustomize: its finder is on `sys.meta_path` before this module runs.
    """
    if sglang_dsv4_hotfix._is_waiting():
        return "startup"
    sglang_dsv4_hotfix.activate()
    return "fallback" if sglang_dsv4_hotfix._is_waiting() else "off"


def serve(role: str, reply: Callable[[dict[str, Any]], None]) -> None:
    try:
        worker = Worker(role)
    except Exception as error:
        reply(failure(error))
        return
    reply({"ok": True, "value": worker.hello()})
    for line in sys.stdin:
        command = json.loads(line)
        operation = command.pop("op")
        if operation == "exit":
            return
        try:
            reply({"ok": True, "value": getattr(worker, f"do_{operation}")(**command)})
        except Exception as error:
            reply(failure(error))


def failure(error: Exception) -> dict[str, Any]:
    traceback.print_exception(error, file=sys.stderr)
    known = isinstance(error, CannotRun)
    return {"ok": False, "error": str(error) if known else f"{type(error).__name__}: {error}", "cannot_run": known}


def main() -> None:
    role, descriptor = sys.argv[1], int(sys.argv[2])
    # As a scheduler process configures it before it imports its connector.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    with open(descriptor, "w", encoding="utf-8") as channel:

        def reply(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        serve(role, reply)
    # SGLang's managers leave threads behind that are not daemons and never end.
    os._exit(0)


if __name__ == "__main__":
    main()
