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
from tracelens.simulator.algorithms import ALGORITHMS, count_messages_and_payloads

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
    _resize_allreduces(variant, algorithm=name)


def scale_ranks(variant: Variant, count: str) -> None:
    """Let `count` ranks take part, each with as much work as now; servers serve all of them."""
    graph, rank_count, recorded_count = variant.graph, int(count), len(variant.graph.ranks)
    if min(rank_count, recorded_count) < MIN_RANKS_OF_ALLREDUCE:
        raise InvalidArgument(
            f"found {rank_count} ranks instead of {recorded_count}, expected at least two of each."
        )
    check_received(graph)
    is_served = graph.edges.shard_numbers >= 0  # [edge]
    if not is_served.any() or graph.calls:
        _resize_allreduces(variant, rank_count=rank_count)
    _serve_workers(variant, is_served, rank_count)
    delay_ns = _measure_delay_of_slowest(graph, rank_count)
    is_from_rank = graph.edges.source_events < graph.threads.event_count
    for calls in graph.calls:
        if len(calls.workers) == recorded_count and not calls.is_rooted:
            # The slowest rank is late for the last call of each step.
            last_of_step = np.append(
                np.flatnonzero(np.diff(calls.step_numbers)), calls.call_count - 1
            )
            is_to_last = np.isin(graph.edges.target_events, calls.departure_events[last_of_step])
            variant.lag_ns[is_from_rank & is_to_last] += delay_ns
    warning = (
        f" More than {MAX_FACTOR_OF_RANKS_VALIDATED} times the ranks: not validated."
        if rank_count > MAX_FACTOR_OF_RANKS_VALIDATED * recorded_count
        else ""
    )
    variant.notes.append(
        f"{rank_count} ranks instead of {recorded_count}, with as much work each; the slowest one of a "
        f"step is {fmt.duration(delay_ns)} later than now.{warning}"
    )


def _serve_workers(variant: Variant, is_served: Flags, rank_count: int) -> None:
    """Let servers serve `rank_count` workers; edges without a resource take longer in proportion.

    `is_served` flags edges of requests to servers and of services, [edge]. A joint update is made once,
    however many workers there are.
    """
    graph, edges = variant.graph, variant.graph.edges
    growth = rank_count / len(graph.ranks)
    variant.rank_count = rank_count
    has_no_resource = is_served.copy()
    has_no_resource[graph.tasks.edge_rows] = False
    costs = Costs(edges)
    has_line = np.isin(edges.cost_line_indices, list(costs.model_by_line)) & (edges.nbytes > 0)
    lag_factors = costs.compute_lag_factors(costs.model_by_line, edges.nbytes, pace_ratio=growth)
    variant.lag_ns[has_no_resource] *= lag_factors[has_no_resource]
    is_service = (edges.source_events >= graph.first_service_event) & (edges.cost_line_indices >= 0)
    grows_alike = has_no_resource & ~has_line & is_service
    joint_updates = graph.service_edges[graph.requests.joint_update_rows]
    grows_alike[joint_updates[joint_updates >= 0]] = False
    variant.lag_ns[grows_alike] *= growth


def _resize_allreduces(
    variant: Variant, *, algorithm: str | None = None, rank_count: int | None = None
) -> None:
    """Let allreduces take what they would by another algorithm, or of more ranks; None = as recorded."""
    graph, costs = variant.graph, Costs(variant.graph.edges)
    lag_factors = np.ones(len(variant.lag_ns))  # [edge]
    is_assumed = has_allreduces = False
    for index in costs.model_by_line:
        line = graph.edges.cost_lines[index]
        if line.operation != "allreduce" or line.rank_count < MIN_RANKS_OF_ALLREDUCE:
            continue
        recorded_names = graph.algorithms_by_rank_count.get(line.rank_count, frozenset())
        recorded_algorithm = _choose_recorded(recorded_names, line.rank_count)
        is_assumed |= not recorded_names
        is_of_all = line.rank_count >= len(graph.ranks)
        new_count = line.rank_count if rank_count is None or not is_of_all else rank_count
        messages, payloads = count_messages_and_payloads(recorded_algorithm, line.rank_count)
        new_algorithm = algorithm or recorded_algorithm
        new_messages, new_payloads = count_messages_and_payloads(new_algorithm, new_count)
        ratios = new_messages / messages, new_payloads / payloads  # of latency, of pace
        lag_factors *= costs.compute_lag_factors([index], graph.edges.nbytes, *ratios)
        has_allreduces = True
    if not has_allreduces:
        raise InvalidArgument(costs.explain_lack(is_network=True))
    variant.lag_ns = variant.lag_ns * lag_factors
    if is_assumed:
        variant.notes.append(
            f"How allreduces were carried out was not recorded: taken for a {_ASSUMED}."
        )


