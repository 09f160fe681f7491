"""Simulates synchronous training with parameter servers whose transfers overlap compute.

At a step's begin a worker asks for all variables. Answers share the shard's link evenly, or go one
after the other in forward order. Forward of a variable starts when the one before it is through and
all pieces of it are here; backprop goes backwards, and pushes each gradient when it is made. A shard
adds pushes up in order of arrival and applies them after the last one. The step ends for all when
everything is applied: a token (`SyncReplicasOptimizer`, TensorFlow 1.x). Links are full duplex, so
pushes do not slow down pulls; the workers' own links are taken for fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.simulator.allreduce import (
    draw_compute_times,
    make_span_columns,
    record_positive_spans,
    record_step,
)
from tracelens.simulator.parameter_server import Exchange
from tracelens.simulator.scenario import ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.simulator.allreduce import ComputeTimes
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time.

    Times are ns, [step, rank], of pieces [rank, piece]; shares of compute are [variable].
    """
    compute, exchange = draw_compute_times(scenario), Exchange(scenario)
    shape = (scenario.steps, scenario.ranks)
    start_ns, forward_end_ns, backprop_end_ns, end_ns = np.zeros((4, *shape), np.int64)
    work_shares, first_pieces, variable_of_piece = _list_variables(scenario)
    waits_ns = np.zeros((2, *shape, len(work_shares)), np.int64)  # [begin or end, step, ...]
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    # of backprop, when the gradient of a variable is made: it goes backwards
    done_shares = 1 - np.cumsum(work_shares) + work_shares
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        arrive_ns = np.maximum.reduceat(exchange.pull_pieces(step, now_ns), first_pieces, axis=1)
        begin_ns = now_ns + compute.data_ns[step] + compute.gc_ns[step]
        waits_ns[:, step], forward_end_ns[step] = _run_forward(
            begin_ns, arrive_ns, compute.forward_ns[step], work_shares
        )
        backward_ns = np.rint(compute.backprop_ns[step][:, None] * done_shares).astype(np.int64)
        gradients_ns = forward_end_ns[step][:, None] + backward_ns
        backprop_end_ns[step] = forward_end_ns[step] + compute.backprop_ns[step]
        # When all workers know that everything is applied.
        token_ns = exchange.push_pieces(step, gradients_ns[:, variable_of_piece])
        now_ns = end_ns[step] = np.maximum(backprop_end_ns[step], token_ns)
    _record_phases(scenario, sheet, compute, (start_ns, forward_end_ns, backprop_end_ns, end_ns))
    _record_waits(sheet, scenario, waits_ns)
    record_step(scenario, sheet, start_ns, end_ns)
    exchange.add_request_spans(sheet)


def _list_variables(scenario: Scenario) -> tuple[Floats, Indices, Indices]:
    """Return shares of compute and first pieces, [variable], and the variable of each piece, [piece]."""
    numbers = np.array([piece.variable_index for piece in scenario.pieces], np.intp)
    variables, first_pieces, variable_of_piece = np.unique(
        numbers, return_index=True, return_inverse=True
    )
    work = np.array(scenario.work or [1.0] * (int(variables.max()) + 1))[variables]
    return work / work.sum(), first_pieces, variable_of_piece


def _run_forward(
    begin_ns: Ints, arrive_ns: Ints, forward_ns: Ints, work_shares: Floats
) -> tuple[Ints, Ints]:
    """Return the wait for each variable, ns, [begin or end, rank, variable], and forward's end.

    A variable's forward starts when the one before it is through and the variable is here:
    `arrive_ns`, [rank, variable]. `begin_ns`, and the time of work `forward_ns`, are [rank].
    """
    work_sums_ns = np.rint(np.cumsum(forward_ns[:, None] * work_shares, axis=1)).astype(np.int64)
    work_before_ns = np.pad(work_sums_ns[:, :-1], ((0, 0), (1, 0)))
    # Begin of forward, had it waited for this variable and those before it at its begin.
    delayed_ns = np.maximum(arrive_ns - work_before_ns, begin_ns[:, None])
    delayed_ns = np.maximum.accumulate(delayed_ns, axis=1)
    end_ns = delayed_ns + work_sums_ns
    free_ns = np.concatenate([begin_ns[:, None], end_ns[:, :-1]], axis=1)
    return np.stack([free_ns, delayed_ns + work_before_ns]), end_ns[:, -1]


def _record_phases(
    scenario: Scenario,
    sheet: Sheet,
    compute: ComputeTimes,
    step_times_ns: tuple[Ints, Ints, Ints, Ints],
) -> None:
    """Add the workers' phases; times are begin, forward end, backprop end, end, [step, rank]."""
    start_ns, forward_end_ns, backprop_end_ns, end_ns = step_times_ns
    columns = make_span_columns(scenario)
    data_end_ns = start_ns + compute.data_ns
    forward_ns = data_end_ns + compute.gc_ns, forward_end_ns  # begin, end
    sheet.add_spans(start_ns, data_end_ns, name="next_batch", kind="data", **columns)
    record_positive_spans(sheet, data_end_ns, compute.gc_ns, name="gc", kind="gc", **columns)
    sheet.add_spans(*forward_ns, name="forward", kind="forward", **columns)
    sheet.add_spans(forward_end_ns, backprop_end_ns, name="backprop", kind="backprop", **columns)
    sheet.add_spans(backprop_end_ns, end_ns, name="wait_token", kind="wait", **columns)


def _record_waits(sheet: Sheet, scenario: Scenario, waits_ns: Ints) -> None:
    """Add the waits for variables in forward, ns, [begin or end, step, rank, variable]."""
    begin_ns, end_ns = waits_ns
    steps, ranks, _ = position = np.nonzero(end_ns > begin_ns)
    if len(steps):
        columns = make_span_columns(scenario, depth=2) | {"process": ranks, "rank": ranks}
        columns |= {"step": steps, "name": "wait_pull", "kind": "wait"}
        sheet.add_spans(begin_ns[position], end_ns[position], **columns)
