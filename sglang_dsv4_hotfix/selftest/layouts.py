"""Which buffers a side of the pair registers, how long they are, and how their rows are addressed.

Sizes are in bytes, indices count items (pages, or request slots), rings are in rows. The DeepSeek-V4 numbers follow
`DeepSeekV4TokenToKVPool` and `CompressStatePool` (`sglang/srt/mem_cache/deepseek_v4_memory_pool.py` and
`deepseek_v4_compress_state.py`, releases from 0.5.12). Releases without that class get the same buffers computed here
from the DSv4-Flash dimensions; the others build the class itself, see `adapter.Release.pool_buffers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

Kind = Literal["dsv4", "swa", "nsa", "none"]
Group = Literal["kv", "state", "aux"]

# DSv4-Flash (transformers' `deepseek_v4` configuration), cut down to one layer of each neighbourhood its pattern has:
# two without compression at the front, then ratio 4 and ratio 128 in turn.
RATIOS = (0, 0, 4, 128, 4, 128)
NOPE_DIM = 448
ROPE_DIM = 64
HEAD_DIM = NOPE_DIM + ROPE_DIM
INDEX_HEAD_DIM = 128
SLIDING_WINDOW = 128
KV_TOKEN_BYTES = NOPE_DIM + 2 * ROPE_DIM + NOPE_DIM // 64 + 1
PAGE_ALIGNMENT = 576
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}

AUX_ITEM_BYTES = (256, 64)
PLAIN_ITEM_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class LayoutSpec:
    """What a manager's pools look like, as it travels to a worker in JSON.

    `kind` chooses the buffers, `state_type` the type they are registered under on scalar builds (default: `kind`).
    `speculative`, `online` and `state_dtype` are the settings of one server that change item lengths, `extra_entries`
    puts that many more buffers at the end of the state list, as a draft model does. `pages` counts SWA pages and KV
    pages alike, `slots` aux entries and request slots.
    """

    kind: Kind = "dsv4"
    state_type: str | None = None
    speculative: bool = False
    online: bool = False
    state_dtype: str = "float32"
    extra_entries: int = 0
    pages: int = 8
    page_size: int = 256
    slots: int = 8

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayoutSpec:
        return cls(**data)

    @property
    def is_mla(self) -> bool:
        """DSv4 and NSA models use one latent buffer a layer; a plain SWA model has K and V buffers."""
        return self.kind != "swa"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One registered memory region.

    `item_len` is what `KVArgs` states for it: bytes an index stands for. `ring` is the number of rows in an item when
    rows are addressed by `page * ring + loc % ring`, 0 for a buffer whose item is a plain page. `request_ring` is the
    number of rows a *request slot* owns, in components that are addressed by slot (0.5.15 on), else 0.
    """

    name: str
    group: Group
    component: int
    pointer: int
    nbytes: int
    item_len: int
    ring: int = 0
    request_ring: int = 0
    row_len: int = 0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A buffer before it has memory: `nbytes` bytes, `item_len` bytes an index."""

    name: str
    nbytes: int
    item_len: int
    ring: int = 0

    @property
    def row_len(self) -> int:
        return self.item_len // self.ring if self.ring else 0


def padded_page(tokens: int) -> int:
    """Bytes of a page of `tokens` latent KV entries, rounded up as `DeepSeekV4SingleKVPool.create_buffer` does."""
    return -(-tokens * KV_TOKEN_BYTES // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def ring_rows(ratio: int, speculative: bool, online: bool) -> int:
    """Rows in a state ring, as `get_compress_state_ring_size` has it."""
    if ratio == 128 and online:
        return 1
    return (16 if speculative else 8) if ratio == 4 else (256 if speculative else 128)


def dsv4_state(spec: LayoutSpec) -> list[Planned]:
    """DSv4's state list: SWA pages of every layer, then compressor rings by layer, then indexer rings by layer.

    The order is `DeepSeekV4TokenToKVPool.get_state_buf_infos`'s of 0.5.12, which is the affected mainline's too.
    """
    value = DTYPE_BYTES[spec.state_dtype]
    page = padded_page(spec.page_size)
    planned = [Planned(f"swa.{layer}", page * spec.pages, page) for layer in range(len(RATIOS))]

    def ring(name: str, ratio: int, head_dim: int, online: bool) -> Planned:
        rows = ring_rows(ratio, spec.speculative, online)
        values = 3 * head_dim if online and ratio == 128 else (4 if ratio == 4 else 2) * head_dim
        item = rows * values * value
        return Planned(name, item * spec.pages, item, rows)

    for layer, ratio in enumerate(RATIOS):
        if ratio:
            planned.append(ring(f"c{ratio}.{layer}", ratio, HEAD_DIM, spec.online))
    for layer, ratio in enumerate(RATIOS):
        if ratio == 4:
            planned.append(ring(f"indexer.{layer}", ratio, INDEX_HEAD_DIM, online=False))
    return planned + extra_entries(spec, page)


def dsv4_kv(spec: LayoutSpec) -> list[Planned]:
    """DSv4's compressed KV: ratio-4 pages, indexer pages of the ratio-4 layers, ratio-128 pages."""
    compressed = padded_page(spec.page_size // 4)
    # 128 fp8 values and one fp32 scale a token.
    index = spec.page_size // 4 * (INDEX_HEAD_DIM + 4)
    far = padded_page(max(1, spec.page_size // 128))
    return (
        [Planned(f"kv.c4.{i}", compressed * spec.pages, compressed) for i in range(RATIOS.count(4))]
        + [Planned(f"kv.index.{i}", index * spec.pages, index) for i in range(RATIOS.count(4))]
        + [Planned(f"kv.c128.{i}", far * spec.pages, far) for i in range(RATIOS.count(128))]
    )


def extra_entries(spec: LayoutSpec, item_len: int) -> list[Planned]:
    return [Planned(f"extra.{i}", item_len * spec.pages, item_len) for i in range(spec.extra_entries)]


def plain(spec: LayoutSpec) -> tuple[list[Planned], list[Planned]]:
    """KV and state buffers of the models that are not DSv4.

    "swa" has K and V buffers for two layers of each kind, "nsa" one buffer for each of two layers and an index buffer
    of a smaller item, "none" has no state.
    """
    item = PLAIN_ITEM_BYTES
    size = item * spec.pages
    halves = ("k", "v") if spec.kind == "swa" else ("latent",)
    kv = [Planned(f"kv.{half}.{layer}", size, item) for half in halves for layer in range(2)]
    if spec.kind == "none":
        return kv, []
    names = [f"{half}.{layer}" for half in (("k", "v") if spec.kind == "swa" else ("index",)) for layer in range(2)]
    state_item = (item if spec.kind == "swa" else item // 4) * DTYPE_BYTES[spec.state_dtype] // 4
    state = [Planned(f"{spec.kind}.{name}", state_item * spec.pages, state_item) for name in names]
    return kv, state + extra_entries(spec, state_item)


def planned(spec: LayoutSpec) -> tuple[list[Planned], list[Planned]]:
    """KV and state buffers of `spec`, computed. Every buffer holds `spec.pages` items."""
    return (dsv4_kv(spec), dsv4_state(spec)) if spec.kind == "dsv4" else plain(spec)


def aux(spec: LayoutSpec) -> list[Planned]:
    """Metadata buffers: decode writes them into its request once the transfer is over."""
    return [Planned(f"aux.{i}", item * spec.slots, item) for i, item in enumerate(AUX_ITEM_BYTES)]


def window_pages(seq_len: int, page_size: int) -> range:
    """Logical SWA pages that travel for a request of `seq_len` tokens: those of the sliding window.

    As `_swa_payload` in `sglang/srt/disaggregation/prefill.py` cuts them.
    """
    start = max(0, seq_len - SLIDING_WINDOW) // page_size
    return range(start, -(-seq_len // page_size))


def find(buffers: Sequence[Buffer], name: str) -> Buffer:
    """The buffer called `name`; KeyError when there is none."""
    for buffer in buffers:
        if buffer.name == name:
            return buffer
    raise KeyError(name)
