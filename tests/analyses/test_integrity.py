"""Missing data comes first: killed ranks, damaged files, missing ranks."""

from dataclasses import replace

import polars as pl

from tracelens.accounting import phases
from tracelens.analyses.integrity import findings as integrity
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.model.trace import Note, Trace
from tracelens.simulator.synthetic import Scenario, generate
from tracelens.verdicts.report import analyze

STEPS = 40


def break_off_rank(rank: int, step: int) -> Trace:
    """A run in which one rank dies in backprop; the others end waiting for it in the reduction."""
    trace = generate(Scenario(ranks=4, steps=STEPS, overlap=False, seed=3))
    events = trace.events.collect()
    kind = pl.when(pl.col("rank") == rank).then(pl.lit("backprop")).otherwise(pl.lit("reduction"))
    last = events.filter((pl.col("step") == step) & (pl.col("kind").cast(pl.String) == kind))
    ends = last.group_by("process").agg(ended=pl.col("start_ns").min())
    begun_events = events.join(ends, on="process").filter(pl.col("start_ns") <= pl.col("ended"))
    over = pl.col("end_ns") <= pl.col("ended")
    status = pl.when(over).then("status").otherwise(pl.lit("open", begun_events["status"].dtype))
    cut = begun_events.with_columns(end_ns=pl.when(over).then("end_ns"), status=status).drop(
        "ended"
    )
    trace = trace.with_(events=cut.lazy())
    processes = trace.processes.with_columns(complete=pl.lit(value=False))
    return prepare(trace.with_(events=cut.lazy(), processes=processes))


def test_the_rank_that_died_is_named_with_what_it_was_in() -> None:
    """Of four ranks that broke off, the first finding is the one that died, its phase and step."""
    finding = analyze(break_off_rank(rank=2, step=33)).findings[0]
    assert (finding.kind, finding.category) == ("truncated_trace", "fault")
    assert (finding.ranks, finding.phase, finding.steps) == ((2,), "backprop", (33, 33))
    assert finding.saving is None


def test_a_damaged_file_is_not_called_a_death() -> None:
    """Where only the file is cut off, the process may have run on."""
    trace = prepare(generate(Scenario(ranks=4, steps=STEPS)))
    file = trace.processes["file"][1]
    cut = pl.when(pl.col("file") == file).then(pl.lit(value=False)).otherwise("complete")
    trace = trace.with_(
        processes=trace.processes.with_columns(complete=cut),
        notes=(Note(file, f"'{file}' is cut off.", "truncated"),),
    )
    (finding,) = integrity.run(Facts(trace, phases.run(trace))).findings
    assert finding.kind == "truncated_trace"
    assert finding.ranks == (1,)
    assert "damaged" in finding.sentence
    assert "killed" not in finding.sentence


def test_a_running_process_is_no_fault() -> None:
    """A run that is looked at while it goes on has nobody who broke off."""
    trace = prepare(generate(Scenario(ranks=2, steps=STEPS)))
    notes = tuple(Note(file, "still being recorded", "running") for file in trace.processes["file"])
    running = trace.processes.with_columns(complete=pl.lit(value=False))
    trace = trace.with_(processes=running, notes=notes)
    assert integrity.run(Facts(trace, phases.run(trace))).findings == ()


def test_a_rank_that_left_nothing_is_missing() -> None:
    """A world of four with files of three says which one is not there."""
    trace = generate(Scenario(ranks=4, steps=STEPS))
    trace = trace.with_(
        events=trace.events.filter(pl.col("rank") != 1),
        processes=trace.processes.filter(pl.col("rank") != 1),
    )
    trace = prepare(trace)
    (finding,) = integrity.run(Facts(trace, phases.run(trace))).findings
    assert (finding.kind, finding.ranks) == ("missing_rank", (1,))


def test_lost_events_are_counted() -> None:
    """Dropped events are a finding with their number and reason."""
    trace = prepare(generate(Scenario(ranks=2, steps=STEPS)))
    lost = trace.processes.with_columns(dropped=pl.lit(7, pl.Int64))
    trace = replace(trace, processes=lost, dropped={"full disk": 14})
    (finding,) = integrity.run(Facts(trace, phases.run(trace))).findings
    assert finding.kind == "dropped_events"
    assert "14 events" in finding.sentence
    assert "full disk" in finding.sentence


def test_few_lost_events_are_no_fault() -> None:
    """A handful of thousands is worth a word, not the first place; a tenth is."""
    trace = prepare(generate(Scenario(ranks=2, steps=STEPS)))
    kept = int(trace.processes["events"].sum())
    for lost, category in ((1, "opportunity"), (kept // 9, "fault")):
        dropped = trace.processes.with_columns(
            dropped=pl.when(pl.col("process") == 0).then(lost).otherwise(0)
        )
        (finding,) = integrity.run(
            Facts(replace(trace, processes=dropped), phases.run(trace))
        ).findings
        assert finding.category == category
