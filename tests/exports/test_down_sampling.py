"""What is summed up keeps its phase and its step; what findings name stays as it is."""

from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from support.runs.traces import call, span, trace_of
from support.samples import manifest, sample_report, sample_trace
from support.tiers import check_examples, few_or_many, mark_slow, mark_slow_in_turn

import tracelens
from tracelens.accounting import categories, phases
from tracelens.exports import EXPORTS, native
from tracelens.exports.content import select_content
from tracelens.exports.down_sampling import Flagged, find_flagged, sum_up
from tracelens.model.findings import Finding
from tracelens.model.trace import Trace
from tracelens.schema.vocabulary import SUMMED_UP
from tracelens.verdicts.report import analyze

KEY: Final = ["process", "step", "thread", "kind", "op", "communicator", "shard", "stream"]
NOTHING: Final = Flagged()
SAMPLE_NAMES: Final = [sample.name for sample in manifest()]
QUICK_SAMPLES: Final = ("ddp-slow-backprop", "mpi-killed-rank", "easgd-async", "grpc-async")


def sum_up_trace(trace: Trace, flagged: Flagged) -> Trace:
    content = select_content(trace, flagged=flagged)
    frames = [content.read_events(process) for process in trace.processes["process"]]
    return trace.with_(events=pl.concat(frames).sort("process", "start_ns", "depth").lazy())


def work_by_category(trace: Trace) -> pl.DataFrame:
    """Return the time of each category of a rank's own work, by process and step."""
    times = phases.run(trace).times.with_columns(pl.col("category").cast(pl.String))
    own = times.filter(pl.col("category").is_in(categories.COMPUTE_CATEGORIES))
    return own.sort("process", "step", "category")


@pytest.mark.parametrize("name", mark_slow_in_turn(SAMPLE_NAMES, QUICK_SAMPLES))
def test_own_work_is_as_before(name: str) -> None:
    """To the nanosecond, in every step of every sample, and nothing ends later than before."""
    trace = sample_trace(name)
    summed = sum_up_trace(trace, find_flagged(trace, sample_report(name).findings))
    assert_frame_equal(work_by_category(summed), work_by_category(trace))
    last = pl.max("end_ns").over("process", "thread", "step")
    ends = [
        t.spans.filter(pl.col("step") >= 0).select(last.max()).collect().item()
        for t in (summed, trace)
    ]
    assert ends[0] <= ends[1]


@pytest.mark.parametrize("name", mark_slow_in_turn(SAMPLE_NAMES, QUICK_SAMPLES))
def test_one_span_stands_for_each_kind_of_work(name: str) -> None:
    """Of a rank, step, thread, kind and operation, where nothing is flagged or broken off."""
    trace = sample_trace(name)
    summed = sum_up_trace(trace, NOTHING)
    step_bounds = trace.steps.group_by("process").agg(
        since=pl.min("start_ns"), until=pl.max("end_ns")
    )
    spans_in_steps = (
        summed.spans.collect()
        .join(step_bounds, on="process", how="left")
        .filter(
            pl.col("step") >= 0,
            pl.col("kind") != "step",
            pl.col("status").is_in(["closed", "estimated"]),
            pl.col("start_ns") >= pl.col("since").fill_null(0),
            pl.col("start_ns") < pl.col("until").fill_null(2**62),
        )
    )
    twice = spans_in_steps.filter(pl.struct(KEY).is_duplicated())
    cut = trace.events.filter(pl.col("status").is_in(["open", "exception"])).collect()
    assert twice.join(cut, on=["process", "step"], how="anti").is_empty()


@pytest.mark.parametrize(
    "name",
    mark_slow(["ddp-slow-backprop", "mpi-late-rank", "mpi-killed-rank"], ("ddp-slow-backprop",)),
)
def test_faults_are_found_again(name: str, tmp_path: Path) -> None:
    """What findings name is whole, so the same faults are found in what is left."""
    trace, report = sample_trace(name), sample_report(name)
    native.save(
        select_content(trace, flagged=find_flagged(trace, report.findings)), tmp_path / "out"
    )
    report_of_summed = analyze(tracelens.open(tmp_path / "out"))
    faults = [
        [
            (f.kind, f.ranks, f.steps, f.phase)
            for f in either_report.findings
            if f.category == "fault"
        ]
        for either_report in (report, report_of_summed)
    ]
    assert faults[0] == faults[1] != []
    assert report_of_summed.summary.spans < report.summary.spans
    assert report_of_summed.summary.dropped[SUMMED_UP] > 0
    assert any(
        "elsewhere one span stands for all" in note.sentence for note in report_of_summed.notes
    )


