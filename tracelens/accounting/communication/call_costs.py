"""What a collective costs: latency + bytes / bandwidth, by operation, number of ranks and algorithm.

The line is fitted as `tracelens.stats.cost_line` says. Equal sizes do not separate latency from
bandwidth. There, latency is bounded: it is what a call takes beyond what its bytes need on the best link
seen, at most, and at half of that bandwidth, at least. Where no link was seen, on the slowest network
that one trains over. If that leaves nothing, it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication import transfers
from tracelens.stats.cost_line import CostModel, fit_cost_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracelens.arrays import Floats, Ints

__all__ = [
    "BY",
    "CHOICE_COLUMNS",
    "CallCosts",
    "bounds",
    "choices",
    "fits",
    "measure_call_costs",
]

# share of messages: the best bandwidth of a link is this quantile [calibrate]
QUANTILE_OF_BEST_LINK: Final = 0.9
MIN_CALLS_TO_BOUND_LATENCY: Final = 16  # calls: fewer do not bound the latency [calibrate]
# share of calls: as many take longer than what the least latency is taken from [calibrate]
SHARE_OF_CALLS_ABOVE_LEAST: Final = 0.9
# share of the best link's bandwidth: a collective of many bytes reaches as much [calibrate]
MIN_SHARE_OF_BEST_BANDWIDTH: Final = 0.5
# bytes / ns: training uses no network that carries less, which is 1 MB/s [policy]
MIN_BANDWIDTH_OF_NETWORK: Final = 0.001
# share of the transfer: the share of latency is not known if that of no more is [chosen]
MIN_SHARE_OF_TRANSFER_KNOWN: Final = 0.5
Key = tuple[str, int, str | None]  # operation, ranks, and algorithm where it was recorded
Costs = dict[Key, "CostModel"]
BY: Final = ("op", "ranks", "algorithm")


def _parts(calls: pl.DataFrame) -> Iterator[tuple[Key, pl.DataFrame]]:
    for (op, ranks, algorithm), part in calls.partition_by(*BY, as_dict=True).items():
        yield (str(op), int(ranks), algorithm), part


def fits(calls: pl.DataFrame) -> Costs:
    """Fit the model to calls with bytes, `BY` what makes them alike, where sizes differ."""
    fitted = (
        (key, fit_cost_model(part["bytes"].to_numpy(), part["wire_ns"].to_numpy()))
        for key, part in _parts(calls)
    )
    return {key: line for key, line in fitted if line}


@dataclass(frozen=True, eq=False)
class CallCosts:
    """What collectives cost: `fitted` where sizes differ, `costs` also where latency is bounded only.

    `sized` are the calls of several ranks whose bytes and time are known, `latency_share` is the share
    of all transfer that is latency; None where it is not known of most.
    """

    sized: pl.DataFrame
    fitted: Costs
    costs: Costs
    latency_share: float | None


def measure_call_costs(calls: pl.DataFrame, find_messages: Callable[[], pl.DataFrame]) -> CallCosts:
    """Fit or bound the cost of collectives.

    Args:
        calls: Collectives with `algorithm` (`transfers.with_algorithms`).
        find_messages: Finds the messages between ranks, which are only asked for where bounds need them.
    """
    timed = calls.filter(pl.col("wire_ns") > 0, pl.col("ranks") > 1)
    sized = timed.filter(pl.col("bytes") > 0)
    fitted = fits(sized)
    costs = fitted | bounds(find_messages, sized, fitted)
    share = _latency_share(sized, costs, float(timed["wire_ns"].sum()))
    return CallCosts(sized, fitted, costs, share)


def bounds(
    find_messages: Callable[[], pl.DataFrame], calls: pl.DataFrame, lines: Mapping[Key, CostModel]
) -> Costs:
    """Bound the latency of calls that no line was fitted to, where anything is known of it."""
    left = {key: part for key, part in _parts(calls) if key not in lines}
    seen = [
        transfers.bus_factor(op, ranks) / line.ns_per_byte
        for (op, ranks, _), line in lines.items()
        if line.ns_per_byte > 0
    ]
    best, found = max([_best_link(find_messages()) if left else 0.0, *seen]), {}
    for key, part in left.items():
        carried = part["bytes"].to_numpy() * transfers.bus_factor(*key[:2])
        model = bounded(carried, part["wire_ns"].to_numpy(), best)
        if model:
            found[key] = model
    return found


def _best_link(messages: pl.DataFrame) -> float:
    """Return the best bandwidth of messages between ranks, bytes / ns; 0 without any."""
    hops = messages.filter(pl.col("ns") > 0)
    best = (hops["bytes"] / hops["ns"]).quantile(QUANTILE_OF_BEST_LINK)
    return best or 0.0


def bounded(carried: Floats, ns: Ints, best: float) -> CostModel | None:
    """Bound the latency of calls that take `ns` and carry so many bytes over each link.

    Args:
        carried: Bytes that the slowest link must carry.
        ns: What each call took.
        best: The best bandwidth of a link that was seen, bytes / ns; 0 = none was.
    """
    if len(ns) < MIN_CALLS_TO_BOUND_LATENCY:
        return None
    size, usual = float(np.median(carried)), float(np.median(ns))
    short_ns = float(np.quantile(ns, 1 - SHARE_OF_CALLS_ABOVE_LEAST))
    least = short_ns - size / max(MIN_SHARE_OF_BEST_BANDWIDTH * best, MIN_BANDWIDTH_OF_NETWORK)
    if least <= 0:
        return None
    most = usual - (size / best if best else 0.0)
    return CostModel(
        latency_ns=(least + most) / 2,
        ns_per_byte=0.0,
        latency_interval=(least, most),
        ns_per_byte_interval=(0.0, 0.0),
        deviation=0.0,
        smallest=int(carried.min()),
        largest=int(carried.max()),
    )


def _latency_share(sized: pl.DataFrame, costs: Costs, wire_ns: float) -> float | None:
    """Return what share of all transfer is latency; None where it is not known of most of `wire_ns`."""
    known = latency = 0.0
    for key, part in _parts(sized):
        if key in costs:
            wire = part["wire_ns"].to_numpy()
            known += float(wire.sum())
            latency += float(np.minimum(wire, costs[key].latency_ns).sum())
    return latency / known if known > MIN_SHARE_OF_TRANSFER_KNOWN * wire_ns else None


CHOICE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "from_bytes": pl.Float64(),  # from here on, until the next row of the same calls, it is fastest
    "algorithm": pl.String(),  # null: not recorded, the library's own choice
    "latency_ns": pl.Float64(),
    "ns_per_byte": pl.Float64(),
}


def choices(lines: Mapping[Key, CostModel]) -> pl.DataFrame:
    """Return which algorithm is fastest from which size on, by the lines, where there are several.

    Calls whose algorithm was not recorded count as one: the library's own choice. Only sizes that all
    of them were measured with are compared.
    """
    several: dict[tuple[str, int], dict[str | None, CostModel]] = {}
    for (op, ranks, algorithm), line in lines.items():
        several.setdefault((op, ranks), {})[algorithm] = line
    rows = [
        (op, ranks, size, name, models[name].latency_ns, models[name].ns_per_byte)
        for (op, ranks), models in sorted(several.items())
        if len(models) > 1
        for size, name in _fastest(models)
    ]
    return pl.DataFrame(rows, schema=CHOICE_COLUMNS, orient="row")


def _fastest(models: Mapping[str | None, CostModel]) -> Iterator[tuple[float, str | None]]:
    """Yield from which size on which line is lowest."""
    low = max(line.smallest for line in models.values())
    high = min(line.largest for line in models.values())
    crossings = {
        (two.latency_ns - one.latency_ns) / (one.ns_per_byte - two.ns_per_byte)
        for one in models.values()
        for two in models.values()
        if one.ns_per_byte != two.ns_per_byte
    }
    edges = [low, *sorted(size for size in crossings if low < size < high), high]
    if low >= high:
        return
    fastest = [
        (float(begin), min(models, key=lambda name: models[name].predicted((begin + end) / 2)))
        for begin, end in pairwise(edges)
    ]
    yield from (next(group) for _, group in groupby(fastest, key=itemgetter(1)))
