"""Which code holds a delay, by samples of the stack: a path of calls, from where ranks or steps differ.

Samples give each stack's share of a phase, and the recorded pieces the length of the phase. The tree of
usual calls is subtracted from that of slow calls, as in differential flame graphs (Gregg 2014). Trees
hold functions, not lines. The path follows, from the root, the call with most of the excess. But every
caller includes the excess of its callees, `main` as well as `load`. So a call locates the delay only if
its share of the excess exceeds its share of the usual time. The difference is its informedness (Youden's
J): 0 for a call that spans all of a step, 1 for a call that only the delay has. The path begins at the
outermost call that is half as informative as the best one on it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.accounting.pieces import sum_covered_ns_before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

MAX_CALLERS_SHOWN: Final = 8  # calls: no more that led to the path are in a report [policy]
# functions: a sentence has the first one of a path, and no more of the last ones [policy]
MAX_LAST_FUNCTIONS_SHOWN: Final = 3
# share of a delay: a path that explains less is not named [chosen]
MIN_SHARE_OF_DELAY_IN_SAMPLES: Final = 0.5
# ns: samples of less time of a phase on a rank say nothing [policy]
MIN_TIME_SAMPLED_NS: Final = 10**8
# informedness: if no call has as much, the path is the innermost call alone [chosen]
MIN_INFORMEDNESS_TO_LEAVE_CALLERS: Final = 0.25
# ratio: the path begins at the first call with as much of the best one's informedness [chosen]
MIN_RATIO_OF_INFORMEDNESS: Final = 0.5
# share of the residual: a call that holds more is followed [chosen]
MIN_SHARE_OF_RESIDUAL_TO_FOLLOW: Final = 0.5
RECORDER: Final = " (tracelens_instrument/"  # in the frames of its calls

Stack: TypeAlias = "tuple[str, ...]"  # frames, outermost first
TimeByStack: TypeAlias = "Mapping[Stack, float]"  # ns of a step


@dataclass(frozen=True)
class Culprit:
    """A path of calls, outermost first, as ``function (file:line)``, and `callers`, which led to it.

    It begins at the outermost call that differs and ends at the innermost that holds most of the excess.
    """

    call_path: Stack
    callers: Stack
    extra_ns_per_step: float

    @property
    def first_differing_call(self) -> str:
        """The outermost call that differs."""
        return self.call_path[0]

    def to_evidence(self) -> dict[str, object]:
        """The numbers behind it, for a finding."""
        return {
            "stack": [*self.callers[-MAX_CALLERS_SHOWN:], *self.call_path],
            "path": list(self.call_path),
            "extra_ns": round(self.extra_ns_per_step),
        }


def describe_code(culprit: Culprit | None) -> list[str]:
    """Return a sentence on where in the code the time was seen, if it was."""
    if culprit is None:
        return []
    callers = culprit.callers
    called = f", called at {_file_and_line(callers[-1])}" if callers else ""
    return [f"Stack samples show where: {path_text(culprit.call_path)}{called}."]


def path_text(path: Sequence[str]) -> str:
    """Return the functions of a path and where the last was, without repetition or, if long, middle."""
    names = [name for name, _ in groupby(_parse_frame(frame).function for frame in path)]
    if len(names) > 1 + MAX_LAST_FUNCTIONS_SHOWN:
        names = [names[0], "…", *names[-MAX_LAST_FUNCTIONS_SHOWN:]]
    return f"{' > '.join(names)} ({_file_and_line(path[-1])})"


def add_code(finding: Finding, culprit: Culprit | None) -> Finding:
    """Return the finding with where in the code its time was seen."""
    if culprit is None:
        return finding
    return replace(
        finding,
        sentence=" ".join([finding.sentence, *describe_code(culprit)]),
        function=culprit.first_differing_call,
        evidence={**finding.evidence, "samples": culprit.to_evidence()},
    )


def _file_and_line(frame: str) -> str:
    _, file, line = _parse_frame(frame)
    return f"{PurePath(file).name}:{line}"


def find_in_ranks(
    trace: Trace,
    phases: Phases,
    ranks: tuple[int, ...],
    peers: tuple[int, ...],
    phase: str,
    *,
    step_numbers: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Find the code in which late ranks spend more time than their peers; None if samples show none.

    In each of these steps they are late by `extra_ns` in a phase, as compute time tells. `ranks` are
    late, `peers` are not.
    """
    if not _is_sampled(trace, step_numbers):
        return None
    times_by_rank = _measure_times(trace, phases, [phase], step_numbers)
    slow_times = {rank: times_by_rank[rank] for rank in ranks if any(times_by_rank.get(rank, ()))}
    peer_times = [times_by_rank[rank] for rank in peers if rank in times_by_rank]
    if not peer_times:
        return None
    return _compare(
        trace, phases, slow_times, peer_times, step_numbers=step_numbers, extra_ns=extra_ns
    )