def test_flagged_ranks_are_whole_in_their_steps_and_their_neighbours() -> None:
    """Rank 2 in steps 39 to 80 loses no event; its collectives are whole on all ranks."""
    trace = sample_trace("mpi-late-rank")
    kept = find_flagged(trace, sample_report("mpi-late-rank").findings)
    all_events, summed_events = (t.events.collect() for t in (trace, sum_up_trace(trace, kept)))
    is_flagged_step = pl.col("step").is_between(39, 80)
    columns = [name for name in all_events.columns if name != "depth"]
    for condition in (
        is_flagged_step & (pl.col("rank") == 2),
        is_flagged_step & pl.col("seq").is_not_null(),
    ):
        tables = [
            t.filter(condition).select(columns).sort("process", "start_ns", "end_ns")
            for t in (all_events, summed_events)
        ]
        assert_frame_equal(tables[0], tables[1])
    assert (
        summed_events.filter(pl.col("rank") == 1, is_flagged_step).height
        < all_events.filter(pl.col("rank") == 1, is_flagged_step).height
    )
    outside = pl.col("step").is_between(10, 30) & (pl.col("rank") == 2)
    assert summed_events.filter(outside).height < all_events.filter(outside).height


def test_what_findings_name() -> None:
    """Steps without ranks are of all, ranks without steps are in all; all of all is nothing."""
    trace = sample_trace("mpi-late-rank")
    worker_1, all_of = ("worker", 1), {("worker", rank) for rank in range(4)}

    def flag_finding(**details: object) -> Flagged:
        finding = Finding(kind="straggler", category="fault", sentence="", **details)  # type: ignore[arg-type]
        return find_flagged(trace, [finding])

    assert flag_finding(ranks=(1,), steps=(5, 9)).steps_by_owner == {worker_1: ((4, 10),)}
    assert set(flag_finding(ranks=(1,)).steps_by_owner) == {worker_1}
    assert flag_finding(ranks=(1,)).steps_by_owner[worker_1][0][1] > 10**9
    assert set(flag_finding(steps=(5, 9)).steps_by_owner) == all_of
    assert (
        flag_finding().steps_by_owner
        == flag_finding(ranks=(0, 1, 2, 3)).steps_by_owner
        == flag_finding(steps=(0, 99)).steps_by_owner
        == {}
    )
    assert "no finding names" in flag_finding().sentence


def test_sums_of_a_thread_follow_one_another() -> None:
    """Twice forward and backprop: one each, as long as both; what is inside of one is taken off."""
    rows = [
        span(0, "step", 0, 100, depth=0, step=0),
        span(0, "forward", 0, 10, "a", depth=1, step=0, bytes=1),
        span(0, "user", 2, 8, "mine", depth=2, step=0),
        span(0, "backprop", 10, 30, depth=1, step=0),
        span(0, "gc", 20, 25, depth=2, step=0),
        span(0, "forward", 40, 50, "b", depth=1, step=0, bytes=2),
        span(0, "backprop", 50, 90, depth=1, step=0),
    ]
    part = _sum_up_rows(rows)
    found = part.select("kind", "name", "start_ns", "end_ns", "depth", "status", "bytes").rows()
    assert found == [
        ("step", "step", 0, 100, 0, "closed", None),
        ("forward", "forward", 0, 20, 1, "estimated", 3),
        ("backprop", "backprop", 20, 75, 1, "estimated", None),
        ("gc", "gc", 75, 80, 1, "closed", None),
    ]


def test_a_call_that_stays_lies_where_it_was() -> None:
    """The single call of a step keeps its number and its times; a sum around it is longer by it."""
    rows = [
        span(0, "step", 0, 100, depth=0, step=0),
        span(0, "backprop", 0, 10, depth=1, step=0),
        span(0, "backprop", 20, 60, depth=1, step=0),
        call(0, 7, 30, 40, thread=0, depth=2, step=0),
    ]
    found = _sum_up_rows(rows).select("kind", "start_ns", "end_ns", "seq").rows()
    assert found == [
        ("step", 0, 100, None),
        ("backprop", 0, 50, None),
        ("reduction", 30, 40, 7),
    ]


def test_sums_beside_a_call_do_not_reach_over_it() -> None:
    """One ends where the call begins, the next begins where it ends."""
    rows = [
        span(0, "step", 0, 100, depth=0, step=0),
        span(0, "backprop", 0, 10, depth=1, step=0),
        span(0, "backprop", 10, 20, depth=1, step=0),
        call(0, 7, 20, 30, thread=0, depth=1, step=0),
        span(0, "update", 30, 40, depth=1, step=0),
        span(0, "update", 50, 60, depth=1, step=0),
    ]
    found = _sum_up_rows(rows).select("kind", "start_ns", "end_ns").rows()
    assert found[1:] == [("backprop", 0, 20), ("reduction", 20, 30), ("update", 30, 50)]


def test_a_call_of_several_parts_is_summed_up() -> None:
    """A single call with spans of its own inside keeps no number: its parts are one span, too."""
    rows = [
        span(0, "step", 0, 100, depth=0, step=0),
        call(0, 7, 20, 60, thread=0, depth=1, step=0),
        span(0, "reduction", 20, 30, depth=2, step=0, op="send"),
        span(0, "reduction", 40, 50, depth=2, step=0, op="send"),
    ]
    found = _sum_up_rows(rows).select("op", "start_ns", "end_ns").rows()
    assert found[1:] == [("send", 20, 40), ("allreduce", 40, 60)]


