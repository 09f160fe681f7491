"""A run that edits change, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.replay.model import Model

__all__ = ["Changed"]

_NEVER: Final = -1e18  # ns: what comes so long after something does not wait for it


@dataclass(eq=False)
class Changed:
    """A run that was changed: lags of its links, and `more` links (source, target, lag)."""

    model: Model
    lag: Floats
    more: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def follow(self, source: Ints, target: Ints, lag: Floats | None = None) -> None:
        """Let moments follow others, after a lag, ns; null = at once."""
        after = np.zeros(len(source)) if lag is None else lag
        self.more.append((source, target, after))

    def release(self, links: Indices) -> None:
        """Let the targets of some links no longer follow their sources."""
        self.lag[links] = _NEVER
