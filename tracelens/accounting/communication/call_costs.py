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
# ones [calibrate; one decision in measure_call_costs, _list_fast_barriers, bound_cost]
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
CallKind = tuple[str, int, str | None]  # operation, ranks, and algorithm where it was recorded
Costs = dict[CallKind, "CostModel"]
CALL_KIND: Final = ("op", "ranks", "algorithm")


def _split_by_kind(calls: pl.DataFrame) -> Iterator[tuple[CallKind, pl.DataFrame]]:
    for (op, ranks, algorithm), rows in calls.partition_by(*CALL_KIND, as_dict=True).items():
        yield (str(op), int(ranks), algorithm), rows


def fit_costs(calls: pl.DataFrame) -> Costs:
    """Fit a cost to each kind of calls with bytes, where their sizes differ."""
    cost_by_kind = (
        (kind, fit_cost_model(group["bytes"].to_numpy(), group["wire_ns"].to_numpy()))
        for kind, group in _split_by_kind(calls)
    )
    return {kind: cost for kind, cost in cost_by_kind if cost}


@dataclass(frozen=True, eq=False)
class CallCosts:
    """What collectives cost, fitted where sizes differ, and in `cost_by_kind` also bounded elsewhere.

    `sized_calls` are those of several ranks whose bytes and time are known, a row each. The latency
    share (0 to 1) is that of the transfer, of each kind of call, and of all; None: not known of most.
    """

    sized_calls: pl.DataFrame
    fitted_cost_by_kind: Costs
    cost_by_kind: Costs
    latency_share_by_kind: Mapping[CallKind, float]
    latency_share: float | None


def measure_call_costs(
    calls: pl.DataFrame,
    members: Mapping[str, frozenset[int]],
    find_messages: Callable[[], pl.DataFrame],
) -> CallCosts:
    """Fit the cost of each kind of collective; where sizes do not differ, bound it.

    `calls` has one row per collective, with `algorithm`; `members` are the ranks of each communicator.
    Messages between ranks are only asked for (`find_messages`) where bounds need them.
    """
    timed_calls = calls.filter(pl.col("wire_ns") > 0, pl.col("ranks") > 1)
    sized_calls = timed_calls.filter(pl.col("bytes") > 0)
    fast_ns = pl.col("wire_ns").quantile(SHARE_OF_FAST_CALLS).over(*CALL_KIND, "bytes")
    fast_calls = timed_calls.with_columns(wire_ns=fast_ns.cast(pl.Int64))
    fast_sized_calls = fast_calls.filter(pl.col("bytes") > 0)
    fitted_costs = fit_costs(sized_calls)
    bounded_costs = bound_costs(find_messages, members, timed_calls, fitted_costs)
    fast_costs = fit_costs(fast_sized_calls) | bounded_costs
    shares_by_kind = {
        kind: _measure_latency_shares(fast_costs[kind], group["wire_ns"].to_numpy())
        for kind, group in _split_by_kind(fast_sized_calls)
        if kind in fast_costs
    }
    known_shares = [
        (low_share, total_wire_ns)
        for low_share, high_share, total_wire_ns in shares_by_kind.values()
        if high_share - low_share <= MAX_WIDTH_OF_LATENCY_SHARE
    ]
    known_ns = sum(total_wire_ns for _, total_wire_ns in known_shares)
    latency_ns = sum(low_share * total_wire_ns for low_share, total_wire_ns in known_shares)
    is_known = known_ns > MIN_SHARE_OF_TRANSFER_KNOWN * float(fast_calls["wire_ns"].sum())
    return CallCosts(
        sized_calls=sized_calls,
        fitted_cost_by_kind=fitted_costs,
        cost_by_kind=fitted_costs | bounded_costs,
        latency_share_by_kind={kind: low for kind, (low, *_) in shares_by_kind.items()},
        latency_share=latency_ns / known_ns if is_known else None,
    )


def _measure_latency_shares(cost: CostModel, wire_ns: Ints) -> tuple[float, float, float]:
    """Return the least and the largest share (0 to 1) of latency in calls, and their total time, ns.

    `wire_ns`, [call], is what each call takes on the wire.
    """
    total_wire_ns = float(wire_ns.sum())
    low_share, high_share = (
        float(np.minimum(wire_ns, latency_ns).sum()) / total_wire_ns
        for latency_ns in cost.latency_interval_ns
    )
    return low_share, high_share, total_wire_ns


