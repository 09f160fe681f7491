"""A part of a run is what the whole run has there: to the nanosecond, step by step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.runs.scenarios import DEVICES, HOT_SHARD, SLOW_BACKPROP, TWO_HOSTS
from support.samples import SAMPLES

import tracelens
from tracelens.accounting import phases
from tracelens.accounting.phases import Phases
from tracelens.align import selection
from tracelens.conversion.arrow_file import write_events
from tracelens.errors import InvalidArgument
from tracelens.model.choice import Choice
from tracelens.model.finding_kinds import KINDS
from tracelens.readers.native import arrow_file
from tracelens.simulator.synthetic import Scenario, write
from tracelens.verdicts.report import analyze

RUNS = {"ranks": SLOW_BACKPROP, "hosts": TWO_HOSTS, "servers": HOT_SHARD, "devices": DEVICES}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a run, which is written when it is first asked for."""
    root = tmp_path_factory.mktemp("runs")

    def record_once(name: str) -> Path:
        if not (root / name).exists():
            write(RUNS[name], root / name)
        return root / name

    return record_once


def times_in_steps(accounted: Phases, steps: Choice) -> pl.DataFrame:
    is_chosen = pl.Series(
        steps.flag_chosen_steps(accounted.times["step"].to_numpy()), dtype=pl.Boolean
    )
    return accounted.times.filter(is_chosen).sort("process", "step", "category")


@pytest.mark.parametrize("asked", ["10-19", "5,9,20-22,30-", "0", "39-"])
@pytest.mark.parametrize("run", RUNS)
def test_time_is_that_of_the_whole_run(
    folder_of: Callable[[str], Path], run: str, asked: str
) -> None:
    """Each category of each rank in each step, also where steps between are left out."""
    accounted_run = phases.run(tracelens.open(folder_of(run)))
    selected = tracelens.open(folder_of(run), steps=asked)
    choice = Choice.parse(steps=asked)
    assert choice.flag_chosen_steps(selected.steps["step"].to_numpy()).all()
    accounted = phases.run(selected)
    assert_frame_equal(times_in_steps(accounted, choice), times_in_steps(accounted_run, choice))
    ends = selected.steps.group_by("process").agg(pl.col("end_ns") - pl.col("start_ns"))
    length = dict(ends.select("process", pl.col("end_ns").list.sum()).iter_rows())
    sums = accounted.times.group_by("process").agg(pl.col("ns").sum())
    assert dict(sums.iter_rows()) == length


def spent_at_servers(found: pl.DataFrame) -> pl.DataFrame:
    """Queues and transfer as one: whether a shard was idle may be seen only beyond the part."""
    split = pl.col("category").cast(pl.String).replace("ps_queue", "transfer")
    keys = ["process", "rank", "step", "category"]
    return found.with_columns(category=split).group_by(keys).agg(pl.col("ns").sum()).sort(keys)


def test_time_of_a_real_run_with_servers() -> None:
    """What is queueing and what is transfer differs by less than a hundredth of the time.

    Beside that, what time without a span is follows from all stretches like it, and the part has fewer.
    """
    folder, choice = SAMPLES / "grpc-pipelined", Choice.parse(steps="13-20,39")
    run_trace, selected = (
        times_in_steps(phases.run(tracelens.open(folder, steps=steps)), choice)
        for steps in (None, "13-20,39")
    )
    total_ns = run_trace["ns"].to_numpy().sum()
    for measure, most in ((spent_at_servers, 3e-3), (pl.DataFrame.clone, 0.01)):
        apart_ns = (measure(selected)["ns"] - measure(run_trace)["ns"]).to_numpy()
        assert np.abs(apart_ns).sum() < most * total_ns


