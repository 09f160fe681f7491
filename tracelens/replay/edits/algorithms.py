"""Allreduces by another algorithm, or of more ranks; collectives joined into larger ones.

The fitted line of a kind of calls is taken apart by what its algorithm sends: its latency is that
of N messages one after the other, its time per byte that of M payloads over one link. Another
algorithm, or number of ranks, sends more or less of both; each call keeps what it differed from its line
by. The slowest of more ranks is slower: its delay is the greatest of as many draws from what ranks
of this run differed by from the median rank of their step.

A joined call departs when its last part would, and ranks meet in no other part. It takes what the line
of such calls says for all its bytes, times how much longer than usual its parts took. Ranks leave it
once, each as much later than the first as they left its last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import check_received, parse_size
from tracelens.simulator.algorithms import ALGORITHMS, transfer

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.variant import Variant
    from tracelens.replay.event_graph import EventGraph
    from tracelens.stats.cost_line import CostModel

__all__ = ["carry_out_by", "join_calls", "join_up_to", "scale_ranks"]

_ASSUMED: Final = "ring"
# times the recorded ranks: answers for more were not compared with simulated runs [chosen]
MAX_FACTOR_OF_RANKS_VALIDATED: Final = 4
MIN_RANKS_OF_ALLREDUCE: Final = 2  # ranks: one needs none [definition]
# calls: the median of as many says what calls of a size take better than the line [chosen]
MIN_CALLS_FOR_MEDIAN_OF_SIZE: Final = 16


def carry_out_by(variant: Variant, algorithm: str) -> None:
    """Carry all allreduces out by an algorithm."""
    name = algorithm.replace("-", "_")
    if name not in ALGORITHMS:
        raise InvalidArgument(f"the algorithm is none of {', '.join(ALGORITHMS)}.")
    _resize_allreduces(variant, name, None)


def scale_ranks(variant: Variant, count: str) -> None:
    """Let `count` ranks take part, each with as much work as now; servers serve all of them."""
    graph, rank_count, recorded_count = variant.graph, int(count), len(variant.graph.ranks)
    if min(rank_count, recorded_count) < MIN_RANKS_OF_ALLREDUCE:
        raise InvalidArgument(
            f"found {rank_count} ranks instead of {recorded_count}, expected at least two of each."
        )
    check_received(graph)
    is_served = graph.edges.shard >= 0
    if not is_served.any() or graph.calls:
        _resize_allreduces(variant, None, rank_count)
    _serve_workers(variant, is_served, rank_count)
    delay_ns = _measure_delay_of_slowest(graph, rank_count)
    is_from_rank = graph.edges.source < graph.threads.event_count
    for call in graph.calls:
        if len(call.worker) == recorded_count and not call.is_rooted:
            last = np.append(np.flatnonzero(np.diff(call.step)), call.count - 1)
            is_to_last = np.isin(graph.edges.target, call.departures[last])
            variant.lag_ns[is_from_rank & is_to_last] += delay_ns
    far = (
        f" More than {MAX_FACTOR_OF_RANKS_VALIDATED} times the ranks: not validated."
        if rank_count > MAX_FACTOR_OF_RANKS_VALIDATED * recorded_count
        else ""
    )
    variant.notes.append(
        f"{rank_count} ranks instead of {recorded_count}, with as much work each; the slowest one of a "
        f"step is {fmt.duration(delay_ns)} later than now.{far}"
    )


def _serve_workers(variant: Variant, is_served: Flags, rank_count: int) -> None:
    """Let servers serve more workers; what has no resource takes longer in proportion."""
    graph, edges = variant.graph, variant.graph.edges
    factor = rank_count / len(graph.ranks)
    variant.rank_count = rank_count
    is_free = is_served.copy()
    is_free[graph.tasks.edge] = False
    costs = Costs(edges)
    is_sized = np.isin(edges.cost_line, list(costs.models)) & (edges.nbytes > 0)
    variant.lag_ns[is_free] *= costs.factors(costs.models, edges.nbytes, pace=factor)[is_free]
    is_service = (edges.source >= graph.first_service_event) & (edges.cost_line >= 0)
    is_unsized = is_free & ~is_sized & is_service
    joint_updates = graph.service_edges[graph.requests.joint_updates]
    is_unsized[joint_updates[joint_updates >= 0]] = False
    variant.lag_ns[is_unsized] *= factor


def _resize_allreduces(variant: Variant, algorithm: str | None, rank_count: int | None) -> None:
    """Let allreduces take what they would by another algorithm, or those of all with more ranks."""
    graph, costs = variant.graph, Costs(variant.graph.edges)
    factors = np.ones(len(variant.lag_ns))
    is_assumed = has_allreduces = False
    for index in costs.models:
        line = graph.edges.cost_lines[index]
        if line.operation != "allreduce" or line.ranks < MIN_RANKS_OF_ALLREDUCE:
            continue
        known = graph.algorithms.get(line.ranks, frozenset())
        recorded = _choose_recorded(known, line.ranks)
        is_assumed |= not known
        is_of_all = line.ranks >= len(graph.ranks)
        new_ranks = line.ranks if rank_count is None or not is_of_all else rank_count
        messages, payloads = transfer(recorded, line.ranks)
        new_messages, new_payloads = transfer(algorithm or recorded, new_ranks)
        ratios = new_messages / messages, new_payloads / payloads
        factors *= costs.factors([index], graph.edges.nbytes, *ratios)
        has_allreduces = True
    if not has_allreduces:
        raise InvalidArgument(costs.explain_lack(network=True))
    variant.lag_ns = variant.lag_ns * factors
    if is_assumed:
        variant.notes.append(
            f"How allreduces were carried out was not recorded: taken for a {_ASSUMED}."
        )


def _choose_recorded(algorithms: frozenset[str], ranks: int) -> str:
    """Return the recorded algorithm of allreduces, or the assumed one."""
    if len(algorithms) > 1:
        raise InvalidArgument(
            f"the allreduces of {ranks} ranks were carried out by {fmt.series(sorted(algorithms))}: "
            "one line does not fit all of them."
        )
    recorded = next(iter(algorithms), _ASSUMED)
    if recorded not in ALGORITHMS:
        raise InvalidArgument(
            f"what '{recorded}' sends is not known; known are {', '.join(ALGORITHMS)}."
        )
    return recorded


def _measure_delay_of_slowest(graph: EventGraph, rank_count: int) -> float:
    """Return the extra delay of the slowest of N ranks over the slowest recorded rank, ns."""
    work_ns = graph.sum_by_step(graph.measure_work_ns(OWN_CATEGORIES))
    residuals_ns = np.sort((work_ns - np.median(work_ns, axis=1, keepdims=True)).ravel())
    share_below = np.arange(len(residuals_ns) + 1) / len(residuals_ns)
    slowest_ns, recorded_ns = (
        float((residuals_ns * np.diff(share_below**count)).sum())
        for count in (rank_count, len(graph.ranks))
    )
    return slowest_ns - recorded_ns


def join_up_to(variant: Variant, nbytes: str) -> None:
    """Join consecutive calls of a step up to a size."""
    max_bytes = parse_size(nbytes.replace("MB", "000000").replace("KB", "000"))
    costs, joined_count, recorded_count, largest_ratio = Costs(variant.graph.edges), 0, 0, 0
    models = {variant.graph.edges.cost_lines[index]: cost for index, cost in costs.models.items()}
    for call in variant.graph.calls:
        sizes = call.nbytes[call.nbytes > 0]
        if len(sizes) < 2 or call.is_rooted or call.cost_line not in models:
            continue
        if max_bytes < np.median(sizes):
            raise InvalidArgument(
                f"the calls recorded have {fmt.size(float(np.median(sizes)))}: when a part of one is "
                "ready was not recorded, so they can only be joined."
            )
        joined_sizes = join_calls(variant, models[call.cost_line], call, max_bytes)
        recorded_count, joined_count = recorded_count + call.count, joined_count + len(joined_sizes)
        ratio = int(joined_sizes.max()) // max(int(call.nbytes.max()), 1)
        largest_ratio = max(largest_ratio, ratio)
    if not recorded_count:
        raise InvalidArgument(
            "this needs collectives of at least two sizes, one twice the other, in 16 of a kind or "
            "more, that tell what is paid for a call from what is paid for its bytes."
        )
    variant.notes.append(f"{recorded_count} calls become {joined_count}.")
    if largest_ratio > 1:
        variant.notes.append(
            f"The largest call would be {largest_ratio} times the largest recorded: its time is "
            "extrapolated."
        )


def join_calls(
    variant: Variant, cost: CostModel, call: Calls, max_bytes: int, *, steps: Ints | None = None
) -> Ints:
    """Join calls of one kind, in some steps or all, up to `max_bytes`; return the new sizes."""
    edges, threads = variant.graph.edges, variant.graph.threads
    ends_group = _find_needed_calls(variant.graph, call)
    if steps is not None:
        ends_group |= ~np.isin(call.step, steps)
    groups = _number_groups(call.step, call.nbytes, max_bytes, ends_group)
    sizes = np.bincount(groups, np.maximum(call.nbytes, 0))
    rows = variant.graph.call_edges[call.departures]
    recorded_ns = variant.lag_ns[rows]
    parts_ns = np.bincount(groups, _find_usual_times(cost, call.nbytes, recorded_ns))
    joined_ns = cost.latency_ns + np.maximum(sizes, 1) * cost.ns_per_byte
    share = joined_ns / np.maximum(parts_ns, 1e-9)
    share[np.bincount(groups) == 1] = 1.0
    is_last = np.append(np.diff(groups) > 0, True)
    group_ns = np.bincount(groups, recorded_ns) * share
    variant.lag_ns[rows] = np.where(is_last, group_ns[groups], 0.0)
    # Ranks meet, and leave, once in a joined call, and its stream continues at once within it.
    is_within = np.isin(edges.source, call.departures[~is_last] + 1)
    variant.lag_ns[is_within] = 0.0
    variant.drop_edges(np.flatnonzero(is_within & (edges.target < threads.event_count)))
    return sizes.astype(np.int64)


def _find_usual_times(cost: CostModel, nbytes: Ints, recorded_ns: Floats) -> Floats:
    """Return the usual time of calls, ns: the median of their size, or the line for a rare size."""
    usual_ns = cost.latency_ns + np.maximum(nbytes, 1) * cost.ns_per_byte
    for size in np.unique(nbytes):
        rows = np.flatnonzero(nbytes == size)
        if len(rows) >= MIN_CALLS_FOR_MEDIAN_OF_SIZE:
            usual_ns[rows] = np.median(recorded_ns[rows])
    return usual_ns


def _find_needed_calls(graph: EventGraph, call: Calls) -> Flags:
    """Return True for calls in flight whose result some rank computes with before the next one.

    The rank waits for the call, and continues with forward or backprop before it comes to the next one.
    Backprop does not need the gradients that an allreduce brings. A rank with a share of the weights
    frees its gradients once they are reduced and scattered.
    """
    phases = ("forward",) if call.operation == "allreduce" else ("forward", "backprop")
    to_departure, from_completion = call.find_rank_edges(graph.edges, graph.threads)
    enters, leaves = to_departure[1:], from_completion[:-1]
    is_known = (enters >= 0) & (leaves >= 0) & ~call.is_blocking[:-1]
    arrival = np.where(is_known, graph.edges.source[enters], 0)
    departure = np.where(is_known, graph.edges.target[leaves], 0)
    computed_ns = np.cumsum(graph.threads.assign_to_ends(graph.measure_work_ns(phases)))
    computes = (departure <= arrival) & (computed_ns[arrival] > computed_ns[departure])
    return np.append((is_known & computes).any(axis=1), False)


def _number_groups(step: Ints, nbytes: Ints, max_bytes: int, ends_group: Flags) -> Ints:
    """Return the joined call of each call: one is full when it has as many bytes as it may."""
    groups = np.zeros(len(step), np.int64)
    group, joined_bytes = 0, 0
    begins_group = (np.diff(step, prepend=step[:1]) != 0) | np.append(False, ends_group[:-1])
    for row, (begins, size) in enumerate(zip(begins_group.tolist(), nbytes.tolist(), strict=True)):
        is_full = joined_bytes >= max_bytes or joined_bytes + size > max_bytes
        if row and (begins or is_full):
            group, joined_bytes = group + 1, 0
        groups[row] = group
        joined_bytes += max(size, 0)
    return groups