def test_what_is_in_flight_lasts_as_long_as_any() -> None:
    """Overlapping operations count once, and gaps not at all."""
    rows = [
        span(0, "step", 0, 100, depth=0, step=0),
        call(0, 0, 10, 30, step=0),
        call(0, 1, 20, 40, step=0),
        call(0, 2, 60, 70, step=0),
    ]
    (row,) = (
        _sum_up_rows(rows)
        .filter(kind="reduction")
        .select("start_ns", "end_ns", "seq", "bytes")
        .rows()
    )
    assert row == (10, 50, None, 24)


def test_what_never_ended_and_what_is_outside_stays() -> None:
    """Open spans, those that an exception ended, and what is in no step or before the first one."""
    rows = [
        span(0, "forward", 0, 5, step=-1),
        span(0, "forward", 6, 9, step=0),
        span(0, "step", 10, None, depth=0, step=0),
        span(0, "data", 11, 12, depth=1, step=0, status="exception"),
        span(0, "forward", 13, None, depth=1, step=0),
        span(0, "user", 14, 15, depth=2, step=0),
        span(0, "user", 16, 17, depth=2, step=0),
    ]
    assert _sum_up_rows(rows, steps_ns=(10, 20)).height == len(rows)


def _sum_up_rows(
    rows: list[dict[str, object]], steps_ns: tuple[int, int] | None = None
) -> pl.DataFrame:
    events = trace_of(rows).events.collect()
    nothing = pl.lit(value=False)
    return sum_up(events, [1], nothing, nothing, steps_ns).events


spans_of_a_thread = st.lists(
    st.tuples(
        st.sampled_from(["forward", "backprop", "gc", "user", "reduction"]),
        st.integers(0, 60),
        st.integers(0, 30),
        st.booleans(),
    ),
    max_size=14,
)


@pytest.mark.parametrize("examples", few_or_many(20, 50))
def test_any_nested_spans(examples: int) -> None:
    """Ask for the sums of spans that Hypothesis draws."""
    check_examples(check_sums, examples, spans_of_a_thread, st.sets(st.integers(0, 13)))


def check_sums(drawn: list[tuple[str, int, int, bool]], touched: set[int]) -> None:
    """Each category keeps its time for any nesting, and nothing leaves the step."""
    rows = [span(0, "step", 0, 100, depth=0, step=0)]
    for number, (kind, start, length, numbered) in enumerate(drawn):
        end = _cut_to_nest(rows, start, min(start + length, 100))
        calls = kind == "reduction" and numbered
        further: dict[str, Any] = {"seq": number, "communicator": "c"} if calls else {}
        if end > start:
            rows.append(span(0, kind, start, end, depth=1, step=0, **further))
    rows.sort(key=lambda row: (row["start_ns"], -row["end_ns"]))
    trace = trace_of(rows)
    steps = pl.DataFrame(
        {
            "process": [0],
            "rank": [0],
            "step": [0],
            "start_ns": [0],
            "end_ns": [100],
            "samples": [None],
        },
        schema=trace.steps.schema,
    )
    trace = trace.with_(
        steps=steps, processes=trace.processes.with_columns(training_thread=pl.lit(0, pl.UInt16))
    )
    events = trace.events.collect()
    seqs = pl.col("seq").is_in(sorted(touched))
    summed = sum_up(events, [1], pl.lit(value=False), seqs, (0, 100))
    assert_frame_equal(
        work_by_category(trace.with_(events=summed.events.lazy())), work_by_category(trace)
    )
    assert (summed.events["end_ns"] <= 100).all()
    assert summed.events.height <= events.height


def _cut_to_nest(rows: list[dict[str, object]], start: int, end: int) -> int:
    """Cut a span so that it nests with all others, as on one thread."""
    for row in rows:
        begin_ns, until_ns = row["start_ns"], row["end_ns"]
        assert isinstance(begin_ns, int)
        assert isinstance(until_ns, int)
        if begin_ns <= start < until_ns:
            end = min(end, until_ns)
    for row in rows:
        begin_ns, until_ns = row["start_ns"], row["end_ns"]
        assert isinstance(begin_ns, int)
        assert isinstance(until_ns, int)
        if start < begin_ns < end < until_ns:
            end = begin_ns
    return end


@pytest.mark.parametrize("to", sorted(EXPORTS.keys() - {"speedscope", "perfetto_manifest"}))
def test_every_format_holds_the_sums(to: str, tmp_path: Path) -> None:
    """The same selection in all of them, and its count is reported."""
    trace = sample_trace("fsdp-healthy")
    saved = EXPORTS[to].save(select_content(trace, flagged=NOTHING), tmp_path / "out")
    assert saved.summed_up_count > 1000
    assert saved.event_count < 700
    assert saved.sum_count < 500