def bound_costs(
    find_messages: Callable[[], pl.DataFrame],
    members: Mapping[str, frozenset[int]],
    timed_calls: pl.DataFrame,
    fitted_costs: Mapping[CallKind, CostModel],
) -> Costs:
    """Bound the latency of the kinds of calls whose cost was not fitted, where anything bounds it.

    If several communicators have calls of a kind, the loosest of their bounds applies.

    Args:
        find_messages: Returns the messages, one per row; called only if a kind has no fitted cost.
        members: The ranks of each communicator.
        timed_calls: One row per collective whose time on the wire is known.
        fitted_costs: Of the other kinds.
    """
    unfitted_calls = {
        kind: group
        for kind, group in _split_by_kind(timed_calls.filter(pl.col("bytes") > 0))
        if kind not in fitted_costs
    }
    if not unfitted_calls:
        return {}
    link_bandwidth, costs = _measure_best_link_bandwidth(find_messages()), {}  # bytes / ns
    bandwidths = _list_reached_bandwidths(timed_calls)
    barriers = _list_fast_barriers(timed_calls)
    for kind, group in unfitted_calls.items():
        op, ranks, _ = kind
        carried_bytes = group["bytes"].to_numpy() * transfers.bus_factor(op, ranks)
        largest_bytes, best_bandwidth, barrier_ns = int(carried_bytes.max()), np.inf, np.inf
        for uid in map(str, group["communicator"].unique().to_list()):
            larger_call_bandwidths = (
                bandwidth
                for other_uid, link_bytes, bandwidth in bandwidths
                if link_bytes > largest_bytes and _has_all_ranks(members, other_uid, uid)
            )
            best_bandwidth = min(best_bandwidth, max(larger_call_bandwidths, default=0.0))
            inner_barriers_ns = (
                ns for other_uid, ns in barriers if _has_all_ranks(members, uid, other_uid)
            )
            barrier_ns = min(barrier_ns, max(inner_barriers_ns, default=0.0))
        best_bandwidth, wire_ns = max(best_bandwidth, link_bandwidth), group["wire_ns"].to_numpy()
        cost = bound_cost(carried_bytes, wire_ns, best_bandwidth, barrier_ns)
        if cost:
            costs[kind] = cost
    return costs


def _has_all_ranks(members: Mapping[str, frozenset[int]], uid: str, other_uid: str) -> bool:
    """Return True if a communicator has all ranks of another one; `members` has those of each."""
    return uid == other_uid or members.get(uid, frozenset()) >= members.get(other_uid, _UNKNOWN)


def _list_reached_bandwidths(timed_calls: pl.DataFrame) -> list[tuple[str, float, float]]:
    """List the bandwidths that the slowest link of each communicator reaches at least.

    One entry per communicator, operation and size: uid, bytes on the link, and the bandwidth of the
    median call, bytes / ns.
    """
    columns = ("communicator", "op", "ranks", "bytes")
    sized_calls = timed_calls.filter(pl.col("bytes") > 0)
    median_calls = sized_calls.group_by(columns).agg(pl.col("wire_ns").median())
    rows = median_calls.with_columns(pl.col("communicator").cast(pl.String)).iter_rows()
    return [
        (uid, link_bytes := nbytes * transfers.bus_factor(op, ranks), link_bytes / wire_ns)
        for uid, op, ranks, nbytes, wire_ns in rows
    ]


def _list_fast_barriers(timed_calls: pl.DataFrame) -> list[tuple[str, float]]:
    """List communicators, and the time of a fast barrier of each, ns; no call of all takes less."""
    barriers = timed_calls.filter(op="barrier").group_by(pl.col("communicator").cast(pl.String))
    fast_barriers = barriers.agg(pl.col("wire_ns").quantile(SHARE_OF_FAST_CALLS), pl.len())
    return fast_barriers.filter(pl.col("len") >= MIN_BARRIERS_TO_BOUND_LATENCY).drop("len").rows()


def _measure_best_link_bandwidth(messages: pl.DataFrame) -> float:
    """Return the best bandwidth of messages between ranks, a row each, bytes / ns; 0 without any."""
    timed_messages = messages.filter(pl.col("link_ns") > 0)
    bandwidths = timed_messages["bytes"] / timed_messages["link_ns"]
    return bandwidths.quantile(QUANTILE_OF_BEST_LINK) or 0.0


