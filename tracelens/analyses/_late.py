"""What a detector hands on: ranks that are late in a phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tracelens.analyses.result import Pattern

Floats = npt.NDArray[np.float64]

WHOLE: Final = ""  # stands for all phases together


@dataclass(frozen=True)
class Late:
    """Ranks that are late in a phase in the same steps; numbers are columns and rows of `OwnTime`.

    `effect` is the lateness in nanoseconds, [step, rank], 0 outside; `also` names further phases of the
    same ranks whose lateness is part of it; `unsure` is the standard error of `effect`, as a share.
    """

    ranks: tuple[int, ...]
    phase: str
    first: int
    last: int
    effect: Floats
    pattern: Pattern
    p: float
    unsure: float = 0.0
    period: int | None = None
    also: tuple[str, ...] = ()

    @property
    def touched(self) -> npt.NDArray[np.intp]:
        """Rows in which it happens."""
        return np.flatnonzero(self.effect.any(axis=1))