def _choose_recorded(algorithms: frozenset[str], rank_count: int) -> str:
    """Return the recorded algorithm of allreduces of `rank_count` ranks, or the assumed algorithm."""
    if len(algorithms) > 1:
        raise InvalidArgument(
            f"the allreduces of {rank_count} ranks were carried out by "
            f"{fmt.join_words(sorted(algorithms))}: one line does not fit all of them."
        )
    recorded = next(iter(algorithms), _ASSUMED)
    if recorded not in ALGORITHMS:
        raise InvalidArgument(
            f"what '{recorded}' sends is not known; known are {', '.join(ALGORITHMS)}."
        )
    return recorded


def _measure_delay_of_slowest(graph: EventGraph, rank_count: int) -> float:
    """Return the extra delay of the slowest of N ranks over the slowest recorded rank, ns.

    Each is the expected maximum of as many draws from what ranks differ by from their step's median.
    """
    work_ns = graph.sum_by_step_and_worker(graph.measure_work_ns(OWN_CATEGORIES))  # [step, rank]
    deviations_ns = np.sort((work_ns - np.median(work_ns, axis=1, keepdims=True)).ravel())
    share_below = np.arange(len(deviations_ns) + 1) / len(deviations_ns)
    # A deviation is the greatest of N draws with the probability that all N are at most as great.
    new_maximum_ns, recorded_maximum_ns = (
        float((deviations_ns * np.diff(share_below**count)).sum())
        for count in (rank_count, len(graph.ranks))
    )
    return new_maximum_ns - recorded_maximum_ns


def join_up_to(variant: Variant, size: str) -> None:
    """Join consecutive calls of a step up to a size (a text, such as 25MB)."""
    max_bytes = parse_size(size.replace("MB", "000000").replace("KB", "000"))
    costs, joined_count, recorded_count, largest_ratio = Costs(variant.graph.edges), 0, 0, 0
    cost_lines = variant.graph.edges.cost_lines
    line_costs = {cost_lines[index]: model for index, model in costs.model_by_line.items()}
    for calls in variant.graph.calls:
        sizes_bytes = calls.nbytes[calls.nbytes > 0]
        if len(sizes_bytes) < 2 or calls.is_rooted or calls.cost_line not in line_costs:
            continue
        median_bytes = float(np.median(sizes_bytes))
        if max_bytes < median_bytes:
            raise InvalidArgument(
                f"the calls recorded have {fmt.size(median_bytes)}: when a part of one is "
                "ready was not recorded, so they can only be joined."
            )
        joined_bytes = join_calls(variant, line_costs[calls.cost_line], calls, max_bytes)
        recorded_count += calls.call_count
        joined_count += len(joined_bytes)
        size_ratio = int(joined_bytes.max()) // max(int(calls.nbytes.max()), 1)
        largest_ratio = max(largest_ratio, size_ratio)
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
    variant: Variant,
    cost: CostModel,
    calls: Calls,
    max_bytes: int,
    *,
    step_numbers: Ints | None = None,
) -> Ints:
    """Join calls of one kind, in some steps (numbers; None = all), up to `max_bytes`.

    Return the bytes of each, [joined call]; one takes what the cost line says for them, times how much
    longer than usual its parts took.
    """
    edges, threads = variant.graph.edges, variant.graph.threads
    ends_group = _find_needed_calls(variant.graph, calls)  # [call], as all but what is of a group
    if step_numbers is not None:
        ends_group |= ~np.isin(calls.step_numbers, step_numbers)
    group = _number_groups(calls.step_numbers, calls.nbytes, max_bytes, ends_group)
    joined_bytes = np.bincount(group, np.maximum(calls.nbytes, 0))
    wire_edges = variant.graph.duration_edge_of_event[calls.departure_events]  # to completions
    recorded_ns = variant.lag_ns[wire_edges]
    parts_ns = np.bincount(group, _find_usual_times(cost, calls.nbytes, recorded_ns))
    joined_ns = cost.latency_ns + np.maximum(joined_bytes, 1) * cost.ns_per_byte
    time_ratio = joined_ns / np.maximum(parts_ns, 1e-9)
    time_ratio[np.bincount(group) == 1] = 1.0  # calls that are not joined stay as they are
    is_last = np.append(np.diff(group) > 0, True)
    group_ns = np.bincount(group, recorded_ns) * time_ratio
    variant.lag_ns[wire_edges] = np.where(is_last, group_ns[group], 0.0)
    # Ranks meet, and leave, once in a joined call, and its stream continues at once within it.
    is_within = np.isin(edges.source_events, calls.departure_events[~is_last] + 1)
    variant.lag_ns[is_within] = 0.0
    variant.drop_edges(np.flatnonzero(is_within & (edges.target_events < threads.event_count)))
    return joined_bytes.astype(np.int64)


