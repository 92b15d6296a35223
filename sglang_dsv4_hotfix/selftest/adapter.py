"""Everything that differs between the SGLang releases 0.5.6 to 0.5.23, found out by looking, never by version number.

What is looked at, in `sglang/srt`: `disaggregation/mooncake/conn.py` (manager, sender, receiver, bootstrap server),
`disaggregation/base/conn.py` (`KVArgs`, `StateType`), `disaggregation/utils.py` (`setup_state_kv_args`, state indices),
`distributed/parallel_state.py` and `layers/dp_attention.py` (groups), `server_args.py` and `runtime_context.py`
(configuration), `mem_cache/deepseek_v4_memory_pool.py` (the pool class). SGLang, Mooncake and torch are imported in the
functions, because a process that only wants to say what is missing must be able to import this module.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import socket
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from sglang_dsv4_hotfix import TARGET
from sglang_dsv4_hotfix.selftest import layouts
from sglang_dsv4_hotfix.selftest.layouts import Buffer, Group, LayoutSpec, Planned

HOST = "127.0.0.1"


class CannotRun(Exception):
    """The pair cannot be built here; the message says why in one line."""


def call(function: Callable[..., Any], *args: Any, **offered: Any) -> Any:
    """Calls `function` with `args` and those of `offered` that it has parameters for."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(*args, **offered)
    free = list(parameters)[len(args) :]
    return function(*args, **{name: value for name, value in offered.items() if name in free})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Release:
    """The installed SGLang in this process: one role, any number of managers.

    Raises CannotRun from the constructor when a needed package is missing or does not import.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        for package, means in (("sglang", "SGLang"), ("mooncake.engine", "Mooncake (mooncake-transfer-engine)")):
            self._require(package, means)
        self.conn = self._require(TARGET, "SGLang's Mooncake connector")
        self.utils = importlib.import_module("sglang.srt.disaggregation.utils")
        self.base = importlib.import_module("sglang.srt.disaggregation.base.conn")
        self._keep: list[Any] = []
        self._published: Any = None
        self._start_groups()

    @staticmethod
    def _require(name: str, means: str) -> types.ModuleType:
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise CannotRun(f"{means} cannot be imported: {type(error).__name__}: {error}") from error

    # Configuration and process groups

    def server_args(self, port: int, spec: LayoutSpec) -> Any:
        """A real `ServerArgs`, made the process's own; the model path "dummy" is one that no release resolves.

        Speculation is a plain assignment: the resolution that would ask for a draft model is what "dummy" skips.
        """
        module = importlib.import_module("sglang.srt.server_args")
        args = call(
            module.ServerArgs,
            model_path="dummy",
            device="cpu",
            host=HOST,
            page_size=spec.page_size,
            disaggregation_mode=self.role,
            disaggregation_bootstrap_port=port,
        )
        if spec.speculative:
            args.speculative_algorithm = "EAGLE"
            args.speculative_num_draft_tokens = 4
        context = _optional("sglang.srt.runtime_context")
        publish = getattr(context, "publish", None)
        if publish is not None:
            ranks = getattr(context, "SpawnRanks", None)
            call(publish, args, role="scheduler", ranks=ranks(world_rank=0) if ranks is not None else None)
        elif hasattr(module, "set_global_server_args_for_scheduler"):
            module.set_global_server_args_for_scheduler(args)
        return args

    def _start_groups(self) -> None:
        """A world of one over gloo, by the release's own functions."""
        args = self.server_args(free_port(), LayoutSpec())
        state = importlib.import_module("sglang.srt.distributed.parallel_state")

        def world() -> None:
            call(
                state.init_distributed_environment,
                world_size=1,
                rank=0,
                local_rank=0,
                backend="gloo",
                distributed_init_method=f"tcp://{HOST}:{free_port()}",
            )

        try:
            world()
        except NameError:
            _stand_in_for_sgl_kernel()
            importlib.import_module("torch").distributed.destroy_process_group()
            world()
        call(state.initialize_model_parallel, backend="gloo")

        attention = importlib.import_module("sglang.srt.layers.dp_attention")
        model = types.SimpleNamespace(hidden_size=16, dtype=None, hf_config=None, hf_text_config=None)
        try:
            call(attention.initialize_dp_attention, server_args=args, model_config=model)
        except ImportError:
            # It wants the GPU-only sgl_kernel for a flag; what the managers read is these numbers.
            for name, value in (("TP_RANK", 0), ("TP_SIZE", 1), ("DP_RANK", 0), ("DP_SIZE", 1)):
                setattr(attention, f"_ATTN_{name}", value)
            setattr(attention, "_LOCAL_ATTN_DP_RANK", 0)  # noqa: B010 - names of another module's globals
            setattr(attention, "_LOCAL_ATTN_DP_SIZE", 1)  # noqa: B010

        # Up to 0.5.8.post1 every manager makes its own engine, later they share the one of the process.
        shared = _optional("sglang.srt.distributed.device_communicators.mooncake_transfer_engine")
        if shared is not None and hasattr(shared, "init_mooncake_transfer_engine"):
            shared.init_mooncake_transfer_engine(hostname=HOST, gpu_id=0, ib_device=None)

    # Pools

    @property
    def has_lists(self) -> bool:
        """Whether state comes as a list of components (0.5.12 on)."""
        return hasattr(self.base, "StateType")

    @property
    def has_pool_class(self) -> bool:
        return self.has_lists and hasattr(_optional(_POOL_MODULE), "DeepSeekV4TokenToKVPool")

    def build(self, spec: LayoutSpec) -> tuple[Any, list[Buffer], Any]:
        """`KVArgs` for `spec`, its buffers, and the release's pool object if it has one (else None).

        The pool class reads the process's configuration: `server_args` for the same `spec` comes first. The memory
        lives as long as this object.
        """
        kv_args = self._blank_kv_args(spec)
        pool = None
        if spec.kind == "dsv4" and self.has_pool_class:
            pool = self._dsv4_pool(spec)
            buffers = self._describe_pool(pool, spec, kv_args)
        else:
            kv, state = layouts.planned(spec)
            buffers = self._allocate("kv", -1, kv)
            kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens = _infos(buffers)
            made = self._allocate("state", 0, state)
            self._describe_state(kv_args, spec, made)
            buffers += made
        aux = self._allocate("aux", -1, layouts.aux(spec))
        kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens = _infos(aux)
        return kv_args, buffers + aux, pool

    def _blank_kv_args(self, spec: LayoutSpec) -> Any:
        """`KVArgs` with every annotated field set to the value of a single rank that has nothing."""
        kv_args = self.base.KVArgs()
        for name, annotation in self.base.KVArgs.__annotations__.items():
            if hasattr(kv_args, name):
                continue
            text = str(annotation)
            empty: Any = [] if text.startswith(("List", "list")) else None
            empty = {"int": 0, "str": "", "bool": False}.get(text.replace("<class '", "").rstrip("'>"), empty)
            setattr(kv_args, name, empty)
        for name in ("kv_head_num", "total_kv_head_num", "decode_tp_size", "prefill_pp_size"):
            if hasattr(kv_args, name):
                setattr(kv_args, name, 1)
        kv_args.page_size = spec.page_size
        if hasattr(kv_args, "kv_cache_dtype_str"):
            kv_args.kv_cache_dtype_str = "auto"
        return kv_args

    def _allocate(self, group: Group, component: int, plan: Sequence[Planned]) -> list[Buffer]:
        numpy = importlib.import_module("numpy")
        buffers = []
        for entry in plan:
            array = numpy.zeros(entry.nbytes, dtype=numpy.uint8)
            self._keep.append(array)
            buffers.append(
                Buffer(
                    entry.name,
                    group,
                    component,
                    int(array.ctypes.data),
                    entry.nbytes,
                    entry.item_len,
                    ring=entry.ring,
                    row_len=entry.row_len,
                )
            )
        return buffers

    def _describe_state(self, kv_args: Any, spec: LayoutSpec, buffers: Sequence[Buffer]) -> None:
        pointers, lengths, items = _infos(buffers)
        wanted = spec.state_type or spec.kind
        if not self.has_lists:
            kv_args.state_type = wanted
            kv_args.state_data_ptrs, kv_args.state_data_lens, kv_args.state_item_lens = pointers, lengths, items
            return
        for name in [name for name in self.base.KVArgs.__annotations__ if name.startswith("state_")]:
            setattr(kv_args, name, [])
        if wanted == "none":
            return
        types_ = self.base.StateType
        # The type of an index cache was renamed in 0.5.15.
        state_type = next(getattr(types_, name) for name in _LIST_TYPES[wanted] if hasattr(types_, name))
        self.utils.append_state_component(kv_args, state_type, pointers, lengths, items)

    def _dsv4_pool(self, spec: LayoutSpec) -> Any:
        """The release's own `DeepSeekV4TokenToKVPool` on the CPU, with room for `spec.pages` pages."""
        torch = importlib.import_module("torch")
        dtype = getattr(torch, spec.state_dtype)
        module = importlib.import_module(_POOL_MODULE)
        if spec.online != bool(getattr(module, "ONLINE_C128", False)):
            raise CannotRun("online compression is read when SGLang is imported: SGLANG_OPT_USE_ONLINE_COMPRESS")
        tokens = spec.pages * spec.page_size
        pool = call(
            module.DeepSeekV4TokenToKVPool,
            max_num_reqs=spec.slots,
            num_req_slots=spec.slots,
            swa_size=tokens,
            full_size=tokens,
            c4_size=tokens // 4,
            c128_size=tokens // 128,
            c4_state_pool_size=layouts.ring_rows(4, spec.speculative, spec.online) * spec.pages,
            c128_state_pool_size=layouts.ring_rows(128, spec.speculative, spec.online) * max(spec.pages, spec.slots),
            page_size=spec.page_size,
            swa_page_size=spec.page_size,
            dtype=torch.uint8,
            state_dtype=dtype,
            c4_state_dtype=dtype,
            c128_state_dtype=dtype,
            qk_nope_head_dim=layouts.NOPE_DIM,
            qk_rope_head_dim=layouts.ROPE_DIM,
            indexer_head_dim=layouts.INDEX_HEAD_DIM,
            layer_num=len(layouts.RATIOS),
            device="cpu",
            enable_memory_saver=False,
            compression_ratios=list(layouts.RATIOS),
            start_layer=0,
            end_layer=len(layouts.RATIOS),
        )
        self._keep.append(pool)
        return pool

    def _describe_pool(self, pool: Any, spec: LayoutSpec, kv_args: Any) -> list[Buffer]:
        """Fills `kv_args` from `pool` by the release's own functions and gives its entries names.

        Names and rings come from where a pointer is found in the pool, not from its place in the list.
        """
        kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens = pool.get_contiguous_buf_infos()
        kv_args.prefill_end_layer = len(layouts.RATIOS)
        if "mla_compression_ratios" in self.base.KVArgs.__annotations__:
            kv_args.mla_compression_ratios = list(pool.compression_ratios)
        self.utils.setup_state_kv_args(kv_args, pool)
        buffers = [
            Buffer(f"kv.{i}", "kv", -1, pointer, length, item)
            for i, (pointer, length, item) in enumerate(
                zip(kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens, strict=True)
            )
        ]
        swa = {tensor.data_ptr(): f"swa.{layer}" for layer, tensor in enumerate(pool.swa_kv_pool.kv_buffer)}
        rings = {}
        for prefix, pools in (("c", pool.compress_state_pools), ("indexer", pool.indexer_compress_state_pools)):
            for layer, state in enumerate(pools):
                if state is not None:
                    name = f"c{pool.compression_ratios[layer]}.{layer}" if prefix == "c" else f"{prefix}.{layer}"
                    rings[state.kv_score_buffer.kv_score.data_ptr()] = (name, state)
        if spec.extra_entries:
            extra = self._allocate("state", 0, layouts.extra_entries(spec, kv_args.state_item_lens[0][0]))
            fields = ("state_data_ptrs", "state_data_lens", "state_item_lens")
            for field, values in zip(fields, _infos(extra), strict=True):
                getattr(kv_args, field)[0] = list(getattr(kv_args, field)[0]) + values
            swa |= {buffer.pointer: buffer.name for buffer in extra}
        for component, triples in enumerate(
            zip(kv_args.state_data_ptrs, kv_args.state_data_lens, kv_args.state_item_lens, strict=True)
        ):
            # The first component is addressed by SWA page, any later one by request slot.
            for pointer, length, item in zip(*triples, strict=True):
                if pointer in swa:
                    buffers.append(Buffer(swa[pointer], "state", component, pointer, length, item))
                    continue
                name, state = rings[pointer]
                row = state.kv_score_buffer.kv_score[0].nbytes
                by_slot = component > 0
                buffers.append(
                    Buffer(
                        name,
                        "state",
                        component,
                        pointer,
                        length,
                        item,
                        ring=0 if by_slot else state.ring_size,
                        request_ring=state.ring_size if by_slot else 0,
                        row_len=row,
                    )
                )
        return buffers

    def request_state_indices(self, pool: Any, spec: LayoutSpec, slot: int, seq_len: int) -> list[int]:
        """Indices of the component that belongs to a request slot, by the release's own function (0.5.15 on).

        Rests on `get_dsv4_c128_state_indices` (0.5.15 to 0.5.20) and `request_state_transfer_indices` (0.5.21 on).
        """
        if hasattr(pool, "request_state_transfer_indices"):
            return [int(index) for index in pool.request_state_transfer_indices(slot, seq_len)]
        ring = 1 if spec.online else pool.get_ring_size(128)
        found = self.utils.get_dsv4_c128_state_indices(slot, seq_len, online=spec.online, ring_size=ring)
        return [int(index) for index in found]

    # Manager, sender, receiver

    def bootstrap_server(self) -> int:
        """Starts the release's bootstrap server; returns its port once it answers."""
        port = free_port()
        self._keep.append(call(self.conn.MooncakeKVBootstrapServer, host=HOST, port=port))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=1):
                    return port
            except urllib.error.HTTPError:
                return port
            except OSError:
                time.sleep(0.05)
        raise CannotRun("SGLang's bootstrap server did not come up within 10 s")

    def manager(self, kv_args: Any, spec: LayoutSpec, server_args: Any) -> Any:
        mode = self.utils.DisaggregationMode(self.role)
        return call(self.conn.MooncakeKVManager, kv_args, mode, server_args, is_mla_backend=spec.is_mla)

    def sender(self, manager: Any, address: str, room: int, kv_pages: int, aux_index: int) -> Any:
        sender = call(
            self.conn.MooncakeKVSender,
            mgr=manager,
            bootstrap_addr=address,
            bootstrap_room=room,
            dest_tp_ranks=[0],
            pp_rank=0,
        )
        sender.init(kv_pages, aux_index)
        return sender

    def send(self, sender: Any, kv_pages: Sequence[int], state: list[list[int] | None] | None) -> None:
        """Queues one chunk; `state` goes with the last one only."""
        pages = _indices(kv_pages)
        if state is None:
            sender.send(pages)
        else:
            sender.send(pages, self._state_argument(state))

    def _state_argument(self, state: list[list[int] | None]) -> Any:
        if not self.has_lists:
            return state[0] if state else None
        return [None if indices is None else _indices(indices) for indices in state]

    def receiver(
        self,
        manager: Any,
        address: str,
        room: int,
        kv_pages: Sequence[int],
        aux_index: int,
        state: list[list[int] | None] | None,
    ) -> Any:
        """A receiver that has told prefill where to write.

        Raises RuntimeError when the release won't connect to that prefill side.
        """
        ensure = getattr(manager, "try_ensure_parallel_info", None)
        if ensure is not None and not ensure(address):
            raise RuntimeError(f"decode could not read prefill's parallel info from {address}")
        receiver = call(
            self.conn.MooncakeKVReceiver, mgr=manager, bootstrap_addr=address, bootstrap_room=room, prefill_dp_rank=0
        )
        indices = {
            "kv_indices": _indices(kv_pages),
            "aux_index": aux_index,
            "state_indices": None if state is None else self._state_argument(state),
        }
        if hasattr(receiver, "send_metadata"):
            receiver.init(prefill_dp_rank=0)
            call(receiver.send_metadata, **indices, decode_prefix_len=0)
        else:
            receiver.init(**indices)
        return receiver

    def status(self, end: Any) -> str:
        """Name of a sender's or receiver's `KVPoll` value: "Bootstrapping" ... "Success" or "Failed"."""
        value = end.poll()
        names = {number: name for name, number in vars(self.base.KVPoll).items() if isinstance(number, int)}
        return str(names.get(value, value))

    @staticmethod
    def failure(end: Any) -> str:
        """The reason a failed sender or receiver carries; asking takes it out of the manager's records."""
        try:
            end.failure_exception()
        except Exception as error:
            return str(getattr(error, "failure_reason", error))
        return ""


_POOL_MODULE = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_LIST_TYPES = {"dsv4": ("SWA",), "swa": ("SWA",), "nsa": ("NSA", "DSA")}


def _optional(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _indices(values: Sequence[int]) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.array(values, dtype=numpy.int32)


def _infos(buffers: Sequence[Buffer]) -> tuple[list[int], list[int], list[int]]:
    return (
        [buffer.pointer for buffer in buffers],
        [buffer.nbytes for buffer in buffers],
        [buffer.item_len for buffer in buffers],
    )


def _stand_in_for_sgl_kernel() -> None:
    """0.5.6 names the GPU-only sgl_kernel without a check while it makes a group; nothing of it is called here."""
    if importlib.util.find_spec("sgl_kernel") is not None:
        return
    module = types.ModuleType("sgl_kernel", "Stand-in of the self-test: sgl_kernel has no build for the CPU.")
    module.allreduce = None  # type: ignore[attr-defined]
    sys.modules["sgl_kernel"] = module
    for name in [name for name in sys.modules if name.endswith("sglang.srt._custom_ops")]:
        del sys.modules[name]
