"""A call of `maybe_send_extra`, unwrapped and wrapped. Runs in the python of an SGLang release: prints JSON figures.

The class is the release's own; its manager is made without `__init__`, as that would open an engine, and the last step,
`_transfer_data`, answers 0: what is left is the method's own Python time, and ours on top of it.
"""

from __future__ import annotations

import importlib
import json
import statistics
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.timing import Figure, exponent, interleaved, median_ratio, undisturbed
from sglang_dsv4_hotfix import TARGET
from sglang_dsv4_hotfix.selftest.layouts import padded_page, ring_rows

# Layers by compress ratio: two without, then 4 and 128 in turn. 43 layers for Flash, 61 for Pro: 105 and 150 buffers.
MODELS = {name: (0, 0, *([4, 128] * 30)[: layers - 2]) for name, layers in (("Flash", 43), ("Pro", 61))}
HEAD_DIM, INDEX_HEAD_DIM, FLOAT32 = 512, 128, 4


def item_lengths(ratios: Sequence[int], speculative: bool) -> list[int]:
    """Bytes a page index of every state buffer of a model, in DeepSeek-V4's order."""

    def ring(ratio: int, dim: int) -> int:
        return ring_rows(ratio, speculative, online=False) * (4 if ratio == 4 else 2) * dim * FLOAT32

    swa = [padded_page(256)] * len(ratios)
    compressors = [ring(ratio, HEAD_DIM) for ratio in ratios if ratio]
    return swa + compressors + [ring(4, INDEX_HEAD_DIM) for ratio in ratios if ratio == 4]


def answering(manager: Any, session: str, blocks: object) -> int:
    return 0


class Bench:
    """The release's class with and without the wrapper."""

    def __init__(self) -> None:
        conn = importlib.import_module(TARGET)
        self.manager_class = conn.MooncakeKVManager
        self.wrapper = vars(self.manager_class)["maybe_send_extra"]
        self.original = self.wrapper.__wrapped__
        self.manager_class._transfer_data = answering

    def call(
        self, method: Any, state_type: str, source: list[int], destination: list[int], pages: int
    ) -> Callable[[], Any]:
        """A call of `method` (the wrapper or the original) for one request of `pages` pages."""
        manager = object.__new__(self.manager_class)
        manager.is_mla_backend, manager.enable_custom_mem_pool, manager.attn_tp_size = True, False, 1
        manager.kv_args = SimpleNamespace(
            state_type=state_type,
            state_data_ptrs=[(1 << 40) + (entry << 30) for entry in range(len(source))],
            state_data_lens=source,
            state_item_lens=source,
            prefill_start_layer=0,
            page_size=256,
        )
        peer = SimpleNamespace(
            dst_state_data_ptrs=[(1 << 50) + (entry << 30) for entry in range(len(destination))],
            dst_state_item_lens=destination,
            dst_attn_tp_size=1,
        )
        # Every other page, as pages of a busy pool are: neighbours would go as one block.
        source_pages, destination_pages = list(range(0, 2 * pages, 2)), list(range(1, 2 * pages, 2))
        request = SimpleNamespace(room=1, mooncake_session_id="bench", dst_state_indices=destination_pages)
        bound = method.__get__(manager, self.manager_class)

        def call() -> Any:
            return bound(request, source_pages, peer.dst_state_data_ptrs, None, peer)

        # The build's own method knows nothing of rings that are longer on decode.
        lengths = destination if method is self.wrapper else source
        self._check(call, 0 if state_type == "none" else pages * sum(lengths))
        return call

    def _check(self, call: Callable[[], Any], wanted: int) -> None:
        """The call hands `wanted` bytes to the engine: what does nothing is fast."""
        handed: list[int] = []

        def noting(manager: Any, session: str, blocks: Sequence[tuple[int, int, int]]) -> int:
            handed.extend(length for _, _, length in blocks)
            return 0

        self.manager_class._transfer_data = noting
        status = call()
        self.manager_class._transfer_data = answering
        assert (status, sum(handed)) == (0, wanted), f"{status}, {sum(handed)} bytes, not {wanted}"

    def pair(self, changed: str, source: list[int], destination: list[int], pages: int) -> dict[str, Callable[[], Any]]:
        """The upstream-fixed path, "nsa" through the original, twice (A/A), and ours."""
        fixed = self.call(self.original, "nsa", source, destination, pages)
        return {"fixed": fixed, "again": fixed, "ours": self.call(self.wrapper, changed, source, destination, pages)}


