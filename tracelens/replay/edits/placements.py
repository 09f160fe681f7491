"""Other loads of parameter servers: variables placed otherwise, cut into chunks, or on more shards.

A service, and the way of a push or pull, takes what the line of its kind says for the bytes that its
shard then holds. With another number of shards each recorded shard is as loaded as one of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.placement import CHUNK_BYTES, STRATEGIES, place_chunks
from tracelens.replay.edges import EdgeReason
from tracelens.replay.edits.costs import Costs
from tracelens.replay.resources import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.placement import Piece
    from tracelens.replay.edits.variant import Variant
    from tracelens.replay.event_graph import EventGraph

__all__ = ["arrange", "check_received", "parse_size", "place_variables", "spread_bytes"]

# share of all bytes: shards hold the same before and after if no load differs more [policy]
MAX_DIFFERENCE_OF_EQUAL_LOADS: Final = 1e-3
# share of pulls: edits are refused if it is unknown for more when workers need them [chosen]
MAX_SHARE_OF_NEEDS_UNKNOWN: Final = 0.05
# share of the time of pushes: edits are refused if no server is known to receive
# for longer [chosen]
MAX_SHARE_OF_PUSHES_UNRECEIVED: Final = 0.05
# steps: the median pace of as many is the usual one in the middle of them [chosen]
STEPS_OF_USUAL_PACE: Final = 5
# times what its bytes usually take: a message on a shared link that takes longer stalled [chosen]
MIN_RATIO_OF_STALLED_MESSAGE: Final = 1.5
ROUNDS_OF_STALLS: Final = 4  # rounds: the pace without stalls is found as often [policy]


def parse_size(text: str) -> int:
    """Return the bytes that a size, such as 25MB, means."""
    try:
        return fmt.parse_size(text)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from None


def place_variables(variant: Variant, strategy: str, chunk: str | None) -> None:
    """Place the variables of all shards by a strategy (its name); `chunk` is a size, a text."""
    names = (*STRATEGIES, f"chunked:{CHUNK_BYTES // 1024}KiB")
    if strategy not in STRATEGIES or (chunk is not None and strategy != "chunked"):
        raise InvalidArgument(f"the placement is none of {', '.join(names)}.")
    bytes_by_shard = _measure_bytes_by_shard(variant.graph)
    bytes_by_variable, shard_count = variant.graph.bytes_by_variable, len(bytes_by_shard)
    total_bytes, sizes_bytes = sum(bytes_by_shard.values()), list(bytes_by_variable.values())
    if strategy == "chunked":
        chunk_bytes = CHUNK_BYTES if chunk is None else parse_size(chunk)
        pieces = place_chunks(sizes_bytes or [int(total_bytes)], shard_count, chunk_bytes)
    elif not sizes_bytes:
        raise InvalidArgument(
            "this needs the bytes of each variable, by the key of its requests; only the bytes of "
            "shards are known, which placement=chunked can deal out."
        )
    else:
        pieces = STRATEGIES[strategy](sizes_bytes, shard_count)
    layout = _Layout.from_pieces(pieces, list(bytes_by_variable), shard_count)
    _apply_layout(variant, layout, bytes_by_shard)
    shares = layout.measure_byte_shares(bytes_by_variable)  # [shard]
    variant.notes.append(
        f"The fullest shard holds {fmt.percent(float(shares.max() / shares.sum()), digits=1)} of "
        f"the bytes, before {fmt.percent(max(bytes_by_shard.values()) / total_bytes, digits=1)}."
    )


def spread_bytes(variant: Variant, count: str) -> None:
    """Deal all bytes out evenly to `count` shards, a number as a text."""
    bytes_by_shard, shard_count = _measure_bytes_by_shard(variant.graph), int(count)
    bytes_by_variable = variant.graph.bytes_by_variable
    if not shard_count:
        raise InvalidArgument("expected at least one shard.")
    ones = np.ones((1, shard_count))  # without known variables a single row is for all bytes
    layout = _Layout(np.zeros(0, np.int64), byte_shares=ones / shard_count, piece_counts=ones)
    if bytes_by_variable:
        pieces = place_chunks([*bytes_by_variable.values()], shard_count)
        layout = _Layout.from_pieces(pieces, [*bytes_by_variable], shard_count)
    _apply_layout(variant, layout, bytes_by_shard)
    variant.notes.append(
        f"Each shard holds {fmt.size(sum(bytes_by_shard.values()) / shard_count)} of what a worker "
        "exchanges in a step on average; what more messages cost the workers is not in it."
    )


def arrange(variant: Variant, form: str) -> None:
    """Let one server hold all bytes (central), or as many servers as workers share them (sharded)."""
    if form not in ("central", "sharded"):
        raise InvalidArgument(
            "a replay of this trace cannot answer that: which links a worker and a server on its "
            "machine would share is not recorded; arrangement=central and arrangement=sharded can be."
        )
    spread_bytes(variant, "1" if form == "central" else str(len(variant.graph.ranks)))


def check_received(graph: EventGraph) -> None:
    """Raise `InvalidArgument` unless servers recorded when they received what workers pushed."""
    share = graph.requests.hidden_transfer_share
    if share > MAX_SHARE_OF_PUSHES_UNRECEIVED:
        raise InvalidArgument(
            "not recorded: when servers received what workers pushed (spans with op=receive), which is "
            f"{fmt.percent(share)} of the time of pushes."
        )


def _measure_bytes_by_shard(graph: EventGraph) -> dict[int, float]:
    """Return the bytes of a mean step's requests of all workers, by shard; 0 for idle ones."""
    check_received(graph)
    edges = graph.edges
    rows = np.flatnonzero((edges.shard_numbers >= 0) & (edges.nbytes > 0))
    if not len(rows):
        raise InvalidArgument(
            "this needs parameter servers, and bytes of their services; none are here."
        )
    # Every kind of service has the same: that with the most bytes knows it of all requests.
    bytes_of_line = np.bincount(edges.cost_line_indices[rows], edges.nbytes[rows])
    rows = rows[edges.cost_line_indices[rows] == bytes_of_line.argmax()]
    step_bytes = np.bincount(edges.shard_numbers[rows], edges.nbytes[rows]) / len(
        graph.step_numbers
    )
    busy_shards = np.unique(edges.shard_numbers[rows]).tolist()
    idle_bytes = dict.fromkeys(graph.requests.server_numbers.tolist(), 0.0)
    return idle_bytes | {shard: float(step_bytes[shard]) for shard in busy_shards}