@pytest.mark.parametrize("sample", ["ddp-slow-backprop", "mpi-killed-rank"])
def test_time_of_recorded_runs_is_that_of_the_whole_run(sample: str) -> None:
    folder = SAMPLES / sample
    steps = tracelens.open(folder).steps["step"].unique().sort()
    asked = f"{steps[len(steps) // 3]}-{steps[len(steps) // 2]},{steps[-1]}"
    choice = Choice.parse(steps=asked)
    whole, part = (phases.run(tracelens.open(folder, steps=s)) for s in (None, asked))
    assert_frame_equal(times_in_steps(part, choice), times_in_steps(whole, choice))


def test_calls_and_events_are_those_that_reach_into_the_steps(
    folder_of: Callable[[str], Path],
) -> None:
    """What reaches into them from other steps is in no step."""
    run_trace, selected = (tracelens.open(folder_of("ranks"), steps=s) for s in (None, "20-29"))
    bounds = selected.steps.group_by("process").agg(
        begin=pl.col("start_ns").min(), end=pl.col("end_ns").max()
    )
    touching = (pl.col("start_ns") < pl.col("end")) & (pl.col("end_ns") > pl.col("begin"))
    events = run_trace.events.collect().join(bounds, on="process")
    expected = events.filter(touching | pl.col("start_ns").is_between("begin", pl.col("end") - 1))
    selected_events = selected.events.collect()
    assert selected_events.height == expected.height
    assert {*selected_events["step"]} <= {-1, *range(20, 30)}
    numbered = selected.arrivals.filter(pl.col("step") >= 0)
    assert_frame_equal(numbered, run_trace.arrivals.filter(pl.col("step").is_between(20, 29)))


def test_a_time_is_the_steps_in_it(folder_of: Callable[[str], Path]) -> None:
    """Every step that any rank was in during that time, whole."""
    run_trace = tracelens.open(folder_of("hosts"))
    begin_ns = run_trace.steps["start_ns"].min()
    assert isinstance(begin_ns, int)
    steps_inside = run_trace.steps.filter(
        pl.col("start_ns") < begin_ns + 500_000_000, pl.col("end_ns") > begin_ns + 200_000_000
    )
    selected = tracelens.open(folder_of("hosts"), time="200ms-500ms")
    assert {*selected.steps["step"]} == {*steps_inside["step"]}
    assert selected.choice.step_ranges == (
        (steps_inside["step"].min(), steps_inside["step"].max()),
    )
    assert selected.is_cut_short


@pytest.mark.parametrize(
    "asked", [{}, {"steps": "0-"}, {"steps": "0-59"}, {"time": "0-"}, {"ranks": "0-"}]
)
def test_all_of_it_is_the_run(folder_of: Callable[[str], Path], asked: dict[str, Any]) -> None:
    """Where nothing is left out, nothing is different, nor is anything noted."""
    run_trace, selected = (
        tracelens.open(folder_of("ranks"), **options) for options in (dict[str, Any](), asked)
    )
    assert selected.choice.is_whole_run
    assert selected.notes == run_trace.notes
    assert_frame_equal(selected.events.collect(), run_trace.events.collect())


def test_clocks_are_those_of_the_whole_run(folder_of: Callable[[str], Path]) -> None:
    """Steps are windows on the run, whose clocks were tied by all that it has."""
    whole, part = (tracelens.open(folder_of("hosts"), steps=s) for s in (None, "50-"))
    assert part.alignment == whole.alignment
    assert_frame_equal(part.steps, whole.steps.filter(pl.col("step") >= 50))


