"""Time without a span, while calls are in flight, is waiting only where the thread waits for them."""

from random import Random
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens import Trace
from tracelens.accounting import phases
from tracelens.accounting.spans import Spans
from tracelens.accounting.unshown_waits import find_unshown_waits
from tracelens.load import prepare
from tracelens.model.intervals import Intervals

MS: Final = 10**6
STEPS: Final = 60
GAP_MS: Final = 20.0


def simulate(ranks: int, transfer_ms: float, *, shows_waits: bool, noise: float = 0.1) -> Trace:
    """Reduce two buckets a step: the first during 20 ms without a span, the second is waited for."""
    luck, rows, ready = Random(3), [], [1_000 * MS] * ranks
    free = number = 0
    for step in range(STEPS):
        begins: list[list[int]] = []
        for rank in range(ranks):
            lengths = (3.0, 3.0, GAP_MS, 3.0)
            times = np.cumsum([ready[rank], *(ms * MS * luck.gauss(1, noise) for ms in lengths)])
            forward, first_end, gap, second, ends = times.astype(np.int64).tolist()
            main_thread: dict[str, Any] = {
                "rank": rank,
                "host": "a",
                "thread": "main",
                "step": step,
            }
            rows.append(main_thread | {"start_ns": forward, "end_ns": first_end, "kind": "forward"})
            rows.append(main_thread | {"start_ns": first_end, "end_ns": gap, "kind": "backprop"})
            rows.append(main_thread | {"start_ns": second, "end_ns": ends, "kind": "backprop"})
            begins.append([gap, ends])
        for bucket in range(2):
            starts = [begin[bucket] for begin in begins]
            free = max(*starts, free) + int(transfer_ms * MS)
            for rank, start in enumerate(starts):
                about = {"op": "allreduce", "communicator": "w", "seq": number, "bytes": 5_000_000}
                of_call = {"rank": rank, "host": "a", "thread": "reductions", "step": step}
                rows.append(
                    of_call | about | {"start_ns": start, "end_ns": free, "kind": "reduction"}
                )
            number += 1
        for rank in range(ranks):
            main_thread = {"rank": rank, "host": "a", "thread": "main", "step": step}
            if shows_waits:
                rows.append(
                    main_thread | {"start_ns": begins[rank][1], "end_ns": free, "kind": "wait"}
                )
            rows.append(
                main_thread | {"start_ns": free, "end_ns": free + MS // 2, "kind": "update"}
            )
            ready[rank] = free + MS // 2
    return Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))


@pytest.mark.parametrize("transfer_ms", [0.3, 8.0])
@pytest.mark.parametrize("shows_waits", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_code_beside_a_reduction_is_work_of_every_rank(
    ranks: int,
    transfer_ms: float,
    shows_waits: bool,  # noqa: FBT001 - drawn
) -> None:
    """No rank has less of it because it came first, so none is accused, and no call is blamed."""
    trace = simulate(ranks, transfer_ms, shows_waits=shows_waits)
    report = tl.analyze(trace)
    times = phases.run(trace).times.filter(pl.col("category") == "uninstrumented")
    of_ranks = times.group_by("rank").agg(pl.col("ns").sum())["ns"].to_numpy() / STEPS
    assert of_ranks == pytest.approx([GAP_MS * MS] * ranks, rel=0.04)
    assert not [one for one in report.findings if one.category == "fault"]
    assert report.verdict.headline.startswith("INCONCLUSIVE")
    assert "between backprop and backprop" in report.verdict.headline


def waits_of(gaps: list[tuple[int, int]], calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the waits of a thread whose spans leave such gaps."""
    begins, ends = np.array(gaps).T
    spans = Spans(
        np.append(0, ends),
        np.append(begins, ends[-1] + 1),
        np.zeros(len(gaps) + 1, np.int64),
        np.zeros(len(gaps) + 1, np.int64),
    )
    flights = Intervals(*(np.array(side) for side in zip(*calls, strict=True)))
    found = find_unshown_waits(spans, flights, 0, int(ends[-1]) + 1)
    return list(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True))


def test_a_thread_that_goes_on_with_the_call_waits() -> None:
    assert waits_of([(100, 200)], [(50, 200)]) == [(100, 200)]


def test_a_thread_that_goes_on_before_the_call_ends_works() -> None:
    assert waits_of([(100, 200)], [(50, 300)]) == []


def test_an_end_that_is_noted_a_little_later_ends_the_wait() -> None:
    assert waits_of([(100, 200)], [(50, 204)]) == [(100, 200)]


def test_without_other_evidence_it_may_have_waited_until_the_call_ended() -> None:
    assert waits_of([(100, 200)], [(50, 150)]) == [(100, 150)]


@pytest.mark.parametrize("bucket_count", [1, 2])
def test_an_end_that_is_noted_much_later_is_a_wait_until_the_thread_goes_on(
    bucket_count: int,
) -> None:
    """A call's thread may be kept from its core before it notes the end, here in one of four steps."""
    gaps, calls, expected = [], [], []
    for number in range(40):
        begin_ns, is_late = 10_000 * number, number % 4 == 1
        for bucket in range(bucket_count):
            gaps.append((begin_ns + 100 * bucket, begin_ns + 100 * bucket + 5))  # between layers
            call_begin_ns = begin_ns + 100 * bucket + 2 if bucket_count == 2 else begin_ns + 900
            calls.append((call_begin_ns, begin_ns + 2_000 * (bucket + 1) + 3_000 * is_late))
        waits = [(begin_ns + 1_000, begin_ns + 2_000)]
        if bucket_count == 2:
            waits.append((begin_ns + 2_100, begin_ns + 4_000))
        after = [(begin_ns + ns, begin_ns + ns + 5) for ns in (4_200, 4_500, 5_500)]
        gaps += [*waits, *after]
        expected += waits[-1:] if is_late else waits  # of two late ends only one wait is known
    found = [
        (start_ns, end_ns) for start_ns, end_ns in waits_of(gaps, calls) if end_ns - start_ns > 5
    ]
    assert found == expected


@pytest.mark.parametrize("waits", [True, False])
def test_lengths_tell_waits_from_work(waits: bool) -> None:  # noqa: FBT001 - drawn
    """Waiting lengthens a stretch by what calls take longer; work of the same length does not."""
    luck, gaps, calls = Random(1), [], []
    for number in range(40):
        begin_ns = 10_000 * number + 1_000
        call_ns, own_ns = int(luck.uniform(500, 2_500)), int(luck.uniform(2_900, 3_100))
        calls.append((begin_ns, begin_ns + call_ns))
        gaps.append((begin_ns, begin_ns + own_ns + call_ns * waits))
    assert waits_of(gaps, calls) == (calls if waits else [])


def test_a_wait_until_the_recording_ends_is_waiting() -> None:
    """A call that never ends stops a thread that does nothing more."""
    steps = [span(rank, "step", 0, 100, step=0) for rank in range(2)]
    rows = [span(0, "backprop", 0, 40), call(0, 0, 30, None), span(1, "backprop", 0, 100)]
    found = phases.run(prepare(trace_of([*steps, *rows], ranks=2))).segments
    mine = found.filter(pl.col("rank") == 0).select(pl.col("category").cast(pl.String), "end_ns")
    assert mine.rows()[-1] == ("wait", 100)
