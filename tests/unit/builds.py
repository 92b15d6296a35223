"""Managers of both signature shapes that move bytes within this process, for the unit tests.

Stand-ins for an SGLang build, so that properties can be tested over thousands of layouts; tests/pd tests the same
properties over real builds and the real engine. Only what a build and this package have in common is here: names,
parameters, and the address arithmetic ``pointer + index * prefill's item length``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class Region(Exception):
    """A read or a write outside every registered buffer."""


class Manager:
    """What both shapes share."""

    is_mla_backend = True
    enable_custom_mem_pool = False

    def __init__(self, kv_args: Any, regions: list[np.ndarray]) -> None:
        self.kv_args = kv_args
        self.regions = regions
        #: Prefill's memory; empty for managers that are never asked to read outside it.
        self.sources: list[np.ndarray] = []
        self.engine_calls: list[list[tuple[int, int, int]]] = []
        self.engine_result = 0
        self.failures: dict[int, str] = {}
        self.aux_sent: list[int] = []

    def _transfer_data(self, mooncake_session_id: str, transfer_blocks: list[tuple[int, int, int]]) -> int:
        if not transfer_blocks:
            return 0
        self.engine_calls.append(list(transfer_blocks))
        if self.engine_result:
            return self.engine_result
        for source, destination, length in transfer_blocks:
            for regions, address in ((self.sources, source), (self.regions, destination)):
                if regions is self.sources and not regions:
                    continue
                if length < 0 or not any(
                    region.ctypes.data <= address and address + length <= region.ctypes.data + region.nbytes
                    for region in regions
                ):
                    raise Region(f"{length} bytes at {address:#x}")
            ctypes.memmove(destination, source, length)
        return 0

    def get_mla_kv_ptrs_with_pp(self, source: list[int], destination: list[int]) -> tuple[list[int], list[int]]:
        if len(source) != len(destination):
            if getattr(self.kv_args, "mla_compression_ratios", None):
                return source, destination[-len(source) :]  # stands for the sections of the last stage
            start = self.kv_args.prefill_start_layer
            destination = destination[start : start + len(source)]
        return source, destination

    def _send_kvcache_generic(
        self,
        mooncake_session_id: str,
        src_data_ptrs: list[int],
        dst_data_ptrs: list[int],
        item_lens: list[int],
        prefill_data_indices: Any,
        dst_data_indices: Any,
        executor: Any,
    ) -> int:
        source, destination = self.get_mla_kv_ptrs_with_pp(src_data_ptrs, dst_data_ptrs)
        blocks = [
            (
                source[entry] + int(i) * item_lens[entry],
                destination[entry] + int(j) * item_lens[entry],
                item_lens[entry],
            )
            for entry in range(len(source))
            for i, j in zip(prefill_data_indices, dst_data_indices, strict=False)
        ]
        return self._transfer_data(mooncake_session_id, blocks)

    def transfer_worker(self, queue: list[Any]) -> None:
        """For the status guard to read: like a build up to 0.5.16, it drops what the state send returned."""
        try:
            for req, arguments in queue:
                self.maybe_send_extra(req, *arguments)
                ret = self.send_aux(req, 0, [])
                self.failures[req.room] = "" if ret == 0 else "aux"
        except Exception as error:
            raise RuntimeError("the transfer thread is dead") from error

    def maybe_send_extra(self, req: Any, *arguments: Any) -> int:
        raise NotImplementedError

    def send_aux(self, req: Any, prefill_aux_index: int, dst_aux_ptrs: list[int]) -> int:
        self.aux_sent.append(req.room)
        return 0

    def record_failure(self, room: int, reason: str) -> None:
        self.failures[room] = reason


class ScalarManager(Manager):
    """One component, of type ``kv_args.state_type``: 0.5.9 to 0.5.11."""

    def maybe_send_extra(
        self,
        req: Any,
        prefill_state_indices: list[int],
        dst_state_data_ptrs: list[int],
        executor: Any,
        target_rank_registration_info: Any = None,
    ) -> int:
        if getattr(self.kv_args, "state_type", "none") not in ("swa", "nsa"):
            return 0
        return self._send_kvcache_generic(
            mooncake_session_id=req.mooncake_session_id,
            src_data_ptrs=self.kv_args.state_data_ptrs,
            dst_data_ptrs=dst_state_data_ptrs,
            item_lens=self.kv_args.state_item_lens,
            prefill_data_indices=np.array(prefill_state_indices, dtype=np.int32),
            dst_data_indices=np.array(req.dst_state_indices, dtype=np.int32),
            executor=executor,
        )


class EarlyManager(Manager):
    """Like ScalarManager, but prefill is not told decode's item lengths: 0.5.4 to 0.5.8.post1."""

    def maybe_send_extra(
        self, req: Any, prefill_state_indices: list[int], dst_state_data_ptrs: list[int], executor: Any
    ) -> int:
        return ScalarManager.maybe_send_extra(self, req, prefill_state_indices, dst_state_data_ptrs, executor)


