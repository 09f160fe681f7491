"""What the hosts' clocks show: offsets, drift, a slow wander, and jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.labelled.training import ORIGIN_NS

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Setting, Times


@dataclass(frozen=True)
class HostClock:
    """One host's clock; its rate wanders by `wander_ppm` over `period_s`."""

    offset_ns: int = 0
    drift_ppm: float = 0.0
    wander_ppm: float = 0.0
    period_s: float = 600.0
    phase: float = 0.0
    jump_ns: int = 0
    jump_at_ns: int = 0

    def shows(self, true_ns: Times) -> Times:
        """Return what it shows at true times."""
        elapsed_ns = (true_ns - ORIGIN_NS).astype(np.float64)
        turn = 2 * np.pi / (self.period_s * 1e9)
        swing = np.cos(self.phase) - np.cos(turn * elapsed_ns + self.phase)
        wrong = elapsed_ns * self.drift_ppm * 1e-6 + self.wander_ppm * 1e-6 / turn * swing
        jumped = np.where(true_ns >= self.jump_at_ns, self.jump_ns, 0)
        return np.asarray(true_ns + self.offset_ns + np.rint(wrong).astype(np.int64) + jumped)


def skewed(setting: Setting, offset_ms: float = 5.0, drift_ppm: float = 20.0) -> list[HostClock]:
    """Draw clocks within +-`offset_ms` and +-`drift_ppm`."""
    draw = setting.stream("clocks")
    offsets = draw.uniform(-offset_ms, offset_ms, setting.hosts) * 1e6
    drifts = draw.uniform(-drift_ppm, drift_ppm, setting.hosts)
    return [HostClock(int(o), float(d)) for o, d in zip(offsets, drifts, strict=True)]
