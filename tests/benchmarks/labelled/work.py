"""The work of a synchronous training: what every rank would do by itself, before anybody waits."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.noise import Strength, vary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.labelled.setting import Floats, Setting

MEANS_MS: Final = {"data": 5.0, "forward": 25.0, "backprop": 55.0, "update": 15.0}
STEP_MS: Final = sum(MEANS_MS.values())
COMPUTE: Final = ("forward", "backprop", "update")
TRANSFER_MS: Final = 6.0
BUCKET_BYTES: Final = 16 << 20


@dataclass
class Work:
    """Own work in milliseconds, [step, rank], and how gradients travel.

    `gc_at` says at which share of forward and backprop together a pause falls; `transfer` is the time
    of each bucket on the wire, [step, bucket]; `hop` the part of it that one rank's send takes, [step,
    rank], where sends are recorded; `uncovered` what a rank does before it loads data, of which there is
    no span; `starts` delays each rank's first step. `layers` updates a step lie `gap` apart. `sizes` are
    the buckets' bytes where they differ.
    """

    phases: dict[str, Floats]
    checkpoint: Floats
    gc: Floats
    gc_at: Floats
    transfer: Floats
    lag: Floats
    starts: Floats
    overlap: bool = True
    bucket_bytes: int = BUCKET_BYTES
    sizes: tuple[int, ...] = ()
    hop: Floats | None = None
    uncovered: Floats | None = None
    layers: int = 1
    gap: float = 0.0
    meta: dict[str, float] = field(default_factory=dict)

    def copied(self) -> Work:
        """Return a copy that can be changed alone."""
        return deepcopy(self)

    def slow(self, factor: float, ranks: list[int], rows: slice = slice(None)) -> None:
        """Make all that ranks compute last `factor` times as long in some steps."""
        for name in COMPUTE:
            self.phases[name][rows, ranks] *= factor


def draw(
    setting: Setting,
    buckets: int = 2,
    means: Mapping[str, float] = MEANS_MS,
    strength: Strength | None = None,
) -> Work:
    """Draw a healthy run."""
    shape = (setting.steps, setting.ranks)
    wire = setting.stream("wire").standard_normal((setting.steps, buckets))
    lag = setting.stream("lag").lognormal(
        np.log(8e-3), 0.5, (setting.steps, buckets, setting.ranks)
    )
    return Work(
        phases=vary(setting, means, strength),
        checkpoint=np.zeros(shape),
        gc=np.zeros(shape),
        gc_at=setting.stream("gc").random(shape),
        transfer=TRANSFER_MS / buckets * np.exp(0.05 * wire),
        lag=lag,
        starts=np.zeros(setting.ranks),
    )