@dataclass(frozen=True, eq=False)
class _Layout:
    """The share of each variable's bytes on each shard, and its pieces there, [variable, shard].

    `keys` are those of variables, [variable]; a single row without key is for all variables.
    """

    keys: Ints
    byte_shares: Floats
    piece_counts: Floats

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece], keys: Sequence[int], shard_count: int) -> Self:
        """Sum up pieces of variables, which are numbered as in `keys`, on a number of shards."""
        pairs = np.array([(piece.variable_index, piece.shard_index) for piece in pieces], np.intp)
        cells = tuple(pairs.reshape(-1, 2).T)
        nbytes, piece_counts = np.zeros((2, max(len(keys), 1), shard_count))  # [variable, shard]
        np.add.at(nbytes, cells, [piece.nbytes for piece in pieces])
        np.add.at(piece_counts, cells, 1.0)
        shares = nbytes / np.maximum(nbytes.sum(axis=1, keepdims=True), 1.0)
        return cls(np.array(keys, np.int64), byte_shares=shares, piece_counts=piece_counts)

    def measure_byte_shares(self, bytes_by_key: dict[int, int]) -> Floats:
        """Return the share of all variables' bytes on each shard, [shard]."""
        sizes_bytes = np.array([bytes_by_key[key] for key in self.keys.tolist()] or [1], np.float64)
        return np.asarray(sizes_bytes @ self.byte_shares / max(float(sizes_bytes.sum()), 1.0))


def _apply_layout(variant: Variant, layout: _Layout, bytes_by_shard: dict[int, float]) -> None:
    """Let servers hold variables by another layout than the recorded one, `bytes_by_shard`."""
    graph = variant.graph
    new_shares = layout.measure_byte_shares(graph.requests.pushed_bytes_by_key)  # [shard]
    shard_count, held_bytes = len(bytes_by_shard), np.array([*bytes_by_shard.values()])  # [shard]
    total_bytes = sum(bytes_by_shard.values())
    can_move = shard_count != len(new_shares) or (shard_count > 1 and bool(graph.bytes_by_variable))
    if not can_move:
        differences = np.abs(new_shares - held_bytes / total_bytes)
        if differences.max() <= MAX_DIFFERENCE_OF_EQUAL_LOADS:
            return
    unknown_share = graph.requests.unknown_needs_share
    if unknown_share > MAX_SHARE_OF_NEEDS_UNKNOWN:
        raise InvalidArgument(
            f"not recorded: the variables (key) of requests, so that of {fmt.percent(unknown_share)} of "
            "the pulls it is not known when workers need them."
        )
    if not graph.bytes_by_variable and len(new_shares) != shard_count:
        new_shares = np.full(shard_count, 1 / len(new_shares))
    byte_ratio_of_shard = np.ones(max(bytes_by_shard) + 2)  # the last one is for no shard, -1
    new_bytes = np.pad(new_shares, (0, shard_count))[:shard_count] * total_bytes
    byte_ratio_of_shard[[*bytes_by_shard]] = new_bytes / np.maximum(held_bytes, 1.0)
    _resize_services(variant, layout, byte_ratio_of_shard)


