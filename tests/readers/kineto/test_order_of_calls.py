"""An order that was concluded accuses nobody, and calls keep the order in which code issued them."""

from functools import partial
from pathlib import Path

import polars as pl
import pytest
from support.profiles import SIZES, gloo_profile, write_ranks

import tracelens as tl
from tracelens.readers.kineto.issues import Call, count_elements, pair_with_issues


def test_threads_that_begin_in_the_other_order_are_no_mismatch(tmp_path: Path) -> None:
    """Each call has the size of its issue on both ranks, also where a thread was 4 us behind."""
    write_ranks(tmp_path, lambda rank: gloo_profile(rank, swapped=(7, 20) if rank else ()))
    trace = tl.open(tmp_path)
    calls = trace.spans.filter(pl.col("kind") == "reduction").collect()
    sizes = calls.group_by("seq").agg(pl.col("bytes").unique(), pl.len()).sort("seq")
    assert sizes["bytes"].to_list() == [[4 * size] for _ in range(40) for size in SIZES]
    assert sizes["len"].unique().to_list() == [2]
    report = tl.analyze(trace)
    assert not [finding for finding in report.findings if finding.kind == "desync"]
    assert report.verdict.state != "fault"


def test_calls_begin_when_they_were_issued(tmp_path: Path) -> None:
    """The other order of two threads changes no begin."""
    begins = []
    for swapped in ((), (3,)):
        folder = tmp_path / str(len(swapped))
        folder.mkdir()
        calls = (
            tl.open(write_ranks(folder, partial(gloo_profile, swapped=swapped)))
            .spans.filter(pl.col("kind") == "reduction")
            .collect()
        )
        begins.append(calls.sort("process", "seq")["start_ns"].to_list())
    assert begins[0] == begins[1]


@pytest.mark.parametrize("op", ["allgather", "allreduce"])
def test_an_order_that_differs_is_said_and_nobody_accused(op: str) -> None:
    """Rows without a number: one rank's sizes, or operations, come in the other order."""
    rows = [
        {
            "rank": rank, "kind": "reduction", "op": operation, "name": "call", "bytes": size,
            "start_ns": 1000 * number, "end_ns": 1000 * number + 900,
        }
        for rank in (0, 1)
        for number, (operation, size) in enumerate(
            [("allreduce", 64), (op, 128)][:: -1 if rank else 1] * 20
        )
    ]  # fmt: skip
    trace = tl.Trace.from_table(pl.DataFrame(rows))
    report = tl.analyze(trace)
    assert "desync" not in {finding.kind for finding in report.findings}
    assert any("order of calls does not match" in note.sentence for note in report.notes)


def test_work_from_before_the_file_has_no_issue() -> None:
    works = [Call(row, "allreduce", 8, at) for row, at in enumerate((5, 20, 30))]
    issues = [Call(10 + row, "allreduce", 8, at) for row, at in enumerate((15, 25, 40))]
    assert pair_with_issues(works, issues) == {1: 15, 2: 25}


def test_sizes_count_only_where_both_say_them() -> None:
    works = [Call(0, "allreduce", None, 5), Call(1, "allreduce", None, 6)]
    issues = [Call(2, "allreduce", 8, 1), Call(3, "allreduce", 9, 2)]
    assert pair_with_issues(works, issues) == {0: 1, 1: 2}
    sized = [Call(0, "allreduce", 9, 5), Call(1, "allreduce", 8, 6)]
    assert pair_with_issues(sized, issues) == {0: 2, 1: 1}
    assert pair_with_issues(sized, []) == {}


def test_elements_of_nested_dimensions() -> None:
    assert count_elements([[[2, 3]], [[4]], []]) == 10
    assert count_elements([[5]]) == 5
    assert count_elements("x") is None
