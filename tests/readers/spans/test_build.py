"""Rows in our own words become a trace; what their reader did not know leaves the verdict open."""

from dataclasses import replace
from typing import Final

import polars as pl
import pytest

from tracelens.load import prepare
from tracelens.model.recognition import Gap, Recognition, join_recognitions
from tracelens.readers.spans import Origin, build
from tracelens.verdicts.report import analyze

MS: Final = 10**6
STEPS: Final = 40
GAP: Final = Gap("no sizes are in it", "bandwidth", "Record sizes.", is_decisive=False)
OPEN: Final = Gap("ranks 1-7 are missing", "which rank is slow", "Give the files of all ranks.")


def rows(slow_ms: int = 0) -> pl.DataFrame:
    """Two ranks with clocks 3 s apart: forward on the host, kernels and a collective on streams."""
    span_rows = []
    for rank in (0, 1):
        fields: dict[str, object] = {
            "rank": rank,
            "clock": f"clock {rank}",
            "file": f"rank{rank}.json",
            "pid": 70 + rank,
        }
        for step in range(STEPS):
            step_begin_ns = step * 20 * MS + rank * 3_000 * MS
            own_ms = 5 + slow_ms * rank
            host: dict[str, object] = {"thread": "main", "step": step}
            spans: list[tuple[str, str, int, int, dict[str, object]]] = [
                ("step", "step", 0, 20, host),
                ("forward", "forward", 0, own_ms, host),
                ("device", "gemm", 1, 4, {"stream": 7}),
                ("reduction", "all_reduce", own_ms, 19 - own_ms, {"stream": 20, **CALL}),
            ]
            span_rows += [
                fields | more | {"kind": kind, "name": name, "start_ns": step_begin_ns + begin * MS}
                | {"end_ns": step_begin_ns + (begin + length) * MS}
                for kind, name, begin, length, more in spans
            ]  # fmt: skip
    return pl.DataFrame(span_rows, infer_schema_length=None).with_columns(
        pl.col("rank").cast(pl.Int32)
    )


CALL: Final = {"op": "allreduce", "communicator": "dp", "bytes": 1 << 20}


def test_rows_become_a_trace() -> None:
    """Clocks are tied by exits, streams are tracks of their own, all members are known."""
    trace = prepare(build(rows(), Origin("the run", ranks_by_communicator={"dp": range(4)})))
    assert trace.alignment.method == "collective_exits"
    assert trace.alignment.hosts[1].offset_ns == pytest.approx(3_000 * MS, abs=MS // 10)
    assert trace.communicators["ranks"].to_list() == [[0, 1, 2, 3]]
    assert trace.processes.select("file", "pid").rows() == [("rank0.json", 70), ("rank1.json", 71)]
    assert trace.threads.filter("in_flight")["name"].unique().sort().to_list() == [
        "stream 20",
        "stream 7",
    ]
    assert trace.steps.height == 2 * STEPS
    assert sum(grid.start_ns.shape[0] for grid in trace.calls) == STEPS


@pytest.mark.parametrize(
    ("gaps", "state"), [((), "bottleneck"), ((GAP,), "bottleneck"), ((GAP, OPEN), "inconclusive")]
)
def test_a_decisive_gap_leaves_the_verdict_open(gaps: tuple[Gap, ...], state: str) -> None:
    """A run is not called healthy if its reader left out decisive data."""
    recognition = Recognition("Some format", gaps=gaps)
    verdict = analyze(prepare(build(rows(), Origin("the run", recognition=recognition)))).verdict
    assert verdict.state == state
    assert all(gap.unknown in verdict.scope for gap in gaps)
    if state == "inconclusive":
        assert verdict.headline == "INCONCLUSIVE: ranks 1-7 are missing"
        assert verdict.action == "Give the files of all ranks."


def test_a_fault_is_one_whatever_is_missing() -> None:
    recognition = Recognition("Some format", gaps=(OPEN,))
    found = analyze(prepare(build(rows(4), Origin("the run", recognition=recognition)))).verdict
    assert (found.state, found.kind) == ("fault", "straggler")


def test_what_was_recognised_of_several_parts_is_one() -> None:
    """Native recordings have no recognition."""
    recognition = Recognition("A", left_out=(("marks", 2),), gaps=(GAP,))
    other = replace(recognition, format="B", gaps=(GAP, OPEN))
    joined = join_recognitions([recognition, None, other])
    assert joined
    assert (joined.format, joined.left_out) == ("A, B", (("marks", 4),))
    assert joined.gaps == (GAP, OPEN)
    assert join_recognitions([None, None]) is None
