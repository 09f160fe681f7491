"""A late rank's finding names the call path that holds its excess, without what all ranks do alike."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.accounting import phases, sampled_code
from tracelens.accounting.sampled_code import Culprit, Stack, describe_code, find_differing_path
from tracelens.load import prepare
from tracelens.model.trace import SAMPLE_COLUMNS, Trace

MS = 10**6
STEPS, STEP_MS, RANKS = 40, 50, 3
ROOT, TRAIN, LOAD = "<module> (a.py:1)", "train (a.py:7)", "load (b.py:2)"
READ, DECODE, BICUBIC = "read (c.py:3)", "decode_image (c.py:9)", "resample_bicubic (c.py:12)"
FORWARD = "forward (m.py:5)"
Frames = tuple[str, ...]
Samples = list[tuple[int, Frames]]


def _run(lasting: Callable[[int, int], int], sampled: Callable[[int, int], Samples]) -> Trace:
    """Each step is loading for `lasting(rank, step)` ms, then computing; ranks meet at its end.

    `sampled` says what is seen in it, from its begin on.
    """
    rows, samples, begin_ns = [], [], 0
    for step in range(STEPS):
        end_ns = begin_ns + (STEP_MS + max(lasting(rank, step) for rank in range(RANKS))) * MS
        for rank in range(RANKS):
            loaded_ns = begin_ns + lasting(rank, step) * MS
            computed = loaded_ns + (STEP_MS - 10) * MS
            rows += [
                span(rank, "step", begin_ns, end_ns, step=step),
                span(rank, "data", begin_ns, loaded_ns, step=step, depth=1),
                span(rank, "forward", loaded_ns, computed, step=step, depth=1),
                call(rank, step, computed, end_ns, step=step, thread=0, depth=1),
            ]
            sample_begin_ns = begin_ns
            for length, frames in sampled(rank, step):
                samples.append(
                    (
                        rank,
                        0,
                        100 + rank,
                        "Main",
                        sample_begin_ns,
                        sample_begin_ns + length * MS,
                        frames,
                    )
                )
                sample_begin_ns += length * MS
        begin_ns = end_ns
    table = pl.DataFrame(samples, schema=SAMPLE_COLUMNS, orient="row")
    return prepare(trace_of(rows, RANKS)).with_(samples=table)


def _load_ms(rank: int, _: int = 0) -> int:
    return 30 if rank == 1 else 10


def _culprit(trace: Trace, extra_ms: float) -> Culprit | None:
    steps = np.arange(STEPS)
    return sampled_code.find_in_ranks(
        trace, phases.run(trace), (1,), (0, 2), "data", step_numbers=steps, extra_ns=extra_ms * MS
    )


def test_the_path_begins_where_ranks_differ_and_ends_where_most_of_it_is() -> None:
    """All ranks load, decode and resample, below calls that hold all of every step."""
    trace = _run(
        _load_ms,
        lambda rank, _: [
            (22 if rank == 1 else 2, (ROOT, TRAIN, LOAD, DECODE, BICUBIC)),
            (3, (ROOT, TRAIN, LOAD, DECODE)),
            (5, (ROOT, TRAIN, LOAD)),
            (STEP_MS - 10, (ROOT, TRAIN, FORWARD)),
        ],
    )
    culprit = _culprit(trace, 20)
    assert culprit
    assert culprit.call_path == (LOAD, DECODE, BICUBIC)
    assert culprit.callers == (ROOT, TRAIN)
    assert culprit.first_differing_call == LOAD
    assert abs(culprit.extra_ns_per_step - 20 * MS) < 0.2 * MS
    assert culprit.to_evidence()["path"] == [LOAD, DECODE, BICUBIC]
    assert culprit.to_evidence()["stack"] == [ROOT, TRAIN, LOAD, DECODE, BICUBIC]
    assert describe_code(culprit) == [
        "Stack samples show where: load > decode_image > resample_bicubic (c.py:12), called at a.py:7."
    ]


def test_the_straggler_is_told_so() -> None:
    """The finding's sentence has the path, its function the outermost call; the verdict says so."""
    trace = _run(
        _load_ms,
        lambda rank, _: [
            (25 if rank == 1 else 5, (ROOT, TRAIN, LOAD, DECODE, BICUBIC)),
            (5, (ROOT, TRAIN, LOAD, READ)),
            (STEP_MS - 10, (ROOT, TRAIN, FORWARD)),
        ],
    )
    report = tl.analyze(trace)
    finding = report.findings[0]
    assert (finding.kind, finding.ranks, finding.function) == ("straggler", (1,), LOAD)
    assert "load > decode_image > resample_bicubic (c.py:12)" in finding.sentence
    assert finding.evidence["samples"]["path"] == [LOAD, DECODE, BICUBIC]
    where = "load > decode_image > resample_bicubic (c.py:12)"
    assert report.verdict.action == f"Look at this code of rank 1: {where}."


