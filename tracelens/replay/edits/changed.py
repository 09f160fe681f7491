"""A run that edits change, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.replay.model import Model
    from tracelens.replay.resources import Tasks

__all__ = ["Changed"]


@dataclass(eq=False)
class Changed:
    """A run that was changed: lags of its links, and `more` links (source, target, lag).

    Links that are not `kept` bind nothing any more. `balanced_ranks` are those of which some edit makes
    the work like that of others: they are no model for each other. `tasks` occupy servers, None = as
    recorded; these serve so many `ranks`, None = those recorded.
    """

    model: Model
    lag: Floats
    balanced_ranks: frozenset[int] = frozenset()
    kept: Flags = field(init=False)
    more: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    tasks: Tasks | None = None
    ranks: int | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Keep all links."""
        self.kept = np.ones(len(self.lag), np.bool_)

    def follow(self, source: Ints, target: Ints, lag: Floats | None = None) -> None:
        """Let moments follow others, after a lag, ns; null = at once."""
        after = np.zeros(len(source)) if lag is None else lag
        self.more.append((source, target, after))

    def release(self, links: Indices) -> None:
        """Let the targets of some links no longer follow their sources."""
        self.kept[links] = False

    def measure_savings_ns(self) -> Floats:
        """Return by how much shorter each step is than without the changes, ns, [step].

        Raises:
            ValueError: moments would follow each other in a circle.
        """
        return self.model.lengths(self.model.usual) - self.model.lengths(self.replayed())

    def replayed(self) -> Floats:
        """Return when moments come then.

        Raises:
            ValueError: moments would follow each other in a circle.
        """
        return self.model.replayed(self.lag, self.kept, self.more, self.tasks, self.ranks)