def unchanged(bench: Bench) -> list[Figure]:
    figures = []
    # A short list: what the wrapper takes does not depend on it, and is seen better over a short call.
    lengths = [padded_page(256)] * 8
    for state_type, repeat in (("none", 500), ("swa", 50)):
        bare = bench.call(bench.original, state_type, lengths, lengths, 2)
        wrapped = bench.call(bench.wrapper, state_type, lengths, lengths, 2)
        seconds = interleaved({"bare": bare, "again": bare, "wrapped": wrapped}, 400, repeat)
        over = (undisturbed(seconds["wrapped"]) - undisturbed(seconds["bare"])) * 1e6
        noise = (undisturbed(seconds["again"]) - undisturbed(seconds["bare"])) * 1e6
        figures.append(
            Figure("call", f'"{state_type}", not changed: over the bare call', over, "us", 3.0, f"A/A {noise:+.2f} us")
        )
    return figures


def changed(bench: Bench) -> list[Figure]:
    figures = []
    for model, ratios in MODELS.items():
        equal, wide = item_lengths(ratios, False), item_lengths(ratios, True)
        for pages in (1, 2, 16, 64):
            for name, destination in (("dsv4", equal), ("dsv4, rings twice", wide)):
                seconds = interleaved(
                    bench.pair("dsv4", equal, destination, pages), 600 // pages + 30, 5 if pages < 16 else 1
                )
                ratio = median_ratio(seconds["ours"], seconds["fixed"])
                noise = median_ratio(seconds["again"], seconds["fixed"])
                goal = 1.10 if name == "dsv4" and (model, pages) == ("Pro", 2) else None
                label = f"{name}, {model}, {len(equal)} buffers, {pages} pages: ours to upstream-fixed"
                micro = statistics.median(seconds["ours"]) * 1e6
                figures.append(Figure("call", label, ratio, "", goal, f"A/A {noise:.3f}; {micro:.0f} us"))
    return figures


def growth(bench: Bench) -> list[Figure]:
    """Exponents of our time over the number of buffers and of pages, of a changed call with rings to expand."""
    by_layers = {}
    for count in (16, 32, 64, 128, 256):
        ratios = (0, 0, *([4, 128] * count)[: count - 2])
        by_layers[count] = bench.call(
            bench.wrapper, "dsv4", item_lengths(ratios, False), item_lengths(ratios, True), pages=8
        )
    source, wide = item_lengths(MODELS["Flash"], False), item_lengths(MODELS["Flash"], True)
    by_pages = {count: bench.call(bench.wrapper, "dsv4", source, wide, count) for count in (8, 16, 32, 64, 128)}
    return [
        Figure("growth", "time over buffers: exponent", _exponent(by_layers), "", 1.1),
        Figure("growth", "time over pages: exponent", _exponent(by_pages), "", 1.1),
    ]


def _exponent(calls: dict[int, Callable[[], Any]]) -> float:
    seconds = interleaved({str(size): call for size, call in calls.items()}, 41)
    return exponent(list(calls), [statistics.median(seconds[str(size)]) for size in calls])


def main() -> None:
    bench = Bench()
    print(json.dumps([figure.to_json() for figure in unchanged(bench) + changed(bench) + growth(bench)]))


if __name__ == "__main__":
    main()