class Poll:
    """As SGLang's KVPoll: plain numbers, which rooms may have too."""

    Failed = 0
    Success = 4


class StageManager(EarlyManager):
    """Like EarlyManager, but only the last pipeline stage sends aux data: up to 0.5.6.post2."""

    last_stage = False

    def __init__(self, kv_args: Any, regions: list[np.ndarray]) -> None:
        super().__init__(kv_args, regions)
        self.request_status: dict[int, int] = {}
        self.told: list[tuple[int, int]] = []

    def transfer_worker(self, queue: list[Any]) -> None:
        try:
            for req, arguments in queue:
                ret = 0
                self.maybe_send_extra(req, *arguments)
                if self.last_stage:
                    ret = self.send_aux(req, 0, [])
                status = Poll.Success if ret == 0 else Poll.Failed
                self.update_status(req.room, status)
                self.sync_status_to_decode_endpoint("host", 4, req.room, status, 4)
        except Exception as error:
            raise RuntimeError("the transfer thread is dead") from error

    def update_status(self, bootstrap_room: int, status: int) -> None:
        self.request_status[bootstrap_room] = status

    def sync_status_to_decode_endpoint(
        self, remote: str, dst_port: int, room: int, status: int, prefill_rank: int
    ) -> None:
        assert (remote, dst_port, prefill_rank) == ("host", 4, 4)
        self.told.append((room, status))


class ListManager(Manager):
    """One list an attribute, one entry a component: 0.5.12 on."""

    def maybe_send_extra(
        self, req: Any, prefill_state_indices: list[Any], executor: Any, target_rank_registration_info: Any = None
    ) -> int:
        result = 0
        for index, kind in enumerate(self.kv_args.state_types):
            indices = prefill_state_indices[index] if index < len(prefill_state_indices) else None
            if indices is None:
                continue
            if kind == "mamba":
                continue
            destination = list(req.dst_state_indices[index])
            source = list(indices)
            if len(source) != len(destination):
                common = min(len(source), len(destination))
                source, destination = source[:common], destination[:common]
            result = (
                self._send_kvcache_generic(
                    req.mooncake_session_id,
                    self.kv_args.state_data_ptrs[index],
                    target_rank_registration_info.dst_state_data_ptrs[index],
                    self.kv_args.state_item_lens[index],
                    np.array(source, dtype=np.int32),
                    np.array(destination, dtype=np.int32),
                    executor,
                )
                or result
            )
        return result


@dataclass
class Pools:
    """The state buffers of one side: ``buffers[e]`` has ``pages`` items of ``item_lengths[e]`` bytes."""

    item_lengths: list[int]
    pages: int
    fill: int = 0
    buffers: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = [np.full(self.pages * length, self.fill, dtype=np.uint8) for length in self.item_lengths]

    @property
    def pointers(self) -> list[int]:
        return [buffer.ctypes.data for buffer in self.buffers]


class Request:
    """Like SGLang's TransferInfo: a plain object that can be marked."""

    def __init__(self, room: int, dst_state_indices: list[Any]) -> None:
        self.room = room
        self.mooncake_session_id = "session"
        self.dst_state_indices = dst_state_indices


def registration(**attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(**attributes)


def scalar_pair(state_type: str, prefill: Pools, decode: Pools) -> tuple[ScalarManager, SimpleNamespace]:
    kv_args = SimpleNamespace(
        state_type=state_type,
        state_data_ptrs=prefill.pointers,
        state_data_lens=[buffer.nbytes for buffer in prefill.buffers],
        state_item_lens=prefill.item_lengths,
        prefill_start_layer=0,
    )
    peer = registration(dst_state_data_ptrs=decode.pointers, dst_state_item_lens=decode.item_lengths)
    manager = ScalarManager(kv_args, decode.buffers)
    manager.sources = prefill.buffers
    return manager, peer


def list_pair(components: list[tuple[str, Pools, Pools]]) -> tuple[ListManager, SimpleNamespace]:
    kv_args = SimpleNamespace(
        state_types=[kind for kind, _, _ in components],
        state_data_ptrs=[prefill.pointers for _, prefill, _ in components],
        state_item_lens=[prefill.item_lengths for _, prefill, _ in components],
        state_dim_per_tensor=[],
        prefill_start_layer=0,
    )
    peer = registration(
        dst_state_data_ptrs=[decode.pointers for _, _, decode in components],
        dst_state_item_lens=[decode.item_lengths for _, _, decode in components],
        dst_state_dim_per_tensor=[],
    )
    manager = ListManager(kv_args, [buffer for _, _, decode in components for buffer in decode.buffers])
    manager.sources = [buffer for _, prefill, _ in components for buffer in prefill.buffers]
    return manager, peer
