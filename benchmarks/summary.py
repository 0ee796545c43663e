"""Percentiles and ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below `share` percent of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def best(values: Sequence[float], better: Literal["more", "less"]) -> float:
    return max(values) if better == "more" else min(values)