def find_in_steps(
    trace: Trace,
    phases: Phases,
    phase: str,
    *,
    step_numbers: Ints,
    other_steps: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Find the code of a phase with `extra_ns` more in some steps on all ranks; None if not known.

    `step_numbers` are those of the long steps, `other_steps` those of usual ones.
    """
    if not _is_sampled(trace, step_numbers) or not len(other_steps):
        return None
    slow_times, usual_times = (
        _measure_times(trace, phases, [phase], numbers) for numbers in (step_numbers, other_steps)
    )
    slow_times = {
        rank: times for rank, times in slow_times.items() if any(times) and rank in usual_times
    }
    usual_times_of_slow = [usual_times[rank] for rank in slow_times]
    return _compare(
        trace, phases, slow_times, usual_times_of_slow, step_numbers=step_numbers, extra_ns=extra_ns
    )


def find_in_phase(
    trace: Trace, phases: Phases, phase: str, *, step_numbers: Ints, extra_ns: float
) -> Culprit | None:
    """Find the code in which a phase that is long on all ranks spends `extra_ns` per step; or None.

    `step_numbers` are those of the steps to look at.
    """
    if not _is_sampled(trace, step_numbers):
        return None
    times_by_rank = _measure_times(trace, phases, [phase], step_numbers)
    slow_times = {rank: times for rank, times in times_by_rank.items() if any(times)}
    return _compare(
        trace, phases, slow_times, peer_times=[], step_numbers=step_numbers, extra_ns=extra_ns
    )


def _compare(
    trace: Trace,
    phases: Phases,
    slow_times: Mapping[int, TimeByStack],
    peer_times: Sequence[TimeByStack],
    *,
    step_numbers: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Find the calls in which slow ranks spend more; None if they hold too little of the delay.

    Times are per step, by stack, `slow_times` by rank; `extra_ns` is the delay per step.
    """
    if not slow_times:
        return None
    all_times = _measure_times(trace, phases, OWN_CATEGORIES, step_numbers)
    all_times_of_slow = [all_times[rank] for rank in slow_times]
    culprit = find_differing_path(list(slow_times.values()), peer_times, all_times_of_slow)
    least_extra_ns = MIN_SHARE_OF_DELAY_IN_SAMPLES * extra_ns
    return culprit if culprit and culprit.extra_ns_per_step >= least_extra_ns else None


def find_in_shards(trace: Trace, shards: Collection[int]) -> Culprit | None:
    """Find the code in which some PS shards spend more time than the others while they serve.

    If `shards` are all, all their time counts. Returns None if samples show no difference.
    """
    if trace.samples.is_empty() or not shards:
        return None
    services = _list_service_times(trace)
    threads = services.group_by("process", "thread")
    # From when to when each thread served anything.
    thread_times = threads.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    step_count = max(services["step"].n_unique(), 1)
    service_times, all_times = (
        _measure_times_of_shards(trace, pieces, step_count) for pieces in (services, thread_times)
    )
    sampled_shards = [shard for shard in shards if any(service_times.get(shard, ()))]
    other_times = [times for shard, times in service_times.items() if shard not in shards]
    if not sampled_shards or not (other_times or set(service_times) <= set(shards)):
        return None
    return find_differing_path(
        [service_times[shard] for shard in sampled_shards],
        other_times,
        [all_times[shard] for shard in sampled_shards],
    )


def _list_service_times(trace: Trace) -> pl.DataFrame:
    """Return when threads of shards served, a row each, without overlaps of a thread."""
    serving_threads = trace.threads.filter(~pl.col("in_flight")).select("process", "thread")
    thread_columns = ("process", "thread")
    earlier_end_ns = pl.col("end_ns").cum_max().shift(1).over(thread_columns)
    begin_ns = pl.max_horizontal("start_ns", earlier_end_ns)
    return (
        trace.select_requests(trace.shards)
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(serving_threads.lazy(), on=["process", "thread"], how="semi")
        .sort(*thread_columns, "start_ns")
        .select(*thread_columns, "step", "end_ns", start_ns=begin_ns)
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .collect()
    )


def _measure_times_of_shards(
    trace: Trace, pieces: pl.DataFrame, step_count: int
) -> dict[int, dict[Stack, float]]:
    """Measure the time per step of each stack, ns, by shard and stack.

    `pieces` are rows of the time of shards' threads: `process`, `thread`, `start_ns`, `end_ns`.
    """
    times_by_shard: dict[int, dict[Stack, float]] = defaultdict(lambda: defaultdict(float))
    columns = trace.shards.select("process", pl.coalesce("shard", "rank"))
    shard_by_process = dict(columns.iter_rows())
    key = ("process", "thread")
    samples_by_thread = trace.samples.sort("start_ns").partition_by(key, as_dict=True)
    for (process, thread), own_pieces in pieces.partition_by(key, as_dict=True).items():
        samples = samples_by_thread.get((process, thread))
        if samples is not None:
            for stack, ns in divide_among_stacks(samples, own_pieces).items():
                times_by_shard[shard_by_process[process]][stack] += ns / step_count
    return times_by_shard


def _is_sampled(trace: Trace, step_numbers: Ints) -> bool:
    return bool(len(step_numbers)) and not trace.samples.is_empty()


def _measure_times(
    trace: Trace, phases: Phases, categories: Iterable[str], step_numbers: Ints
) -> dict[int, dict[Stack, float]]:
    """Measure the time per step of each stack of training threads, ns, by rank and stack.

    Only time of these steps in `categories` counts.
    """
    threads = trace.workers.select("process", "rank", thread="training_thread")
    samples = trace.samples.join(threads, on=["process", "thread"]).sort("start_ns")
    ranks = set(samples["rank"])
    pieces = pl.concat([phases.pieces.select(name, step_numbers, ranks) for name in categories])
    pieces_by_rank = pieces.sort("start_ns").partition_by("rank", as_dict=True)
    times_by_rank = {}
    for (rank,), own in samples.partition_by("rank", as_dict=True, maintain_order=True).items():
        ns_by_stack = divide_among_stacks(own, pieces_by_rank.get((rank,), pieces.clear()))
        times_by_rank[int(rank)] = {
            stack: ns / len(step_numbers) for stack, ns in ns_by_stack.items()
        }
    return times_by_rank


def divide_among_stacks(samples: pl.DataFrame, pieces: pl.DataFrame) -> dict[Stack, float]:
    """Divide the time of disjoint pieces, a row each, among stacks, ns, as one thread's samples tell.

    All of it goes to the empty stack if samples, a row each, cover too little of it.
    """
    start_ns, end_ns = (pieces[name].to_numpy() for name in ("start_ns", "end_ns"))
    before_start_ns, before_end_ns = (
        sum_covered_ns_before(start_ns, end_ns, samples[name].to_numpy())
        for name in ("start_ns", "end_ns")
    )
    sampled_ns = before_end_ns - before_start_ns
    total_ns = float((end_ns - start_ns).sum())
    if sampled_ns.sum() < MIN_TIME_SAMPLED_NS:
        return {(): total_ns}
    scaled_ns = pl.Series(sampled_ns * (total_ns / sampled_ns.sum()))
    scaled = samples.select("frames", ns=scaled_ns).filter(pl.col("ns") > 0)
    # In the order of samples, in which callers then add them up: floats differ by it in the last digit.
    rows = scaled.group_by("frames", maintain_order=True).agg(pl.col("ns").sum()).iter_rows()
    return {tuple(frames): ns for frames, ns in rows}


def to_tree(ns_by_stack: TimeByStack) -> dict[Stack, float]:
    """Measure how long was spent below every call, by the calls that led to it, ns."""
    tree_ns: dict[Stack, float] = {}
    for stack, ns in ns_by_stack.items():
        for depth in range(len(stack) + 1):
            tree_ns[stack[:depth]] = tree_ns.get(stack[:depth], 0.0) + ns
    return tree_ns


def find_differing_path(
    slow: Sequence[TimeByStack], normal: Sequence[TimeByStack], everything: Sequence[TimeByStack]
) -> Culprit | None:
    """Find the path of calls in which slow ranks spend more than normal ones, or None.

    Times are per step and by stack, of each rank. The median of normal ranks counts; without any, all
    time of slow ranks is excess. `everything` is the time that each slow rank has for all its code.
    """
    slow, normal, everything = (
        [_leave_out_recorder(ns_by_stack) for ns_by_stack in group]
        for group in (slow, normal, everything)
    )
    slow_trees, normal_trees, all_trees = (
        [to_tree(_merge_lines(ns_by_stack)) for ns_by_stack in group]
        for group in (slow, normal, everything)
    )
    residual_ns = _subtract_trees(slow_trees, normal_trees)
    calls = _follow_residual(residual_ns) if residual_ns[()] > 0 else []
    if not calls:
        return None
    total_ns = {call: _average(all_trees, call) for call in calls}
    informedness = [_measure_informedness(call, calls[0], residual_ns, total_ns) for call in calls]
    functions = tuple(frame for frame in calls[-1] if not _parse_frame(frame).line)
    first_index = len(functions) - 1
    if max(informedness) >= MIN_INFORMEDNESS_TO_LEAVE_CALLERS:
        min_informedness = MIN_RATIO_OF_INFORMEDNESS * max(informedness)
        first_index = min(
            next(index for index, value in enumerate(informedness) if value >= min_informedness),
            first_index,
        )
    frames = _find_lines(functions, slow, normal)
    return Culprit(
        call_path=frames[first_index:],
        callers=frames[:first_index],
        extra_ns_per_step=residual_ns[calls[-1]],
    )


def _leave_out_recorder(ns_by_stack: TimeByStack) -> dict[Stack, float]:
    """Leave out the recorder's own calls, which stand between those of the program."""
    program_ns: dict[Stack, float] = defaultdict(float)
    for stack, ns in ns_by_stack.items():
        program_ns[tuple(frame for frame in stack if RECORDER not in frame)] += ns
    return program_ns


def _measure_informedness(
    call: Stack, root: Stack, residual_ns: TimeByStack, total_ns: TimeByStack
) -> float:
    """Return the call's share of the excess less its share of the normal time, -1 to 1.

    Times are by call, ns per step: `residual_ns` is what the slow spend more, `total_ns` all they spend.
    `root` is the outermost call.
    """
    normal_ns = total_ns[root] - residual_ns[root]
    normal_share = (total_ns[call] - residual_ns[call]) / normal_ns if normal_ns > 0 else 0.0
    return min(residual_ns[call] / residual_ns[()], 1.0) - min(max(normal_share, 0.0), 1.0)


def _follow_residual(residual_ns: TimeByStack) -> list[Stack]:
    """Return the calls that hold most of the residual, outermost first, each called by the one before.

    `residual_ns` is by call, which is the stack that leads to it; the empty stack has all of it.
    """
    callees: dict[Stack, list[Stack]] = defaultdict(list)
    for call in residual_ns:
        if call:
            callees[call[:-1]].append(call)
    calls: list[Stack] = [()]
    while callees[calls[-1]]:
        largest = max(callees[calls[-1]], key=residual_ns.__getitem__)
        if residual_ns[largest] <= MIN_SHARE_OF_RESIDUAL_TO_FOLLOW * residual_ns[()]:
            break
        calls.append(largest)
    return calls[1:]


def _subtract_trees(
    slow: list[dict[Stack, float]], normal: list[dict[Stack, float]]
) -> dict[Stack, float]:
    """Return the mean time below each call on slow ranks, less the median of normal ones, ns.

    Each tree has the time below every call, by the stack that leads to it.
    """
    calls = {call for tree in slow for call in tree}
    return {
        call: _average(slow, call)
        - (float(np.median([tree.get(call, 0.0) for tree in normal])) if normal else 0.0)
        for call in calls
    }


def _average(trees: list[dict[Stack, float]], call: Stack) -> float:
    return float(np.mean([tree.get(call, 0.0) for tree in trees]))


class _Frame(NamedTuple):
    function: str
    file: str
    line: str  # empty for a function as a whole


@cache
def _parse_frame(frame: str) -> _Frame:
    """Take apart ``function (file:line)``."""
    function, separator, location = frame.removesuffix(")").rpartition(" (")
    file, _, line = location.rpartition(":")
    return _Frame(function, file, line) if separator else _Frame(frame, file="", line="")


def _drop_line(frame: str) -> str:
    function, file, _ = _parse_frame(frame)
    return f"{function} ({file}:)"


def _merge_lines(ns_by_stack: TimeByStack) -> dict[Stack, float]:
    """Sum time by the functions of each stack; the line in the innermost one counts as its callee."""
    merged_ns: dict[Stack, float] = defaultdict(float)
    for stack, ns in ns_by_stack.items():
        innermost_line = [frame for frame in stack[-1:] if _parse_frame(frame).line]
        merged_ns[(*map(_drop_line, stack), *innermost_line)] += ns
    return merged_ns


def _find_lines(
    functions: Stack, slow: Sequence[TimeByStack], normal: Sequence[TimeByStack]
) -> Stack:
    """Return the functions of a stack, each as the frame (with its line) that holds most of the excess.

    `slow` and `normal` have each rank's time per step by stack, ns.
    """
    residuals: list[dict[str, float]] = [defaultdict(float) for _ in functions]
    for sign, ranks in ((1, slow), (-1, normal)):
        for ns_by_stack in ranks:
            for stack, ns in ns_by_stack.items():
                if tuple(map(_drop_line, stack[: len(functions)])) == functions:
                    for residual, frame in zip(residuals, stack, strict=False):
                        residual[frame] += sign * ns / len(ranks)
    return tuple(max(residual, key=residual.__getitem__) for residual in residuals)
