"""What messages and services of a run cost by their bytes, and what they would with other costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.stats.cost_line import fit_cost_model

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.links import LinkTable
    from tracelens.stats.cost_line import CostModel

__all__ = ["Costs"]

_KINDS: Final = {True: "messages", False: "services of parameter servers"}  # on the network, or not


@dataclass(frozen=True, eq=False)
class Costs:
    """Lines (latency + bytes / bandwidth) fitted to the links of a run, one for each `Line`."""

    links: LinkTable

    @cached_property
    def models(self) -> dict[int, CostModel]:
        """The lines that could be fitted, by their place in `LinkTable.lines`."""
        nbytes, lag = self.links.nbytes.astype(np.int64), self.links.lag.astype(np.int64)
        of_lines = (self._sized & (self.links.line == at) for at in range(len(self.links.lines)))
        fitted = (fit_cost_model(nbytes[rows], lag[rows]) for rows in of_lines)
        return {number: model for number, model in enumerate(fitted) if model}

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
        lines = [line for line in self.models if self.links.lines[line].network == network]
        part = "latency_ns" if latency != 1 else "ns_per_byte"
        if not lines:
            raise InvalidArgument(self.lacks(network=network))
        if not any(getattr(self.models[line], part) > 0 for line in lines):
            paid = "does not go by bytes" if latency == 1 else "goes by bytes alone"
            raise InvalidArgument(
                f"what {_KINDS[network]} take {paid}, so there is nothing to change."
            )
        return self.factors(lines, self.links.nbytes, latency, pace)

    def factors(
        self, lines: Collection[int], then: Floats, latency: float = 1.0, pace: float = 1.0
    ) -> Floats:
        """Return how many times as long each link takes with `then` bytes, and another line; else 1.

        So do links of some fitted `lines`, by their numbers.
        """
        links, factors = self.links, np.ones(len(self.links.lag))
        rows = np.flatnonzero(np.isin(links.line, [*lines]) & (links.nbytes > 0))
        now = self.predict(links.line[rows], links.nbytes[rows])
        latency_ns, ns_per_byte = self._fitted[:, links.line[rows]]
        factors[rows] = (latency_ns * latency + then[rows] * ns_per_byte * pace) / now
        return factors

    def load(self, lag: Floats, lines: Collection[int], then: Floats) -> Floats:
        """Return lags with `then` bytes on links of some fitted `lines`.

        With fewer bytes, what a link took beyond its line shrinks with the rest, as queues do; with
        more, it stays.
        """
        factors = self.factors(lines, then)
        predicted = self.predict(self.links.line, self.links.nbytes)
        grows = np.minimum(lag, predicted) * np.maximum(factors - 1, 0.0)
        return np.asarray(lag * np.minimum(factors, 1.0) + grows)

    @cached_property
    def _fitted(self) -> Floats:
        """Latency and pace of each line: 0, and 1 ns per byte, where none was fitted, or of no line."""
        fitted = np.tile([0.0, 1.0], (len(self.links.lines) + 1, 1))
        for number, model in self.models.items():
            fitted[number] = model.latency_ns, model.ns_per_byte
        return fitted.T

    def predict(self, line: Ints, nbytes: Floats) -> Floats:
        """Return what links take by their lines, relative to each other where a line is not known."""
        latency_ns, ns_per_byte = self._fitted[:, line]
        return np.asarray(np.maximum(latency_ns + nbytes * ns_per_byte, 1e-9))

    def lacks(self, *, network: bool) -> str:
        """Return what is missing for a line of messages, or of servers' own work."""
        kinds = [line.network == network for line in self.links.lines]
        mine = np.array([*kinds, False])[self.links.line]
        sizes, what = np.unique(self.links.nbytes[mine & self._sized]), _KINDS[network]
        if not len(sizes):
            return f"this needs {what} whose bytes were recorded; this trace has none."
        return (
            f"this needs {what} of at least two sizes, one twice the other, in 16 of a kind or more; "
            f"those of this trace ({sizes[0]:,.0f} to {sizes[-1]:,.0f} bytes) do not tell what is paid "
            "for a message from what is paid for its bytes."
        )
