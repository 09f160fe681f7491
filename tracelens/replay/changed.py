"""A run that edits change, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Ints
    from tracelens.replay.model import Model

__all__ = ["Changed"]


@dataclass(eq=False)
class Changed:
    """A run that was changed: lags of its links, and `more` links (source, target)."""

    model: Model
    lag: Floats
    more: list[tuple[Ints, Ints]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