def _find_usual_times(cost: CostModel, sizes_bytes: Ints, recorded_ns: Floats) -> Floats:
    """Return the usual time of calls, ns, [call]: the median of their size; of rare ones the line's."""
    usual_ns = cost.latency_ns + np.maximum(sizes_bytes, 1) * cost.ns_per_byte
    for size in np.unique(sizes_bytes):
        calls_of_size = np.flatnonzero(sizes_bytes == size)
        if len(calls_of_size) >= MIN_CALLS_FOR_MEDIAN_OF_SIZE:
            usual_ns[calls_of_size] = np.median(recorded_ns[calls_of_size])
    return usual_ns


def _find_needed_calls(graph: EventGraph, calls: Calls) -> Flags:
    """Return flags, [call]: is it in flight, and some rank computes with its result before the next one?

    The rank waits for the call, and continues with forward or backprop before it comes to the next one.
    Backprop does not need the gradients that an allreduce brings. A rank with a share of the weights
    frees its gradients once they are reduced and scattered.
    """
    phases = ("forward",) if calls.operation == "allreduce" else ("forward", "backprop")
    to_departure, from_completion = calls.find_rank_edges(graph.edges, graph.threads)
    leaving_edge, entering_edge = from_completion[:-1], to_departure[1:]  # [call, rank]
    is_known = (entering_edge >= 0) & (leaving_edge >= 0) & ~calls.is_blocking[:-1]
    next_begin = np.where(is_known, graph.edges.source_events[entering_edge], 0)  # event
    own_end = np.where(is_known, graph.edges.target_events[leaving_edge], 0)
    computed_ns = np.cumsum(graph.threads.assign_to_end_events(graph.measure_work_ns(phases)))
    computes = (own_end <= next_begin) & (computed_ns[next_begin] > computed_ns[own_end])
    return np.append((is_known & computes).any(axis=1), False)


def _number_groups(
    step_numbers: Ints, sizes_bytes: Ints, max_bytes: int, ends_group: Flags
) -> Ints:
    """Return the number of the joined call that each call becomes a part of, [call], as all arrays.

    A joined call ends with its step, with a call where `ends_group` is True, or before it has more than
    `max_bytes`.
    """
    groups = np.zeros(len(step_numbers), np.int64)
    group, joined_bytes = 0, 0
    begins_group = (np.diff(step_numbers, prepend=step_numbers[:1]) != 0) | np.append(
        False, ends_group[:-1]
    )
    for row, (begins, size) in enumerate(
        zip(begins_group.tolist(), sizes_bytes.tolist(), strict=True)
    ):
        is_full = joined_bytes >= max_bytes or joined_bytes + size > max_bytes
        if row and (begins or is_full):
            group, joined_bytes = group + 1, 0
        groups[row] = group
        joined_bytes += max(size, 0)  # -1 = unknown
    return groups