def test_an_excess_that_is_spread_is_told_where_it_parts() -> None:
    """Half of it is in each of two calls: their caller is all that can be said."""
    trace = _run(
        _load_ms,
        lambda rank, _: [
            (15 if rank == 1 else 5, (ROOT, LOAD, READ)),
            (15 if rank == 1 else 5, (ROOT, LOAD, DECODE)),
            (STEP_MS - 10, (ROOT, FORWARD)),
        ],
    )
    found = _culprit(trace, 20)
    assert found
    assert found.call_path == (LOAD,)


def test_a_function_is_one_whatever_its_line() -> None:
    """It was sampled on many lines with little time each; the line with most of the excess is named."""
    lines = [f"decode_image (c.py:{number})" for number in range(6)]
    trace = _run(
        _load_ms,
        lambda rank, step: [
            (30 if rank == 1 else 10, (ROOT, LOAD, lines[0 if step % 2 else step % 6])),
            (STEP_MS - 10, (ROOT, FORWARD)),
        ],
    )
    found = _culprit(trace, 20)
    assert found
    assert found.call_path == (LOAD, lines[0])


def test_a_line_of_what_calls_all_else() -> None:
    """The delay is in the main loop itself: it is its line that tells."""
    waiting = "<module> (a.py:40)"
    trace = _run(
        _load_ms,
        lambda rank, _: [
            (20 if rank == 1 else 0, (waiting,)),
            (10, (ROOT, LOAD)),
            (STEP_MS - 10, (ROOT, FORWARD)),
        ],
    )
    culprit = _culprit(trace, 20)
    assert culprit
    assert culprit.call_path == (waiting,)
    assert describe_code(culprit) == ["Stack samples show where: <module> (a.py:40)."]


def test_missed_samples_cost_no_time() -> None:
    """Seen in every fourth step only, the share of a call is the same."""
    trace = _run(
        _load_ms,
        lambda rank, step: (
            []
            if step % 4
            else [
                (25 if rank == 1 else 5, (ROOT, READ)),
                (5, (ROOT, DECODE)),
                (STEP_MS - 10, (ROOT, FORWARD)),
            ]
        ),
    )
    culprit = _culprit(trace, 20)
    assert culprit
    assert culprit.call_path == (READ,)
    assert abs(culprit.extra_ns_per_step - 20 * MS) < 0.2 * MS


def test_what_the_samples_do_not_show_is_not_told() -> None:
    """All ranks were sampled in the same code for the same time, in contrast to their spans."""
    trace = _run(lambda *_: 10, lambda *_: [(10, (ROOT, LOAD, READ))])
    assert _culprit(trace, 20) is None


def test_few_samples_tell_nothing() -> None:
    trace = _run(_load_ms, lambda _, step: [(10, (ROOT, READ))] if step < 5 else [])
    assert _culprit(trace, 20) is None


def test_without_samples_nothing_is_asked() -> None:
    trace = _run(lambda *_: 10, lambda *_: [])
    assert _culprit(trace, 20) is None


def test_all_ranks_are_compared_with_their_other_steps() -> None:
    """Loading is slow on all ranks for some steps: the code that then takes longer is reported."""
    slow = range(15, 30)
    trace = _run(
        lambda _, step: 40 if step in slow else 10,
        lambda _, step: [
            (33 if step in slow else 3, (ROOT, TRAIN, LOAD, DECODE, BICUBIC)),
            (7, (ROOT, TRAIN, LOAD, READ)),
            (STEP_MS - 10, (ROOT, TRAIN, FORWARD)),
        ],
    )
    finding = tl.analyze(trace).findings[0]
    assert (finding.kind, finding.ranks) == ("data_stall", (0, 1, 2))
    assert "Stack samples show where: load > decode_image > resample_bicubic (" in finding.sentence
    assert finding.function == LOAD
    assert abs(finding.evidence["samples"]["extra_ns"] - 30 * MS) < MS


def test_where_all_always_load_it_is_what_loading_takes() -> None:
    """There is nothing to compare with but the rest of the step."""
    trace = _run(
        lambda *_: 30,
        lambda *_: [
            (25, (ROOT, TRAIN, LOAD, DECODE, BICUBIC)),
            (5, (ROOT, TRAIN, LOAD, READ)),
            (STEP_MS - 10, (ROOT, TRAIN, FORWARD)),
        ],
    )
    (found,) = (one for one in tl.analyze(trace).findings if one.kind == "data_stall")
    assert found.category == "opportunity"
    assert "load > decode_image > resample_bicubic (" in found.sentence


def test_other_threads_do_not_count() -> None:
    """A frame that contains a whole thread says nothing, even if other threads differ."""
    others: dict[Stack, float] = {(f"worker (w.py:{number})",): 100.0 for number in range(9)}
    peer: dict[Stack, float] = {(ROOT, TRAIN): 90.0, (ROOT, LOAD): 10.0, **others}
    late: dict[Stack, float] = {(ROOT, TRAIN): 90.0, (ROOT, LOAD): 40.0, **others}
    found = find_differing_path([late], [peer], [late])
    assert found
    assert (found.callers, found.call_path) == ((ROOT,), (LOAD,))