def bound_cost(
    carried_bytes: Floats, wire_ns: Ints, best_bandwidth: float, barrier_ns: float = 0.0
) -> CostModel | None:
    """Bound the latency of calls of one kind; None where nothing bounds it.

    The slowest link carries `carried_bytes`, [call]. `best_bandwidth` is the best of a link that was
    seen, bytes / ns, `barrier_ns` the time of a barrier of the same ranks; 0 = there was none.
    """
    if len(wire_ns) < MIN_CALLS_TO_BOUND_LATENCY:
        return None
    typical_bytes, typical_ns = float(np.median(carried_bytes)), float(np.median(wire_ns))
    fast_ns = float(np.quantile(wire_ns, SHARE_OF_FAST_CALLS))
    most_ns_for_bytes = typical_bytes / max(
        MIN_SHARE_OF_BEST_BANDWIDTH * best_bandwidth, MIN_BANDWIDTH_OF_NETWORK
    )
    least_latency_ns = max(fast_ns - most_ns_for_bytes, min(barrier_ns, fast_ns))
    if least_latency_ns <= 0:
        return None
    most_latency_ns = typical_ns - (typical_bytes / best_bandwidth if best_bandwidth else 0.0)
    return CostModel(
        latency_ns=least_latency_ns,
        ns_per_byte=0.0,
        latency_interval_ns=(least_latency_ns, max(most_latency_ns, least_latency_ns)),
        ns_per_byte_interval=(0.0, 0.0),
        relative_error=0.0,
        smallest_bytes=int(carried_bytes.min()),
        largest_bytes=int(carried_bytes.max()),
    )


CHOICE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.String(),
    "ranks": pl.Int32(),
    "from_bytes": pl.Float64(),  # from here on, until the next row of the same calls, it is fastest
    "algorithm": pl.String(),  # null: not recorded, the library's own choice
    "latency_ns": pl.Float64(),
    "ns_per_byte": pl.Float64(),
}


def find_fastest(costs: Mapping[CallKind, CostModel]) -> pl.DataFrame:
    """Find which algorithm of each operation is fastest from which size on (rows: `CHOICE_COLUMNS`).

    Calls whose algorithm was not recorded count as one: the library's own choice. Only sizes that all
    of them were measured with are compared.
    """
    lines_of_calls: dict[tuple[str, int], dict[str | None, CostModel]] = {}  # then by algorithm
    for (op, ranks, algorithm), cost in costs.items():
        lines_of_calls.setdefault((op, ranks), {})[algorithm] = cost
    rows = [
        (op, ranks, from_bytes, name, lines[name].latency_ns, lines[name].ns_per_byte)
        for (op, ranks), lines in sorted(lines_of_calls.items())
        if len(lines) > 1
        for from_bytes, name in _find_crossings(lines)
    ]
    return pl.DataFrame(rows, schema=CHOICE_COLUMNS, orient="row")


def _find_crossings(costs: Mapping[str | None, CostModel]) -> Iterator[tuple[float, str | None]]:
    """Yield each size in bytes from which on another algorithm is fastest, with that algorithm.

    `costs` are those of the algorithms, each a line over bytes. Lines change places where they cross.
    """
    smallest_bytes = max(cost.smallest_bytes for cost in costs.values())
    largest_bytes = min(cost.largest_bytes for cost in costs.values())
    crossing_bytes = {
        (cost_b.latency_ns - cost_a.latency_ns) / (cost_a.ns_per_byte - cost_b.ns_per_byte)
        for cost_a in costs.values()
        for cost_b in costs.values()
        if cost_a.ns_per_byte != cost_b.ns_per_byte
    }
    if smallest_bytes >= largest_bytes:
        return
    inner_bytes = sorted(n for n in crossing_bytes if smallest_bytes < n < largest_bytes)
    fastest = [  # of each range between crossings: its begin, and the algorithm
        (
            float(begin_bytes),
            min(costs, key=lambda name: costs[name].predict_ns((begin_bytes + end_bytes) / 2)),
        )
        for begin_bytes, end_bytes in pairwise([smallest_bytes, *inner_bytes, largest_bytes])
    ]
    yield from (next(group) for _, group in groupby(fastest, key=itemgetter(1)))
