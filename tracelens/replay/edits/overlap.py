"""Reductions during backprop, or after it; a background write between steps.

A gradient bucket is full when the last span of backprop that has its number ends. Where no span has, it
is full when its share of the step's bytes is done of backprop: gradients come in the order of layers,
whose work is taken to be as their bytes. What compute and communication then take from each other is not
known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.memory import BoundedCache
from tracelens.model import fmt
from tracelens.model.columns import FOREVER
from tracelens.replay.calls import REDUCTIONS
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import parse_size
from tracelens.replay.timeline import IS_BACKPROP
from tracelens.simulator.algorithms import count_messages_and_payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.columns import Columns
    from tracelens.replay.calls import Calls
    from tracelens.replay.edits.variant import Variant
    from tracelens.replay.event_graph import EventGraph
    from tracelens.replay.threads import Threads

__all__ = ["overlap_backprop", "prevent_overlap", "write_in_background"]


def prevent_overlap(variant: Variant) -> None:
    """Let a step's first call in flight, and others after it, wait until all ranks begin the last."""
    graph, edges = variant.graph, variant.graph.edges
    is_from_rank = edges.source_events < graph.threads.event_count
    added_count = 0
    for calls in graph.calls:
        first_call, last_call = _find_first_and_last(calls, np.flatnonzero(calls.is_in_flight))
        has_several = first_call < last_call  # [step]
        first_departure, last_departure = (
            calls.departure_events[rows[has_several]] for rows in (first_call, last_call)
        )
        begin_edges = np.flatnonzero(is_from_rank & np.isin(edges.target_events, last_departure))
        step_row = np.searchsorted(last_departure, edges.target_events[begin_edges])
        variant.add_edges(edges.source_events[begin_edges], first_departure[step_row])
        added_count += len(begin_edges)
    if not added_count:
        raise InvalidArgument("this needs steps with several collectives in flight; none has them.")


def overlap_backprop(variant: Variant) -> None:
    """Let reductions run during backprop, where their ranks begin them after it or wait in them.

    Each departs when all ranks have its gradients and the one before is complete; ranks wait for all of
    them where they waited for the last.
    """
    graph = variant.graph
    count, has_bucket_spans = 0, False  # of buckets
    for calls in graph.calls:
        if calls.operation in REDUCTIONS:
            reductions = _Reductions.from_calls(variant, calls)
            for chain in reductions.chains:
                count += reductions.overlap(variant, chain)
                has_bucket_spans |= bool((reductions.full_positions >= 0).any())
    if not count:
        raise InvalidArgument(
            "this needs reductions that their ranks begin after backprop; "
            f"{_explain_refusal(graph)}."
        )
    condition = "its bucket's last span of it ends, else when " if has_bucket_spans else ""
    variant.notes.append(
        f"{fmt.count(count, 'reduction')} would go beside backprop, each when {condition}its share of "
        "the step's bytes is done of it; what they take from compute is not in it."
    )


def _explain_refusal(graph: EventGraph) -> str:
    """Explain why no reduction can run during backprop."""
    reductions = [calls for calls in graph.calls if calls.operation in REDUCTIONS]
    if not reductions:
        return "this trace has no all-reduce or reduce-scatter that all ranks came to and left"
    if not graph.measure_work_ns(("backprop",)).any():
        return "this trace has no span of backprop"
    if all(calls.is_in_flight.all() for calls in reductions):
        return "all of its reductions are in flight beside backprop already"
    return "before each of its blocking reductions ranks do something else"


def write_in_background(variant: Variant, size: str) -> None:
    """Write a number of bytes (a text) on the same links after each step's last collective."""
    written_bytes, graph = parse_size(size), variant.graph
    costs = Costs(graph.edges)
    paces = [  # ns per byte of one link, which carries several payloads
        model.ns_per_byte / count_messages_and_payloads("ring", line.rank_count)[1]
        for index, model in costs.model_by_line.items()
        if (line := graph.edges.cost_lines[index]).rank_count > 1 and line.operation in REDUCTIONS
    ]
    if not paces:
        raise InvalidArgument(costs.explain_lack(is_network=True))
    ns_per_byte = max(paces)
    write_ns = written_bytes * ns_per_byte
    departures_of_step: dict[int, list[int]] = {}  # events: the first one of each communicator
    completions_of_step: dict[int, list[int]] = {}  # events: the last one of each communicator
    for calls in graph.calls:
        first_call, last_call = _find_first_and_last(calls, np.arange(calls.call_count))
        ends = calls.departure_events[first_call], calls.departure_events[last_call] + 1
        columns = calls.step_numbers[first_call], *ends
        for step, departure, completion in np.stack(columns, axis=1).tolist():
            departures_of_step.setdefault(step, []).append(departure)
            completions_of_step.setdefault(step, []).append(completion)
    for step, next_step in pairwise(sorted(departures_of_step)):
        last_completion = max(completions_of_step[step], key=graph.recorded_times_ns.__getitem__)
        departures = np.array(departures_of_step[next_step], np.int64)
        count = len(departures)
        variant.add_edges(np.full(count, last_completion), departures, np.full(count, write_ns))
    variant.notes.append(
        f"{fmt.size(written_bytes)} a step take {fmt.duration(write_ns)} of a link "
        f"({fmt.bandwidth(1 / ns_per_byte)}, a ring assumed) between the last collective of a "
        "step and the first of the next; what reading and writing them costs a core or a disk is not in "
        "it."
    )