def _resize_services(variant: Variant, layout: _Layout, byte_ratio_of_shard: Floats) -> None:
    """Scale the bytes of services by shard number, and their times with them; the last: no shard."""
    graph, edges, costs = variant.graph, variant.graph.edges, Costs(variant.graph.edges)
    lines = edges.cost_line_indices
    shard_lines = [
        line for line in costs.model_by_line if (edges.shard_numbers[lines == line] >= 0).all()
    ]
    if not shard_lines:
        raise InvalidArgument(costs.explain_lack(is_network=False))
    is_of_shard = (edges.shard_numbers >= 0) & (edges.shard_numbers < len(byte_ratio_of_shard) - 1)
    byte_ratio = byte_ratio_of_shard[np.where(is_of_shard, edges.shard_numbers, -1)]  # [edge]
    # What has no resource takes as long as its server's bytes say; so do updates of all variables.
    lag_ns = costs.compute_lags_ns(variant.lag_ns, shard_lines, edges.nbytes * byte_ratio)
    tasks = graph.tasks
    service = (edges.source_events[tasks.edge_rows] - graph.first_service_event) // 2
    is_moved = (graph.requests.worker_of_services[service] >= 0) & (
        edges.nbytes[tasks.edge_rows] > 0
    )
    moved_tasks = tasks.take(np.flatnonzero(is_moved))
    lag_ns[moved_tasks.edge_rows] = variant.lag_ns[moved_tasks.edge_rows]
    variant.lag_ns = lag_ns
    if graph.bytes_by_variable:
        row, new_tasks, nbytes = _cut_tasks(graph, layout, moved_tasks)
        _update_after_all(variant)
    else:
        row, new_tasks = np.arange(len(moved_tasks.edge_rows)), moved_tasks
        nbytes = (edges.nbytes * byte_ratio)[moved_tasks.edge_rows]
    new_tasks = _move_tasks(variant, moved_tasks, row, new_tasks, nbytes, costs=costs)
    variant.tasks = Tasks.concatenate([tasks.take(np.flatnonzero(~is_moved)), new_tasks])


def _cut_tasks(graph: EventGraph, layout: _Layout, tasks: Tasks) -> tuple[Indices, Tasks, Floats]:
    """Cut each task into one for each shard on which a layout has bytes of the task's variable.

    Return the row of each new one in `tasks`, the new tasks, and their bytes, all [new task].
    """
    service = (graph.edges.source_events[tasks.edge_rows] - graph.first_service_event) // 2
    variable = np.searchsorted(layout.keys, graph.requests.key_of_services[service])  # [task]
    row, server = np.nonzero(layout.byte_shares[variable] > 0)  # [new task]
    new_tasks, cell = tasks.take(row), (variable[row], server)
    nbytes = graph.edges.nbytes[new_tasks.edge_rows] * layout.byte_shares[cell]
    # Pieces of a stream go one after the other, so that they are one message at a time.
    message_counts = np.where(new_tasks.stream < 0, layout.piece_counts[cell], 1.0)
    message_counts = new_tasks.message_counts * message_counts
    return row, replace(new_tasks, server_index=server, message_counts=message_counts), nbytes


