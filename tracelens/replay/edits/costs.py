"""What messages and services of a run cost by their bytes, and what they would with other costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.stats.cost_line import fit_cost_model

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.links import LinkTable
    from tracelens.stats.cost_line import CostModel

__all__ = ["Costs"]


@dataclass(frozen=True, eq=False)
class Costs:
    """Lines (latency + bytes / bandwidth) fitted to the links of a run, one for each `Line`."""

    links: LinkTable

    @cached_property
    def models(self) -> dict[int, CostModel]:
        """The lines that could be fitted, by their place in `LinkTable.lines`."""
        found = {}
        for number in range(len(self.links.lines)):
            rows = np.flatnonzero(self._sized & (self.links.line == number))
            if not len(rows):
                continue
            nbytes = self.links.nbytes[rows].astype(np.int64)
            model = fit_cost_model(nbytes, self.links.lag[rows].astype(np.int64))
            if model:
                found[number] = model
        return found

    @property
    def _sized(self) -> Flags:
        return np.asarray((self.links.nbytes > 0) & (self.links.lag > 0))

    def scale_factors(self, *, network: bool, latency: float = 1.0, pace: float = 1.0) -> Floats:
        """Return factors of lags if a line's latency, or its bytes, took so many times as long.

        `network` chooses between messages and the own work of servers. A link that took longer than its
        line says does so then, too.

        Raises:
            InvalidArgument: sizes do not tell latency from bandwidth, or there are none.
        """
        found = {
            number: model
            for number, model in self.models.items()
            if self.links.lines[number].network == network
        }
        part = "latency_ns" if latency != 1 else "ns_per_byte"
        if not found:
            raise InvalidArgument(self.lacks(network=network))
        if not any(getattr(model, part) > 0 for model in found.values()):
            paid = "does not go by bytes" if latency == 1 else "goes by bytes alone"
            what = "messages" if network else "services of parameter servers"
            raise InvalidArgument(f"what {what} take {paid}, so there is nothing to change.")
        return self.factors(found, self.links.nbytes, latency, pace)

    def factors(
        self, models: dict[int, CostModel], then: Floats, latency: float = 1.0, pace: float = 1.0
    ) -> Floats:
        """Return how many times as long each link takes with `then` bytes, and another line; else 1."""
        factor = np.ones(len(self.links.lag))
        for number, model in models.items():
            rows = np.flatnonzero((self.links.line == number) & (self.links.nbytes > 0))
            now = np.maximum(model.latency_ns + self.links.nbytes[rows] * model.ns_per_byte, 1e-9)
            other = model.latency_ns * latency + then[rows] * model.ns_per_byte * pace
            factor[rows] = other / now
        return factor

    def loaded(self, lag: Floats, models: dict[int, CostModel], then: Floats) -> Floats:
        """Return lags with `then` bytes.

        With fewer bytes, what a link took beyond its line shrinks with the rest, as queues do; with
        more, it stays.
        """
        changed = lag.copy()
        for number, model in models.items():
            rows = np.flatnonzero((self.links.line == number) & (self.links.nbytes > 0))
            now = np.maximum(model.latency_ns + self.links.nbytes[rows] * model.ns_per_byte, 1e-9)
            other = model.latency_ns + then[rows] * model.ns_per_byte
            grows = np.minimum(lag[rows], now) * np.maximum(other / now - 1, 0.0)
            changed[rows] = lag[rows] * np.minimum(other / now, 1.0) + grows
        return changed

    def predict_all(self, line: Ints, nbytes: Floats) -> Floats:
        """Return what links take by their lines, relative to each other where a line is not known."""
        fixed, pace = np.zeros(len(self.links.lines) + 1), np.ones(len(self.links.lines) + 1)
        for number, model in self.models.items():
            fixed[number], pace[number] = model.latency_ns, model.ns_per_byte
        return np.maximum(fixed[line] + nbytes * pace[line], 1e-9)

    def lacks(self, *, network: bool) -> str:
        """Return what is missing for a line of messages, or of servers' own work."""
        kinds = [line.network == network for line in self.links.lines]
        mine = np.array([*kinds, False])[self.links.line]
        sizes = np.unique(self.links.nbytes[mine & self._sized])
        what = "messages" if network else "services of parameter servers"
        if not len(sizes):
            return f"this needs {what} whose bytes were recorded; this trace has none."
        return (
            f"this needs {what} of at least two sizes, one twice the other, in 16 of a kind or more; "
            f"those of this trace ({sizes[0]:,.0f} to {sizes[-1]:,.0f} bytes) do not tell what is paid "
            "for a message from what is paid for its bytes."
        )