@dataclass(frozen=True, eq=False)
class _Reductions:
    """Reductions of a communicator.

    [call, rank]: `begin_events` are those at which ranks begin them, -1 where none is; `departure_edges`
    and `completion_edges` are those of `Calls.find_rank_edges`. [event of threads]: `since_backprop_ns`
    is how long ago backprop was over, `backprop_ns` how much of it lies between the event and the one
    before, `other_work_ns` how much of updates, forward and data.
    """

    graph: EventGraph
    calls: Calls
    begin_events: Ints
    departure_edges: Indices
    completion_edges: Indices
    since_backprop_ns: Floats
    backprop_ns: Floats
    other_work_ns: Floats

    @classmethod
    def from_calls(cls, variant: Variant, calls: Calls) -> Self:
        """Find when each rank begins the calls, and how long backprop was then over."""
        graph, threads = variant.graph, variant.graph.threads
        departure_edges, completion_edges = calls.find_rank_edges(graph.edges, threads)
        begin_events = np.where(
            departure_edges >= 0, graph.edges.source_events[departure_edges], -1
        )
        backprop_ns, other_work_ns = (
            threads.assign_to_end_events(variant.measure_work_ns(phases))
            for phases in (("backprop",), ("update", "forward", "data"))
        )
        edges = departure_edges, completion_edges
        times_ns = _measure_since_backprop_ns(threads), backprop_ns, other_work_ns
        return cls(graph, calls, begin_events, *edges, *times_ns)

    @property
    def chains(self) -> list[list[list[int]]]:
        """The calls that can depart earlier, as rows: [chain][part][call].

        A chain is of one step, with nothing but backprop between its calls; a part is the calls that
        follow the same stretch of backprop. Calls in flight can depart earlier only if all of them are
        begun when backprop is over.
        """
        is_begun = (self.begin_events >= 0).all(axis=1)
        blocking = self._find_chains(is_begun & np.asarray(self.calls.is_blocking.all(axis=1)))
        in_flight = self._find_chains(is_begun & self.calls.is_in_flight)
        return blocking + [chain for chain in in_flight if len(chain) == 1 and len(chain[0]) > 1]

    def _find_chains(self, is_usable: Flags) -> list[list[list[int]]]:
        """Return the chains among some calls (flags), as rows: [chain][part][call]."""
        rows = np.flatnonzero(is_usable)
        follows_backprop = self.backprop_ns[self.begin_events[rows]].min(axis=1) > 0
        continues_chain = self.other_work_ns[self.begin_events[rows]].max(axis=1) <= 0
        continues_chain &= np.diff(rows, prepend=-2) == 1
        continues_chain &= np.diff(self.calls.step_numbers[rows], prepend=-1) == 0
        chains: list[list[list[int]]] = []
        chain: list[list[int]] = []
        columns = (rows.tolist(), follows_backprop.tolist(), continues_chain.tolist())
        for row, begins_part, continues in zip(*columns, strict=True):
            if not continues:
                chain = []
            if begins_part:
                chain.append([row])
                if len(chain) == 1:
                    chains.append(chain)
            elif chain:
                chain[-1].append(row)
        return chains

    def overlap(self, variant: Variant, chain: Sequence[Sequence[int]]) -> int:
        """Let the calls of a chain, as rows: [part][call], run during backprop; return their number."""
        calls = self.calls
        for part_calls in chain:
            begin_event = self.begin_events[part_calls[0]]  # [rank]
            # The interval before it: a thread has one event more than intervals.
            interval = begin_event - 1 - calls.workers
            nbytes = np.maximum(calls.nbytes[part_calls], 1).astype(np.float64)
            full_share = np.cumsum(nbytes) / nbytes.sum()
            rest_share = (1 - full_share)[:, None]  # of backprop, [call, rank]
            # Gradients come in the order of calls; numbers in another order are none of buckets.
            increments = np.diff(self.full_positions[part_calls], axis=0, prepend=0)
            is_ordered = (increments >= 0).all(axis=0)  # [rank]
            if is_ordered.any():
                rest_share = np.where(is_ordered, self._measure_rest_share(part_calls), rest_share)
            rest_ns = rest_share * self.backprop_ns[begin_event]
            # Time before the begin at which the call's bucket was full, [call, rank].
            since_full_ns = self.since_backprop_ns[begin_event] + rest_ns
            lag_ns = np.maximum(variant.lag_ns[interval] - since_full_ns, 0.0)
            departure = calls.departure_events[part_calls][:, None]
            source, target = np.broadcast_arrays(begin_event - 1, departure)
            variant.add_edges(source.ravel(), target.ravel(), lag_ns.ravel())
        rows = np.concatenate(chain)
        departures = calls.departure_events[rows]
        variant.drop_edges(self.departure_edges[rows].ravel())
        variant.add_edges(departures[:-1] + 1, departures[1:])
        leaving_edges = self.completion_edges[rows[:-1]][calls.is_blocking[rows[:-1]]]
        variant.drop_edges(leaving_edges[leaving_edges >= 0])
        return len(rows)

    def _measure_rest_share(self, part_calls: Sequence[int]) -> Floats:
        """Return the share of backprop before a part that is left when buckets fill, [call, rank]."""
        threads, begin_event = self.graph.threads, self.begin_events[part_calls[0]]
        begins, ends = (threads.event_positions[begin_event + offset] for offset in (-1, 0))
        done_at_begin_ns, done_when_full_ns, done_at_end_ns = (
            threads.timeline.sum_ns_before(IS_BACKPROP, positions)
            for positions in (begins, self.full_positions[part_calls], ends)
        )
        backprop_ns = np.maximum(done_at_end_ns - done_at_begin_ns, 1.0)
        return np.clip((done_at_end_ns - done_when_full_ns) / backprop_ns, 0.0, 1.0)

    @cached_property
    def full_positions(self) -> Ints:
        """Timeline positions where the last backprop for buckets ends, [call, rank]; -1 if none does."""
        calls, trace, cache = self.calls, self.graph.trace, BoundedCache()
        positions = np.full(calls.begin_ns.shape, -1, np.int64)
        if (calls.bucket < 0).all():
            return positions
        buckets = pl.DataFrame(
            {"step": calls.step_numbers, "bucket": calls.bucket.astype(np.int64)}
        )
        column_names = ("type", "kind", "step", "bucket", "start_ns", "end_ns")
        processes = trace.workers["process"].to_list()
        for rank, worker in enumerate(calls.workers.tolist()):
            ends = _read_bucket_ends(
                trace.source.read_columns(processes[worker], column_names, cache)
            )
            with_ends = buckets.join(ends, on=buckets.columns, how="left", maintain_order="left")
            end_ns = with_ends["end_ns"]
            known_ns = end_ns.fill_null(0).to_numpy()
            position = self.graph.threads.timeline.to_positions(worker, known_ns)
            positions[:, rank] = np.where(end_ns.is_null(), -1, position)
        return positions