@pytest.mark.parametrize("length", [4, 5, 9])
def test_a_long_path_is_shortened_in_its_middle(length: int) -> None:
    """The call that differs stays, and the innermost ones."""
    names = [f"f{number}" for number in range(length)]
    path = tuple(f"{name} (x.py:{at})" for at, name in enumerate(names))
    shown = " > ".join(names if length == 4 else ["f0", "…", *names[-3:]])
    (sentence,) = describe_code(sampled_code.Culprit(path, (), 1.0))
    assert sentence == f"Stack samples show where: {shown} (x.py:{length - 1})."


def test_recursion_is_printed_once() -> None:
    """A recursive function is one entry at any depth."""
    path = ("load (b.py:2)", *["walk (c.py:3)"] * 9, "parse (d.py:4)")
    assert sampled_code.path_text(path) == "load > walk > parse (d.py:4)"


def test_calls_of_the_recorder_are_not_the_programs() -> None:
    """They stand between the program's own, and are nothing to look at."""
    ours = "_around_next (tracelens_instrument/hooks/torch/data_loaders.py:202)"
    late = {(ROOT, ours, LOAD, ours): 30.0, (ROOT, FORWARD): 60.0}
    peer = {(ROOT, ours, LOAD, ours): 5.0, (ROOT, FORWARD): 60.0}
    found = find_differing_path([late], [peer], [late])
    assert found
    assert (found.callers, found.call_path) == ((ROOT,), (LOAD,))


def test_code_that_is_slower_alike_has_no_place() -> None:
    """A slow processor makes all of it longer: told is only what holds most of it, no path to that."""
    shares: dict[Stack, float] = {
        (ROOT, TRAIN, f"f{number} (x.py:{number})"): 10.0 for number in range(9)
    }
    slow = {stack: 1.3 * time for stack, time in shares.items()}
    found = find_differing_path([slow], [shares], [slow])
    assert found
    assert found.call_path == (TRAIN,)


FRAMES = [f"{name} (m.py:{line})" for name in "abcd" for line in (1, 2)]
STACKS = st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4).map(tuple)
TREES = st.dictionaries(STACKS, st.floats(0.5, 20), min_size=1, max_size=8)


@given(usual_ns=TREES, planted=STACKS, extra_ns=st.floats(5, 500))
def test_what_is_planted_is_found(
    usual_ns: dict[Stack, float], planted: tuple[str, ...], extra_ns: float
) -> None:
    """What one rank does in addition, in new calls, is on the path with its time; `main` never is."""
    delayed = (ROOT, *planted, "new (n.py:1)", "newer (n.py:2)")
    usual_ns = {(ROOT, *stack): time for stack, time in usual_ns.items()}
    slow = {**usual_ns, delayed: extra_ns}
    culprit = find_differing_path([slow], [usual_ns, usual_ns], [slow])
    assert culprit
    assert ROOT not in culprit.call_path
    assert culprit.call_path[-1] == delayed[-1]
    assert [*map(_name, culprit.callers), *map(_name, culprit.call_path)] == list(
        map(_name, delayed)
    )
    assert culprit.extra_ns_per_step == pytest.approx(extra_ns)


@given(usual_ns=TREES, planted=STACKS, factor=st.floats(1e-3, 1e3))
def test_units_do_not_matter(
    usual_ns: dict[Stack, float], planted: tuple[str, ...], factor: float
) -> None:
    """The same times in other units are reported alike."""
    slow = {**usual_ns, planted: usual_ns.get(planted, 0.0) + 30.0}
    culprit = find_differing_path([slow], [usual_ns], [slow])
    scaled, plain = ({s: factor * t for s, t in one.items()} for one in (slow, usual_ns))
    scaled_culprit = find_differing_path([scaled], [plain], [scaled])
    assert culprit
    assert scaled_culprit
    assert (scaled_culprit.call_path, scaled_culprit.callers) == (
        culprit.call_path,
        culprit.callers,
    )


@given(usual=TREES)
def test_without_an_excess_nothing_is_told(usual: dict[Stack, float]) -> None:
    """Ranks that do the same, or less, have no code to name."""
    less = {stack: time / 2 for stack, time in usual.items()}
    assert find_differing_path([usual], [usual], [usual]) is None
    assert find_differing_path([less], [usual], [less]) is None


def _name(frame: str) -> str:
    return frame.partition(" ")[0]


def test_stacks_come_in_the_order_of_samples() -> None:
    """So that sums over them, which are of floats, are the same to the last digit each time."""
    frames = [[f"call_{number % 700} (a.py:1)"] for number in range(2000)]
    starts = np.arange(2000) * MS
    samples = pl.DataFrame({"start_ns": starts, "end_ns": starts + MS, "frames": frames})
    inside = pl.DataFrame({"start_ns": [0], "end_ns": [2000 * MS]})
    found = sampled_code.divide_among_stacks(samples, inside)
    assert [stack for (stack,) in found] == [frame for (frame,) in frames[:700]]
