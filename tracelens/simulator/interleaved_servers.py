"""Simulates synchronous training with parameter servers whose transfers overlap compute.

At a step's begin a worker asks for all variables. Answers share the shard's link evenly, or go one
after the other in forward order. Forward of a variable starts when the one before it is through and
all pieces of it are here; backprop goes backwards, and pushes each gradient when it is made. A shard
adds pushes up in order of arrival and applies them after the last one. The step ends for all when
everything is applied: a token (`SyncReplicasOptimizer`, TensorFlow 1.x). Links are full duplex, so
pushes do not slow down pulls; the workers' own links are taken for fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.simulator.allreduce import draw_compute_times, only, record_step, span_columns
from tracelens.simulator.parameter_server import Exchange
from tracelens.simulator.scenario import ORIGIN_NS

if TYPE_CHECKING:
    from tracelens.arrays import Floats, Indices, Ints
    from tracelens.simulator.allreduce import ComputeTimes
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet


def simulate(scenario: Scenario, sheet: Sheet) -> None:
    """Add the events of workers and shards of a whole run to `sheet`, in true time."""
    compute, exchange = draw_compute_times(scenario), Exchange(scenario)
    shape = (scenario.steps, scenario.ranks)
    start_ns, forward_end, backprop_end, end_ns = (np.zeros(shape, np.int64) for _ in range(4))
    shares, first_pieces, of_piece = _list_variables(scenario)
    waits_ns = np.zeros((2, *shape, len(shares)), np.int64)
    now_ns = np.full(scenario.ranks, ORIGIN_NS, np.int64)
    done_share = 1 - np.cumsum(shares) + shares  # how much of backprop is done when a gradient is
    for step in range(scenario.steps):
        start_ns[step] = now_ns
        arrived_ns = np.maximum.reduceat(exchange.pull(step, now_ns), first_pieces, axis=1)
        begin_ns = now_ns + compute.data[step] + compute.gc[step]
        waits_ns[:, step], forward_end[step] = _run_forward(
            begin_ns, arrived_ns, compute.forward[step], shares
        )
        ready_ns = forward_end[step][:, None] + np.rint(
            compute.backprop[step][:, None] * done_share
        )
        backprop_end[step] = forward_end[step] + compute.backprop[step]
        token_ns = exchange.push(step, ready_ns.astype(np.int64)[:, of_piece])
        now_ns = end_ns[step] = np.maximum(backprop_end[step], token_ns)
    _record_phases(scenario, sheet, compute, (start_ns, forward_end, backprop_end, end_ns))
    _record_waits(sheet, scenario, waits_ns)
    record_step(scenario, sheet, start_ns, end_ns)
    exchange.record(sheet)


def _list_variables(scenario: Scenario) -> tuple[Floats, Indices, Indices]:
    """Return each variable's share of compute, its first piece, and the variable of each piece."""
    of_piece = np.array([piece.variable for piece in scenario.pieces], np.intp)
    present, first_pieces, inverse = np.unique(of_piece, return_index=True, return_inverse=True)
    work = np.array(scenario.work or [1.0] * (int(present.max()) + 1))[present]
    return work / work.sum(), first_pieces, inverse


def _run_forward(
    begin_ns: Ints, arrived_ns: Ints, forward_ns: Ints, shares: Floats
) -> tuple[Any, Ints]:
    """Return the wait for each variable, ns, [begin or end, rank, variable], and forward's end, [rank].

    A variable's forward starts when the one before it is through and the variable is here.
    """
    done_ns = np.rint(np.cumsum(forward_ns[:, None] * shares, axis=1)).astype(np.int64)
    before_ns = np.concatenate([np.zeros((len(done_ns), 1), np.int64), done_ns[:, :-1]], axis=1)
    able_ns = np.maximum.accumulate(np.maximum(arrived_ns - before_ns, begin_ns[:, None]), axis=1)
    end_ns = able_ns + done_ns
    free_ns = np.concatenate([begin_ns[:, None], end_ns[:, :-1]], axis=1)
    return np.stack([free_ns, able_ns + before_ns]), end_ns[:, -1]


def _record_phases(
    scenario: Scenario,
    sheet: Sheet,
    compute: ComputeTimes,
    step_times_ns: tuple[Ints, Ints, Ints, Ints],
) -> None:
    """Add the workers' phases."""
    start_ns, forward_end, backprop_end, end_ns = step_times_ns
    columns = span_columns(scenario)
    data_end = start_ns + compute.data
    sheet.spans(start_ns, data_end, name="next_batch", kind="data", **columns)
    only(sheet, data_end, compute.gc, name="gc", kind="gc", **columns)
    sheet.spans(data_end + compute.gc, forward_end, name="forward", kind="forward", **columns)
    sheet.spans(forward_end, backprop_end, name="backprop", kind="backprop", **columns)
    sheet.spans(backprop_end, end_ns, name="wait_token", kind="wait", **columns)


def _record_waits(sheet: Sheet, scenario: Scenario, waits_ns: Ints) -> None:
    """Add, inside forward, where a variable was waited for."""
    begin_ns, end_ns = waits_ns
    steps, ranks, _ = position = np.nonzero(end_ns > begin_ns)
    if len(steps):
        columns = span_columns(scenario, 2) | {"process": ranks, "rank": ranks, "step": steps}
        sheet.spans(begin_ns[position], end_ns[position], name="wait_pull", kind="wait", **columns)
