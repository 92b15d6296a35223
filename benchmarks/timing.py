"""Interleaved runs, and the figures that are printed from them."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One printed line. `goal` is the bound that the figure is held against, None where there is none."""

    part: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    remark: str = ""

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "ok" if self.value <= self.goal else "missed"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


def rounds_of(names: Collection[str], rounds: int) -> Iterator[str]:
    """The names, each once a round, in another order each time: what goes before leaves traces in caches and clocks."""
    chance = random.Random(7)
    for _ in range(rounds):
        yield from chance.sample(list(names), len(names))


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int, repeat: int = 1) -> dict[str, list[float]]:
    """Seconds a call of each candidate, one value a round; in each round every candidate has its turn.

    What the machine does meanwhile hits all candidates alike that way. `repeat` calls make one measurement.
    """
    for candidate in candidates.values():
        candidate()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for name in rounds_of(candidates, rounds):
        candidate = candidates[name]
        start = time.perf_counter()
        for _ in range(repeat):
            candidate()
        seconds[name].append((time.perf_counter() - start) / repeat)
    return seconds


def undisturbed(seconds: Sequence[float]) -> float:
    """The lowest decile: what a call takes when nothing else happens. For differences much smaller than the noise."""
    return statistics.quantiles(seconds, n=10)[0]


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios round by round, which is steadier than the ratio of the medians."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which the true median lies with a probability of 99 %, by the ranks around it."""
    ordered, half = sorted(values), 1.3 * math.sqrt(len(values))
    middle = len(values) / 2
    return ordered[max(0, int(middle - half))], ordered[min(len(values) - 1, int(middle + half))]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of the power law seconds ~ sizes ** p, by least squares on the logarithms."""
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    slope, _ = statistics.linear_regression(xs, ys)
    return slope


def table(figures: Sequence[Figure]) -> str:
    rows = [("part", "figure", "value", "goal", "", "")]
    for figure in figures:
        value, goal = _number(figure.value), "" if figure.goal is None else f"<= {_number(figure.goal)}"
        rows.append((figure.part, figure.name, f"{value} {figure.unit}".strip(), goal, figure.verdict, figure.remark))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
