"""What a collective costs: latency + bytes / bandwidth, by operation, number of ranks and algorithm.

The line is fitted as `tracelens.stats.cost_line` says. Equal sizes do not separate latency from
bandwidth. There, latency is bounded, with what is known of the same ranks: other calls of theirs show
what bandwidth they reach at least, messages what a link does, and a barrier carries no bytes at all.
Without that, bytes take as long as on the slowest network that one trains over. If that leaves nothing,
latency is not known.

What share of the transfer is latency is told by the fast calls of each size, since a busy machine
lengthens the others.
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

# share of messages: the best bandwidth of a link is this quantile [calibrate]
QUANTILE_OF_BEST_LINK: Final = 0.9
MIN_CALLS_TO_BOUND_LATENCY: Final = 16  # calls: fewer do not bound the latency [calibrate]
MIN_BARRIERS_TO_BOUND_LATENCY: Final = 16  # calls: fewer barriers do not tell a fast one [chosen]
# share of calls: as many of a kind and size are fast
# ones [calibrate; one decision in measure_call_costs, _measure_barriers, bound_cost]
SHARE_OF_FAST_CALLS: Final = 0.1
# share of the best link's bandwidth: a collective of many bytes reaches as much [calibrate]
MIN_SHARE_OF_BEST_BANDWIDTH: Final = 0.5
# bytes / ns: training uses no network that carries less; Fast Ethernet carries 12.5 MB/s [policy]
MIN_BANDWIDTH_OF_NETWORK: Final = 0.01
# share of the transfer: the share of latency is not known if that of no more is [chosen]
MIN_SHARE_OF_TRANSFER_KNOWN: Final = 0.5
# share of the transfer: bounds of latency that are further apart do not tell its share [chosen]
MAX_WIDTH_OF_LATENCY_SHARE: Final = 0.3
_UNKNOWN: Final = frozenset((-1,))  # members of a communicator whose ranks were not recorded
Key = tuple[str, int, str | None]  # operation, ranks, and algorithm where it was recorded
Costs = dict[Key, "CostModel"]
BY: Final = ("op", "ranks", "algorithm")


def _split_by_kind(calls: pl.DataFrame) -> Iterator[tuple[Key, pl.DataFrame]]:
    for (op, ranks, algorithm), rows in calls.partition_by(*BY, as_dict=True).items():
        yield (str(op), int(ranks), algorithm), rows


def fit_costs(calls: pl.DataFrame) -> Costs:
    """Fit the model to calls with bytes, `BY` what makes them alike, where sizes differ."""
    fitted = (
        (key, fit_cost_model(part["bytes"].to_numpy(), part["wire_ns"].to_numpy()))
        for key, part in _split_by_kind(calls)
    )
    return {key: line for key, line in fitted if line}


@dataclass(frozen=True, eq=False)
class CallCosts:
    """What collectives cost: `fitted` where sizes differ, `costs` also where latency is bounded only.

    `sized` are the calls of several ranks whose bytes and time are known. `latency_shares` is what share
    of the transfer of each kind of call is latency, `latency_share` that of all; None where it is not
    known of most.
    """

    sized: pl.DataFrame
    fitted: Costs
    costs: Costs
    latency_shares: Mapping[Key, float]
    latency_share: float | None


def measure_call_costs(
    calls: pl.DataFrame,
    members: Mapping[str, frozenset[int]],
    find_messages: Callable[[], pl.DataFrame],
) -> CallCosts:
    """Fit or bound the cost of collectives.

    Args:
        calls: Collectives with `algorithm` (`transfers.with_algorithms`).
        members: The ranks of each communicator.
        find_messages: Finds the messages between ranks, which are only asked for where bounds need them.
    """
    timed = calls.filter(pl.col("wire_ns") > 0, pl.col("ranks") > 1)
    sized = timed.filter(pl.col("bytes") > 0)
    fast_ns = pl.col("wire_ns").quantile(SHARE_OF_FAST_CALLS).over(*BY, "bytes").cast(pl.Int64)
    with_fast_times = timed.with_columns(wire_ns=fast_ns)
    fast_sized = with_fast_times.filter(pl.col("bytes") > 0)
    fitted_costs = fit_costs(sized)
    bounded_costs = bound_costs(find_messages, members, timed, fitted_costs)
    costs = fit_costs(fast_sized) | bounded_costs
    shares = {
        key: _measure_shares(costs[key], group["wire_ns"].to_numpy())
        for key, group in _split_by_kind(fast_sized)
        if key in costs
    }
    known_shares = [
        (low_share * wire_ns, wire_ns)
        for low_share, high_share, wire_ns in shares.values()
        if high_share - low_share <= MAX_WIDTH_OF_LATENCY_SHARE
    ]
    latency_ns, known_ns = (
        (sum(group) for group in zip(*known_shares, strict=True)) if known_shares else (0.0, 0.0)
    )
    is_most_known = known_ns > MIN_SHARE_OF_TRANSFER_KNOWN * float(with_fast_times["wire_ns"].sum())
    return CallCosts(
        sized=sized,
        fitted=fitted_costs,
        costs=fitted_costs | bounded_costs,
        latency_shares={key: low_share for key, (low_share, *_) in shares.items()},
        latency_share=latency_ns / known_ns if is_most_known else None,
    )


def _measure_shares(cost: CostModel, wire_ns: Ints) -> tuple[float, float, float]:
    """Return the least and the largest share of latency in calls, and what they take in sum."""
    total_ns = float(wire_ns.sum())
    low, high = (
        float(np.minimum(wire_ns, latency_ns).sum()) / total_ns
        for latency_ns in cost.latency_interval
    )
    return low, high, total_ns


def bound_costs(
    find_messages: Callable[[], pl.DataFrame],
    members: Mapping[str, frozenset[int]],
    timed: pl.DataFrame,
    lines: Mapping[Key, CostModel],
) -> Costs:
    """Bound the latency of calls that no line was fitted to, where anything is known of it.

    Args:
        find_messages: Finds the messages between ranks.
        members: The ranks of each communicator.
        timed: All collectives whose time is known.
        lines: What was fitted.
    """
    unfitted = {
        key: group
        for key, group in _split_by_kind(timed.filter(pl.col("bytes") > 0))
        if key not in lines
    }
    if not unfitted:
        return {}
    link, costs = _measure_best_link(find_messages()), {}
    bandwidths, barriers = _measure_bandwidths(timed), _measure_barriers(timed)
    for key, group in unfitted.items():
        carried_bytes = group["bytes"].to_numpy() * transfers.bus_factor(*key[:2])
        largest_bytes, best_bandwidth, barrier_ns = int(carried_bytes.max()), np.inf, np.inf
        for uid in map(str, group["communicator"].unique().to_list()):
            larger = (
                bandwidth
                for other_uid, nbytes, bandwidth in bandwidths
                if nbytes > largest_bytes and _has_all_ranks(members, other_uid, uid)
            )
            best_bandwidth = min(best_bandwidth, max(larger, default=0.0))
            inner_barriers_ns = (
                ns for other_uid, ns in barriers if _has_all_ranks(members, uid, other_uid)
            )
            barrier_ns = min(barrier_ns, max(inner_barriers_ns, default=0.0))
        cost = bound_cost(
            carried_bytes, group["wire_ns"].to_numpy(), max(best_bandwidth, link), barrier_ns
        )
        if cost:
            costs[key] = cost
    return costs


def _has_all_ranks(members: Mapping[str, frozenset[int]], uid: str, other: str) -> bool:
    """Return True if a communicator has all ranks of another one."""
    return uid == other or members.get(uid, frozenset()) >= members.get(other, _UNKNOWN)


def _measure_bandwidths(timed: pl.DataFrame) -> list[tuple[str, float, float]]:
    """Measure the bandwidth of the slowest link of a communicator, by kind and size of calls.

    Bytes, and bytes / ns in the median of these calls: the link reaches no less.
    """
    kind = ("communicator", "op", "ranks", "bytes")
    sized = timed.filter(pl.col("bytes") > 0).group_by(kind).agg(pl.col("wire_ns").median())
    rows = sized.with_columns(pl.col("communicator").cast(pl.String)).iter_rows()
    return [
        (uid, carried := nbytes * transfers.bus_factor(op, ranks), carried / wire_ns)
        for uid, op, ranks, nbytes, wire_ns in rows
    ]


def _measure_barriers(timed: pl.DataFrame) -> list[tuple[str, float]]:
    """Measure the time of a fast barrier of each communicator, ns: no call that meets takes less."""
    barriers = timed.filter(pl.col("op") == "barrier").group_by(
        pl.col("communicator").cast(pl.String)
    )
    fast = barriers.agg(pl.col("wire_ns").quantile(SHARE_OF_FAST_CALLS), pl.len())
    return fast.filter(pl.col("len") >= MIN_BARRIERS_TO_BOUND_LATENCY).drop("len").rows()


def _measure_best_link(messages: pl.DataFrame) -> float:
    """Return the best bandwidth of messages between ranks, bytes / ns; 0 without any."""
    hops = messages.filter(pl.col("ns") > 0)
    bandwidth = (hops["bytes"] / hops["ns"]).quantile(QUANTILE_OF_BEST_LINK)
    return bandwidth or 0.0


def bound_cost(
    carried: Floats, ns: Ints, best_bandwidth: float, barrier_ns: float = 0.0
) -> CostModel | None:
    """Bound the latency of calls that take `ns` and carry `bytes` over each link.

    What is not known to be latency is taken for what bytes need.

    Args:
        carried: Bytes that the slowest link must carry.
        ns: What each call took.
        best_bandwidth: The best bandwidth of a link that was seen, bytes / ns; 0 = none was.
        barrier_ns: What a barrier of the same ranks takes; 0 = there was none.
    """
    if len(ns) < MIN_CALLS_TO_BOUND_LATENCY:
        return None
    typical_bytes, typical_ns = float(np.median(carried)), float(np.median(ns))
    fast_ns = float(np.quantile(ns, SHARE_OF_FAST_CALLS))
    bytes_ns = typical_bytes / max(
        MIN_SHARE_OF_BEST_BANDWIDTH * best_bandwidth, MIN_BANDWIDTH_OF_NETWORK
    )
    least_ns = max(fast_ns - bytes_ns, min(barrier_ns, fast_ns))
    if least_ns <= 0:
        return None
    most_ns = typical_ns - (typical_bytes / best_bandwidth if best_bandwidth else 0.0)
    return CostModel(
        latency_ns=least_ns,
        ns_per_byte=0.0,
        latency_interval=(least_ns, max(most_ns, least_ns)),
        ns_per_byte_interval=(0.0, 0.0),
        deviation=0.0,
        smallest=int(carried.min()),
        largest=int(carried.max()),
    )


CHOICE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "from_bytes": pl.Float64(),  # from here on, until the next row of the same calls, it is fastest
    "algorithm": pl.String(),  # null: not recorded, the library's own choice
    "latency_ns": pl.Float64(),
    "ns_per_byte": pl.Float64(),
}


def find_fastest(lines: Mapping[Key, CostModel]) -> pl.DataFrame:
    """Find which algorithm is fastest from which size on, by the lines, where there are several.

    Calls whose algorithm was not recorded count as one: the library's own choice. Only sizes that all
    of them were measured with are compared.
    """
    models_of: dict[tuple[str, int], dict[str | None, CostModel]] = {}
    for (op, ranks, algorithm), line in lines.items():
        models_of.setdefault((op, ranks), {})[algorithm] = line
    rows = [
        (op, ranks, size, name, models[name].latency_ns, models[name].ns_per_byte)
        for (op, ranks), models in sorted(models_of.items())
        if len(models) > 1
        for size, name in _find_crossings(models)
    ]
    return pl.DataFrame(rows, schema=CHOICE_COLUMNS, orient="row")


def _find_crossings(models: Mapping[str | None, CostModel]) -> Iterator[tuple[float, str | None]]:
    """Yield from which size on which line is lowest."""
    smallest = max(line.smallest for line in models.values())
    largest = min(line.largest for line in models.values())
    crossings = {
        (other_model.latency_ns - model.latency_ns) / (model.ns_per_byte - other_model.ns_per_byte)
        for model in models.values()
        for other_model in models.values()
        if model.ns_per_byte != other_model.ns_per_byte
    }
    edges = [smallest, *sorted(size for size in crossings if smallest < size < largest), largest]
    if smallest >= largest:
        return
    fastest = [
        (
            float(begin_bytes),
            min(models, key=lambda name: models[name].predicted((begin_bytes + end_bytes) / 2)),
        )
        for begin_bytes, end_bytes in pairwise(edges)
    ]
    yield from (next(group) for _, group in groupby(fastest, key=itemgetter(1)))
