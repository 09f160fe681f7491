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
    from tracelens.replay.edges import EdgeTable
    from tracelens.stats.cost_line import CostModel

__all__ = ["Costs"]

_KINDS: Final = {True: "messages", False: "services of parameter servers"}  # on the network, or not


@dataclass(frozen=True, eq=False)
class Costs:
    """Lines (latency + bytes / bandwidth) fitted to the edges of a run, one for each `CostLine`."""

    edges: EdgeTable

    @cached_property
    def model_by_line(self) -> dict[int, CostModel]:
        """The fitted models, by the index in `EdgeTable.cost_lines`; lines without one are missing."""
        nbytes, lag_ns = self.edges.nbytes.astype(np.int64), self.edges.lag_ns.astype(np.int64)
        models = {}
        for index in range(len(self.edges.cost_lines)):
            is_of_line = self._is_sized & (self.edges.cost_line_indices == index)
            if model := fit_cost_model(nbytes[is_of_line], lag_ns[is_of_line]):
                models[index] = model
        return models

    @property
    def _is_sized(self) -> Flags:
        """Which edges have bytes and a lag, [edge]."""
        return np.asarray((self.edges.nbytes > 0) & (self.edges.lag_ns > 0))

    def compute_scale_factors(
        self, *, is_network: bool, latency_ratio: float = 1.0, pace_ratio: float = 1.0
    ) -> Floats:
        """Return factors of lags, [edge], if the latency or pace (ns per byte) grows by a ratio.

        `is_network` chooses between messages and the own work of servers. One of both ratios is 1.
        """
        lines = self.edges.cost_lines
        line_indices = [i for i in self.model_by_line if lines[i].is_network == is_network]
        parameter = "latency_ns" if latency_ratio != 1 else "ns_per_byte"
        if not line_indices:
            raise InvalidArgument(self.explain_lack(is_network=is_network))
        if not any(getattr(self.model_by_line[index], parameter) > 0 for index in line_indices):
            reason = "does not go by bytes" if latency_ratio == 1 else "goes by bytes alone"
            raise InvalidArgument(
                f"what {_KINDS[is_network]} take {reason}, so there is nothing to change."
            )
        return self.compute_lag_factors(line_indices, self.edges.nbytes, latency_ratio, pace_ratio)

    def compute_lag_factors(
        self,
        lines: Collection[int],
        sizes_bytes: Floats,
        latency_ratio: float = 1.0,
        pace_ratio: float = 1.0,
    ) -> Floats:
        """Return factors of lags, [edge], with other bytes, [edge], or costs on some fitted lines.

        `lines` are keys of `model_by_line`; a ratio is how many times as long latency, or pace (ns per
        byte), is. Edges of other lines keep their lag.
        """
        edges, factors = self.edges, np.ones(len(self.edges.lag_ns))
        rows = np.flatnonzero(np.isin(edges.cost_line_indices, [*lines]) & (edges.nbytes > 0))
        predicted_ns = self.predict_lags_ns(edges.cost_line_indices[rows], edges.nbytes[rows])
        latency_ns, ns_per_byte = self._line_parameters[:, edges.cost_line_indices[rows]]
        new_ns = latency_ns * latency_ratio + sizes_bytes[rows] * ns_per_byte * pace_ratio
        factors[rows] = new_ns / predicted_ns
        return factors

    def compute_lags_ns(
        self, lag_ns: Floats, lines: Collection[int], sizes_bytes: Floats
    ) -> Floats:
        """Return `lag_ns`, [edge], with other `sizes_bytes`, [edge], on some fitted `lines` (indices).

        With fewer bytes, what an edge took beyond its line shrinks with the rest, as queues do; with
        more, it stays.
        """
        size_factors = self.compute_lag_factors(lines, sizes_bytes)
        predicted_ns = self.predict_lags_ns(self.edges.cost_line_indices, self.edges.nbytes)
        growth_ns = np.minimum(lag_ns, predicted_ns) * np.maximum(size_factors - 1, 0.0)
        return np.asarray(lag_ns * np.minimum(size_factors, 1.0) + growth_ns)

    @cached_property
    def _line_parameters(self) -> Floats:
        """Latency and ns per byte, [parameter, line]; 0 and 1 where none was fitted, and for line -1."""
        lines = np.tile([0.0, 1.0], (len(self.edges.cost_lines) + 1, 1))
        for index, model in self.model_by_line.items():
            lines[index] = model.latency_ns, model.ns_per_byte
        return lines.T

    def predict_lags_ns(self, line_indices: Ints, sizes_bytes: Floats) -> Floats:
        """Predict lags by lines and bytes, ns; without a fitted line, only relative to each other."""
        latency_ns, ns_per_byte = self._line_parameters[:, line_indices]
        return np.asarray(np.maximum(latency_ns + sizes_bytes * ns_per_byte, 1e-9))

    def explain_lack(self, *, is_network: bool) -> str:
        """Explain what is missing for a line (time over bytes) of messages, or of servers' own work.

        It is that of messages if `is_network`.
        """
        is_line_of_kind = [line.is_network == is_network for line in self.edges.cost_lines]
        is_of_kind = np.array([*is_line_of_kind, False])[self.edges.cost_line_indices]
        kind_name, sizes_bytes = _KINDS[is_network], self.edges.nbytes[is_of_kind & self._is_sized]
        if not len(sizes_bytes):
            return f"this needs {kind_name} whose bytes were recorded; this trace has none."
        return (
            f"this needs {kind_name} of at least two sizes, one twice the other, in 16 of a kind or "
            f"more; those of this trace ({sizes_bytes.min():,.0f} to {sizes_bytes.max():,.0f} bytes) "
            "do not tell what is paid for a message from what is paid for its bytes."
        )
