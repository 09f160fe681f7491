"""A run that edits change, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.replay.model import Model
    from tracelens.replay.resources import Tasks

__all__ = ["Changed"]


@dataclass(eq=False)
class Changed:
    """A run that was changed: lags of its links, ns, and `more` links (source, target, lag).

    Links that are not `kept` bind nothing any more. `balanced_ranks` are those of which some edit makes
    the work like that of others: they are no model for each other. `tasks` occupy servers, None = as
    recorded; these serve so many `ranks`, None = those recorded.
    """

    model: Model
    balanced_ranks: frozenset[int] = frozenset()
    lag: Floats = field(init=False)
    kept: Flags = field(init=False)
    more: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    tasks: Tasks | None = None
    ranks: int | None = None
    notes: list[str] = field(default_factory=list)
    _work_ns: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep all links as they were."""
        self.lag = self.model.links.lag.copy()
        self.kept = np.ones(len(self.lag), np.bool_)

    @property
    def known_lags(self) -> Floats:
        """What of the lag of each link has a reason that is known, ns."""
        unknown_ns = self.model.links.lag - self.model.known_lags
        return np.maximum(self.lag - unknown_ns, 0.0)

    def worked(self, names: Sequence[str]) -> Floats:
        """Return how long threads still are in some phases between their moments, ns, [first link]."""
        for name in names:
            if name not in self._work_ns:
                self._work_ns[name] = self.model.worked((name,))
        return np.asarray(np.sum([self._work_ns[name] for name in names], axis=0))

    def reduce_work(self, names: Sequence[str], effect: Floats, steps: Ints | None = None) -> None:
        """Let workers work for less in some phases, but not for less than nothing.

        Args:
            names: The phases.
            effect: What is taken off them (below 0: added), ns, [step, worker].
            steps: The step of each row, ascending; other steps than those of the model do not count.
                None = the rows are those of the model.
        """
        model = self.model
        if steps is not None:
            is_replayed = np.isin(steps, model.steps)
            effect_ns = np.zeros((len(model.steps), len(model.threads)))
            effect_ns[np.searchsorted(model.steps, steps[is_replayed])] = effect[is_replayed]
            effect = effect_ns
        work_ns = self.worked(names)
        less_ns = np.minimum(model.spread_over_links(effect, work_ns), work_ns)
        relieved_share = np.divide(less_ns, work_ns, out=np.zeros_like(less_ns), where=work_ns > 0)
        for name in names:
            self._work_ns[name] = self._work_ns[name] * (1 - relieved_share)
        links = slice(len(less_ns))
        self.lag[links] = np.maximum(self.lag[links] - less_ns, 0.0)

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
            InvalidArgument: moments would follow each other in a circle.
        """
        return self.model.lengths(self.model.usual) - self.model.lengths(self.replayed())

    def replayed(self, shortened_by: float = 0.0) -> Floats:
        """Return when moments come then.

        Args:
            shortened_by: What share of all lengths whose reason is known is taken off them besides.

        Raises:
            InvalidArgument: moments would follow each other in a circle.
        """
        model, lag, more = self.model, self.lag, self.more
        if shortened_by:
            lag = lag - shortened_by * self.known_lags
            more = [(source, target, (1 - shortened_by) * after) for source, target, after in more]
        try:
            return model.replayed(lag, self.kept, more, self.tasks, self.ranks)
        except ValueError:
            raise InvalidArgument(
                "with these edits, what the last call of a step follows needs an earlier one to be over."
            ) from None
