"""Medians with their bootstrap intervals."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median and its 95% interval; all 0 where there was nothing to measure (`n` is 0)."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} - {self.high:.3f})" if self.n else "-"

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def resample(n: int, statistic: Callable[[Sequence[int]], float], n_resamples: int = RESAMPLES) -> list[float]:
    """Return the statistic of each bootstrap resample of n things, by their indices; a fixed seed, sorted."""
    draw = random.Random(0)
    indices = range(n)
    return sorted(statistic(draw.choices(indices, k=n)) for _ in range(n_resamples))


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median and its 95% percentile bootstrap interval."""
    if not values:
        return Interval(0.0, 0.0, 0.0, 0)
    medians = resample(len(values), lambda chosen: statistics.median(values[i] for i in chosen))
    low, high = medians[int(0.025 * len(medians))], medians[int(0.975 * len(medians)) - 1]
    return Interval(statistics.median(values), low, high, len(values))