def _read_bucket_ends(columns: Columns) -> pl.DataFrame:
    """Return a row per step and bucket, with the `end_ns` of the last span of backprop for it."""
    end_ns, bucket = columns.number_column("end_ns"), columns.number_column("bucket")
    has_bucket = columns.is_span & (bucket >= 0) & (end_ns < FOREVER)
    rows = np.flatnonzero(has_bucket & columns.word_column("kind").is_in(("backprop",)))
    ends = {
        "step": columns.number_column("step")[rows],
        "bucket": bucket[rows],
        "end_ns": end_ns[rows],
    }
    table = pl.DataFrame(ends, schema=dict.fromkeys(ends, pl.Int64()))
    return table.group_by("step", "bucket").agg(pl.col("end_ns").max())


def _measure_since_backprop_ns(threads: Threads) -> Floats:
    """Return the time since the last backprop of its thread at each event, ns, [event of threads]."""
    timeline, positions = threads.timeline, threads.event_positions
    is_backprop = timeline.is_in_categories(IS_BACKPROP)[:-1]
    ends = np.append(timeline.bound_positions[1:][is_backprop], -1)  # of pieces of backprop
    latest = ends[np.searchsorted(ends[:-1], positions, side="right") - 1]
    is_of_thread = timeline.to_workers(latest) == timeline.to_workers(positions)
    return np.where(is_of_thread, positions - latest, 0).astype(np.float64)


def _find_first_and_last(calls: Calls, rows: Indices) -> tuple[Indices, Indices]:
    """Return the rows of the first and of the last call of each step among some rows, [step]."""
    is_new_step = np.diff(calls.step_numbers[rows]) != 0
    first = rows[np.append(True, is_new_step)[: len(rows)]]
    return first, rows[np.append(is_new_step, True)[: len(rows)]]
