"""Shares with their 95 % interval."""

from __future__ import annotations

from scipy.special import betaincinv


def exact(count: int, total: int, missed: float = 0.05) -> tuple[float, float]:
    """Return the interval of a share (Clopper and Pearson 1934)."""
    if not total:
        return 0.0, 1.0
    low = float(betaincinv(count, total - count + 1, missed / 2)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - missed / 2)) if count < total else 1.0
    return low, high