def _move_tasks(
    variant: Variant,
    tasks: Tasks,
    row: Indices,
    new_tasks: Tasks,
    sizes_bytes: Floats,
    *,
    costs: Costs,
) -> Tasks:
    """Return the new tasks with the share of the recorded time that each takes on its server.

    `row` is the row in `tasks` of each new one, which has `sizes_bytes`, both [new task]. What a
    recorded task took beyond what is usual for its bytes is a stall: its service comes later instead.
    A pace is how many times as long as `costs` predict tasks take.
    """
    graph, edges = variant.graph, variant.graph.edges
    line, lag_ns = edges.cost_line_indices[tasks.edge_rows], variant.lag_ns[tasks.edge_rows]
    task_ns = costs.predict_lags_ns(line, edges.nbytes[tasks.edge_rows])  # by its bytes
    new_task_ns = costs.predict_lags_ns(line[row], sizes_bytes)
    step = np.searchsorted(graph.step_numbers, edges.step_numbers[tasks.edge_rows])
    cells = tasks.kind_indices, step, tasks.server_index
    new_cells = new_tasks.kind_indices, step[row], new_tasks.server_index
    old_and_new_indices = zip(cells, new_cells, strict=True)
    shape = [1 + int(np.append(*indices).max(initial=0)) for indices in old_and_new_indices]
    predicted_ns = _sum_cells(shape, cells, task_ns)  # [kind, step, server], as all sums and paces
    is_shared = ~np.isnan(tasks.crowding_of_kind)[tasks.kind_indices]
    usual_ns = np.full(len(lag_ns), np.inf)
    for _ in range(ROUNDS_OF_STALLS):
        is_stalled = is_shared & (lag_ns > MIN_RATIO_OF_STALLED_MESSAGE * usual_ns)
        stall_ns = np.where(is_stalled, lag_ns - usual_ns, 0.0)
        work_ns = _sum_cells(shape, cells, lag_ns - stall_ns)
        pace = np.divide(work_ns, predicted_ns, out=np.full(shape, np.nan), where=predicted_ns > 0)
        usual_pace = _find_usual_paces(pace)
        usual_ns = usual_pace[cells] * task_ns
    _delay_services(variant, edges.source_events[tasks.edge_rows], stall_ns)
    # What a server took beyond that does not grow with its bytes, but shrinks with them, as queues do.
    queued_ns = work_ns - usual_pace * predicted_ns
    new_predicted_ns = _sum_cells(shape, new_cells, new_task_ns)
    growth = np.divide(new_predicted_ns, predicted_ns, out=np.ones(shape), where=predicted_ns > 0)
    new_work_ns = usual_pace * new_predicted_ns + queued_ns * np.minimum(growth, 1.0)
    has_work = new_predicted_ns > 0
    new_pace = np.divide(new_work_ns, new_predicted_ns, out=usual_pace, where=has_work)
    work_share = new_tasks.work_share * new_task_ns / task_ns[row]
    work_share = work_share * new_pace[new_cells] / pace[cells][row]
    work_share = work_share * (1 - stall_ns / np.maximum(lag_ns, 1.0))[row]
    return replace(new_tasks, work_share=work_share)


def _sum_cells(shape: Sequence[int], cells: tuple[Ints, ...], values: Floats) -> Floats:
    """Return sums of values by cell (an index for each axis) of a table of some shape."""
    sums = np.zeros(shape)
    np.add.at(sums, cells, values)
    return sums


def _delay_services(variant: Variant, begins: Ints, stall_ns: Floats) -> None:
    """Let services (begin events) come to their link later by what each stalled, ns."""
    edges = variant.graph.edges
    delay_ns = np.zeros(len(variant.graph.recorded_times_ns))  # [event]
    np.maximum.at(delay_ns, begins, stall_ns)
    variant.lag_ns += np.where(
        edges.reasons == EdgeReason.QUEUE, 0.0, delay_ns[edges.target_events]
    )


def _find_usual_paces(pace: Floats) -> Floats:
    """Return the usual pace of each server, [kind, step, server]: the median of the steps around it.

    A slow spell is usual then, a stall of single steps is not. Without tasks (nan) it is that of all
    servers. A pace is how many times as long as predicted tasks took.
    """
    usual_pace = np.ones(pace.shape)
    steps_beside = STEPS_OF_USUAL_PACE // 2
    for kind, kind_pace in enumerate(pace):
        is_known = ~np.isnan(kind_pace)
        if is_known.any():
            usual_pace[kind] = np.median(kind_pace[is_known])
        for server in np.flatnonzero(is_known.any(axis=0)).tolist():
            steps = np.flatnonzero(is_known[:, server])
            padded_pace = np.pad(kind_pace[steps, server], steps_beside, mode="edge")
            windows = np.lib.stride_tricks.sliding_window_view(padded_pace, STEPS_OF_USUAL_PACE)
            usual_pace[kind, steps, server] = np.median(windows, axis=1)
    return usual_pace


def _update_after_all(variant: Variant) -> None:
    """Add edges to updates of all variables of a server from what any server adds up in their step."""
    graph = variant.graph
    services = graph.requests.services.select("op", "step", "key").with_row_index("update")
    gradients = services.filter(pl.col("op") == "aggregate").select("step", gradient="update")
    updates_of_all = services[graph.requests.joint_update_rows].filter(pl.col("key").is_null())
    pairs = updates_of_all.join(gradients, on="step", nulls_equal=True)
    rows = pairs.select("update", "gradient").to_numpy().astype(np.int64).T
    update_begin, gradient_begin = graph.first_service_event + 2 * rows
    variant.add_edges(gradient_begin + 1, update_begin)