def test_batches_outside_are_not_decoded(tmp_path: Path) -> None:
    """Of a file with several batches only those that touch the steps are read again."""
    write(Scenario(ranks=2, steps=60), tmp_path / "run")
    file = next((tmp_path / "run").glob("worker-00000-*"))
    recording = arrow_file.read_arrow(file)
    write_events(file, recording.table, recording.side_tables, batch_rows=200)
    table = arrow_file.read_arrow(file).table
    start = table["start_ns"].to_numpy()
    window = (int(start[len(start) // 2]), int(start[len(start) // 2]) + 1)
    some = arrow_file.read_arrow(file, None, window).table
    assert 200 <= some.num_rows <= 400 < table.num_rows
    assert np.isin(window[0], some["start_ns"].to_numpy())


def test_ranks_that_were_left_out_are_not_accused(folder_of: Callable[[str], Path]) -> None:
    """Who came last to a call of others is not known, and so is no wait."""
    selected = tracelens.open(folder_of("ranks"), ranks="0-1")
    assert selected.workers["rank"].to_list() == [0, 1]
    assert selected.arrivals["last_arrival_ns"].null_count() == selected.arrivals.height > 0
    assert selected.arrivals["last_rank"].null_count() == selected.arrivals.height
    assert phases.run(selected).sum_ns_by_window("wait").sum() == 0


def test_servers_are_kept_when_ranks_are_selected(folder_of: Callable[[str], Path]) -> None:
    """Ranks are those of workers."""
    selected = tracelens.open(folder_of("servers"), ranks="1-2")
    assert "What limits the parameter servers is not judged" in selected.notes[-1].sentence
    assert selected.workers["rank"].to_list() == [1, 2]
    assert selected.shards.height == 3


def test_ranks_of_a_table() -> None:
    """It is read whole; the other ranks are left out then, and processes numbered anew."""
    rows = pl.DataFrame(
        {
            "rank": [0, 0, 1, 1, 2, 2],
            "start_ns": [0, 100, 5, 105, 0, 100],
            "end_ns": [100, 200, 100, 200, 100, 200],
            "kind": "step",
            "step": [0, 1] * 3,
        }
    )
    whole = tracelens.Trace.from_table(rows)
    part = selection.select_ranks(whole, Choice.parse(ranks="1-2"))
    assert part.workers.select("process", "rank").rows() == [(0, 1), (1, 2)]
    assert {*part.events.select("process").collect()["process"]} == {0, 1}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ranks": "4"}, "--ranks 4: none of them is a worker of this run; it has ranks 0-3"),
        ({"ranks": "0,7-9"}, "--ranks 7-9: none of them is a worker"),
        ({"steps": "60-99"}, "--steps: this run has no step from 60 to 99; it has steps 0 to 59"),
        ({"time": "1h-2h"}, "times 3600-7200 s hold no step of this run"),
        ({"steps": "0-1", "time": "1-"}, "steps 0-1 and times from 1 s on hold no step"),
    ],
)
def test_what_the_run_lacks(
    folder_of: Callable[[str], Path], asked: dict[str, Any], sentence: str
) -> None:
    """One sentence says what there is instead."""
    with pytest.raises(InvalidArgument, match=sentence):
        tracelens.open(folder_of("ranks"), **asked)


@pytest.mark.parametrize(
    ("sample", "kind"), [("grpc-async", "ps_network_bound"), ("mpi-slow-link", "clock_jump")]
)
def test_what_only_all_ranks_show_is_not_judged(sample: str, kind: str) -> None:
    """What a few ranks did with a server, or when they left a collective, would name another cause."""
    assert KINDS[kind].needs_all_ranks
    found = analyze(tracelens.open(SAMPLES / sample, ranks="0")).findings
    assert [finding.kind for finding in found if KINDS[finding.kind].needs_all_ranks] == []


def test_who_ended_first_is_not_known() -> None:
    """Of a run that broke off, the first of the ranks that were read is named as just that."""
    part = tracelens.open(SAMPLES / "mpi-killed-rank", ranks="0-1")
    (broken,) = (f for f in analyze(part).findings if f.kind == "truncated_trace")
    assert "ranks that were left out may have ended before it" in broken.sentence
    early = tracelens.open(SAMPLES / "mpi-killed-rank", steps="0-9")
    assert not any(f.kind == "truncated_trace" for f in analyze(early).findings)
    assert any(note.kind == "incomplete" for note in early.notes)
