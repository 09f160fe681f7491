"""Events, calls, processes and samples of a trace are all moved by the same clock maps."""

import numpy as np
import polars as pl
import pytest
from support.runs.traces import span, trace_of

from tracelens.align.clocks import common
from tracelens.align.collectives import gather_calls
from tracelens.model.calls import NEVER
from tracelens.model.columns import FOREVER
from tracelens.model.trace import Trace
from tracelens.simulator.synthetic import Scenario, generate, random_clocks

HOSTS = Scenario(ranks=6, ranks_per_host=2, steps=60, clocks=random_clocks(3, seed=2))


@pytest.fixture(scope="module")
def aligned_run() -> Trace:
    return common.align(generate(HOSTS))


def test_calls_are_moved_process_by_process(aligned_run: Trace) -> None:
    """Though neighbours on one clock are moved together."""
    raw = generate(HOSTS)
    grids = zip((raw if raw.calls else gather_calls(raw)).calls, aligned_run.calls, strict=True)
    for raw_grid, aligned_grid in grids:
        assert raw_grid.is_whole
        for column, process in enumerate(raw_grid.processes.tolist()):
            clock_map = aligned_run.clock_maps[process]
            assert (
                aligned_grid.start_ns[:, column]
                == clock_map.to_common_ns(raw_grid.start_ns[:, column])
            ).all()
            assert (
                aligned_grid.end_ns[:, column] == clock_map.to_common_ns(raw_grid.end_ns[:, column])
            ).all()


def test_calls_that_are_open_or_lacking_stay_so(aligned_run: Trace) -> None:
    """A rank that was killed in a call has no end of it, and none of the calls after it."""
    raw = generate(HOSTS)
    last_seq = pl.col("seq").max()
    reduction, of_killed = pl.col("kind") == "reduction", pl.col("process") == 3
    killed = raw.events.filter(
        (~(reduction & of_killed) | (pl.col("seq") < last_seq.over("kind"))).fill_null(value=True)
    ).with_columns(
        end_ns=pl.when(~(reduction & of_killed & (pl.col("seq") == last_seq.over("kind") - 1)))
        .then("end_ns")
        .otherwise(None)
    )
    trace = common.align(raw.with_(events=killed))
    (grid,) = trace.calls
    column = grid.processes.tolist().index(3)
    assert grid.start_ns[-1, column] == NEVER
    assert grid.end_ns[-2, column] == FOREVER
    others = np.delete(np.arange(len(grid.processes)), column)
    assert (np.abs(grid.end_ns[-2:, others] - grid.end_ns[-3, 0]) < 1e9).all()
    near = np.abs(grid.start_ns[:-1, column] - aligned_run.calls[0].start_ns[:-1, column])
    assert near.max() < 100_000


def test_processes_are_moved_as_their_events_are(aligned_run: Trace) -> None:
    """Also in a table that is in no order."""
    maps = aligned_run.clock_maps
    shuffled = generate(HOSTS)
    order = [3, 0, 5, 1, 4, 2]
    again = common.align(shuffled.with_(processes=shuffled.processes[order]))
    for trace in (aligned_run, again):
        raw = dict(shuffled.processes.select("process", "first_ns").iter_rows())
        for process, first_ns in trace.processes.select("process", "first_ns").iter_rows():
            assert first_ns == maps[process].to_common_ns(np.array([raw[process]]))[0]


def test_a_missing_time_stays_so(aligned_run: Trace) -> None:
    trace = generate(HOSTS)
    last = pl.when(pl.col("process") == 3).then(None).otherwise("last_ns").alias("last_ns")
    again = common.align(trace.with_(processes=trace.processes.with_columns(last)))
    found = dict(again.processes.select("process", "last_ns").iter_rows())
    expected = dict(aligned_run.processes.select("process", "last_ns").iter_rows())
    assert found == expected | {3: None}


def test_what_a_conversion_left_is_half_of_its_window() -> None:
    """Times that were put onto one clock before are as sure as the widest window was."""
    row = {"process": 0, "method": "common", "window_ns": 1001}
    trace = trace_of(
        [span(0, "step", 0, 10, step=0)],
        clocks=[row, row | {"window_ns": 600}, row | {"method": "wall"}],
    )
    (host,) = common.align(trace).alignment.hosts
    assert (host.uncertainty_ns, host.offset_ns, host.drift_ppm) == (500, 0, 0.0)
    (host,) = common.align(trace.with_(clocks=trace.clocks.clear())).alignment.hosts
    assert host.uncertainty_ns == 0
