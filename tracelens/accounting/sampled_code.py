"""Which code holds a delay, by samples of the stack: a path of calls, from where ranks or steps differ.

Samples in a phase tell which share of it each stack had, and the recorded pieces how long the phase was.
Both trees of calls, of the slow and of the usual, are subtracted, as by differential flame graphs (Gregg
2014), of functions, not of lines. From the root the call that holds most of the excess is
followed down. But every caller holds the excess of what it calls, `main` as well as `load`. A call says
where the delay is only as far as its share of the excess is more than its share of the usual time (its
informedness, or Youden's J): 0 for what all of a step is in, 1 for what only the delay is in. The path
begins at the outermost call that is half as informative as the best one on it.
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
from tracelens.accounting.pieces import covered_before

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

    path: Stack
    callers: Stack
    extra_ns: float  # a step

    @property
    def frame(self) -> str:
        """The outermost call that differs."""
        return self.path[0]

    def evidence(self) -> dict[str, object]:
        """The numbers behind it, for a finding."""
        return {
            "stack": [*self.callers[-MAX_CALLERS_SHOWN:], *self.path],
            "path": list(self.path),
            "extra_ns": round(self.extra_ns),
        }


def describe_code(culprit: Culprit | None) -> list[str]:
    """Return a sentence on where in the code the time was seen, if it was."""
    if culprit is None:
        return []
    callers = culprit.callers
    called = f", called at {_file_and_line(callers[-1])}" if callers else ""
    return [f"Stack samples show where: {path_text(culprit.path)}{called}."]


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
        function=culprit.frame,
        evidence={**finding.evidence, "samples": culprit.evidence()},
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
    steps: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Look for what the late ranks do longer than their peers.

    Args:
        trace: With samples, or there is nothing to find.
        phases: The partition of its time.
        ranks: The late ones.
        peers: Those with which they are compared.
        phase: The phase that they are late in.
        steps: The steps in which they are.
        extra_ns: How late a step, as compute time tells.
    """
    if not _is_sampled(trace, steps):
        return None
    spent = _sum_by_rank(trace, phases, [phase], steps)
    slow = {rank: spent[rank] for rank in ranks if any(spent.get(rank, ()))}
    normal = [spent[rank] for rank in peers if rank in spent]
    return _compare(trace, phases, slow, normal, steps=steps, extra_ns=extra_ns) if normal else None


def find_in_steps(
    trace: Trace, phases: Phases, phase: str, *, steps: Ints, others: Ints, extra_ns: float
) -> Culprit | None:
    """Look for what all ranks do longer in some steps than in others, in a phase."""
    if not _is_sampled(trace, steps) or not len(others):
        return None
    slow, normal = (_sum_by_rank(trace, phases, [phase], some) for some in (steps, others))
    slow = {rank: spent for rank, spent in slow.items() if any(spent) and rank in normal}
    return _compare(
        trace, phases, slow, [normal[rank] for rank in slow], steps=steps, extra_ns=extra_ns
    )


def find_in_phase(
    trace: Trace, phases: Phases, phase: str, *, steps: Ints, extra_ns: float
) -> Culprit | None:
    """Look for what takes the time of a phase that is long in all steps of all ranks."""
    if not _is_sampled(trace, steps):
        return None
    spent_of = _sum_by_rank(trace, phases, [phase], steps)
    slow = {rank: spent for rank, spent in spent_of.items() if any(spent)}
    return _compare(trace, phases, slow, [], steps=steps, extra_ns=extra_ns)


def _compare(
    trace: Trace,
    phases: Phases,
    slow: Mapping[int, TimeByStack],
    normal: Sequence[TimeByStack],
    *,
    steps: Ints,
    extra_ns: float,
) -> Culprit | None:
    """Find the path of the slow ranks, by rank; None if it holds too little of the delay, a step."""
    if not slow:
        return None
    everything = _sum_by_rank(trace, phases, OWN_CATEGORIES, steps)
    culprit = find_differing_path(list(slow.values()), normal, [everything[rank] for rank in slow])
    least_ns = MIN_SHARE_OF_DELAY_IN_SAMPLES * extra_ns
    return culprit if culprit and culprit.extra_ns >= least_ns else None


def find_in_shards(trace: Trace, shards: Collection[int]) -> Culprit | None:
    """Look for what PS shards do longer than the others while they serve; at all, if they are all."""
    if trace.samples.is_empty() or not shards:
        return None
    serving = _find_serving(trace)
    threads = serving.group_by("process", "thread")
    # From when to when each thread served anything.
    serving_times = threads.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    step_count = max(serving["step"].n_unique(), 1)
    served, everything = (
        _sum_by_shard(trace, times, step_count) for times in (serving, serving_times)
    )
    slow_shards = [shard for shard in shards if any(served.get(shard, ()))]
    times_of_others = [spent for shard, spent in served.items() if shard not in shards]
    if not slow_shards or not (times_of_others or set(served) <= set(shards)):
        return None
    return find_differing_path(
        [served[shard] for shard in slow_shards],
        times_of_others,
        [everything[shard] for shard in slow_shards],
    )


def _find_serving(trace: Trace) -> pl.DataFrame:
    """Return when threads of shards served: disjoint pieces with process, thread and step."""
    running = trace.threads.filter(~pl.col("in_flight")).select("process", "thread")
    of_thread = ("process", "thread")
    earlier_end_ns = pl.col("end_ns").cum_max().shift(1).over(of_thread)
    begin_ns = pl.max_horizontal("start_ns", earlier_end_ns)
    return (
        trace.requests_of(trace.shards)
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(running.lazy(), on=["process", "thread"], how="semi")
        .sort(*of_thread, "start_ns")
        .select(*of_thread, "step", "end_ns", start_ns=begin_ns)
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .collect()
    )


def _sum_by_shard(
    trace: Trace, times: pl.DataFrame, step_count: int
) -> dict[int, dict[Stack, float]]:
    """Measure how much of a step each stack took in some pieces of the time of shards' threads, ns."""
    ns_by_shard: dict[int, dict[Stack, float]] = defaultdict(lambda: defaultdict(float))
    shard_of = dict(trace.shards.select("process", pl.coalesce("shard", "rank")).iter_rows())
    of_thread = ("process", "thread")
    samples_of = trace.samples.sort("start_ns").partition_by(of_thread, as_dict=True)
    for thread, pieces in times.partition_by(of_thread, as_dict=True).items():
        samples = samples_of.get(thread)
        for stack, ns in sum_by_stack(samples, pieces).items() if samples is not None else ():
            ns_by_shard[shard_of[thread[0]]][stack] += ns / step_count
    return ns_by_shard


def _is_sampled(trace: Trace, steps: Ints) -> bool:
    return bool(len(steps)) and not trace.samples.is_empty()


def _sum_by_rank(
    trace: Trace, phases: Phases, categories: Iterable[str], steps: Ints
) -> dict[int, dict[Stack, float]]:
    """Measure how much of a step each stack of a rank's training thread took in some phases, ns."""
    threads = trace.workers.select("process", "rank", thread="training_thread")
    samples = trace.samples.join(threads, on=["process", "thread"]).sort("start_ns")
    ranks = set(samples["rank"])
    pieces = pl.concat([phases.pieces.select(name, steps, ranks) for name in categories])
    pieces_of = pieces.sort("start_ns").partition_by("rank", as_dict=True)
    ns_by_rank = {}
    for (rank,), rows in samples.partition_by("rank", as_dict=True, maintain_order=True).items():
        by_stack = sum_by_stack(rows, pieces_of.get((rank,), pieces.clear()))
        ns_by_rank[int(rank)] = {stack: ns / len(steps) for stack, ns in by_stack.items()}
    return ns_by_rank


def sum_by_stack(samples: pl.DataFrame, pieces: pl.DataFrame) -> dict[Stack, float]:
    """Measure how much of disjoint pieces' time each stack took, ns; that of none if few were seen."""
    start, end = (pieces[name].to_numpy() for name in ("start_ns", "end_ns"))
    before_start, before_end = (
        covered_before(start, end, samples[name].to_numpy()) for name in ("start_ns", "end_ns")
    )
    seen_ns = before_end - before_start
    total_ns = float((end - start).sum())
    if seen_ns.sum() < MIN_TIME_SAMPLED_NS:
        return {(): total_ns}
    scaled_ns = pl.Series(seen_ns * (total_ns / seen_ns.sum()))
    summed = samples.select("frames", ns=scaled_ns).filter(pl.col("ns") > 0)
    # In the order of samples, in which callers then add them up: floats differ by it in the last digit.
    rows = summed.group_by("frames", maintain_order=True).agg(pl.col("ns").sum()).iter_rows()
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
    """Return the path of calls in which the slow spend more than the normal.

    Args:
        slow: How much of a step each stack took, for each rank that is slow; and
        normal: for each with which they are compared, the median of which counts. Without any, all that
            the slow ones spend is excess.
        everything: The same for all code of the slow ranks in these steps.
    """
    slow, normal, everything = (
        [_leave_out_recorder(spent) for spent in group] for group in (slow, normal, everything)
    )
    slow_trees, normal_trees, all_trees = (
        [to_tree(_merge_lines(spent)) for spent in group] for group in (slow, normal, everything)
    )
    residual = _subtract_trees(slow_trees, normal_trees)
    chain = _follow_residual(residual) if residual[()] > 0 else []
    if not chain:
        return None
    total = {call: _average(all_trees, call) for call in chain}
    informedness = [_measure_informedness(call, chain[0], residual, total) for call in chain]
    functions = tuple(frame for frame in chain[-1] if not _parse_frame(frame).line)
    first_index = len(functions) - 1
    if max(informedness) >= MIN_INFORMEDNESS_TO_LEAVE_CALLERS:
        min_informedness = MIN_RATIO_OF_INFORMEDNESS * max(informedness)
        first_index = min(
            next(i for i, one in enumerate(informedness) if one >= min_informedness), first_index
        )
    frames = _find_lines(functions, slow, normal)
    return Culprit(frames[first_index:], frames[:first_index], residual[chain[-1]])


def _leave_out_recorder(spent: TimeByStack) -> dict[Stack, float]:
    """Leave out the recorder's own calls, which stand between those of the program."""
    of_program: dict[Stack, float] = defaultdict(float)
    for stack, ns in spent.items():
        of_program[tuple(frame for frame in stack if RECORDER not in frame)] += ns
    return of_program


def _measure_informedness(
    call: Stack, root: Stack, residual: TimeByStack, total: TimeByStack
) -> float:
    """Return the call's share of the excess less its share of the normal time of its thread's `root`."""
    normal_ns = total[root] - residual[root]
    share = (total[call] - residual[call]) / normal_ns if normal_ns > 0 else 0.0
    return min(residual[call] / residual[()], 1.0) - min(max(share, 0.0), 1.0)


def _follow_residual(residual: TimeByStack) -> list[Stack]:
    """Return the calls that hold most of the excess, each called by the one before."""
    callees: dict[Stack, list[Stack]] = defaultdict(list)
    for call in residual:
        if call:
            callees[call[:-1]].append(call)
    chain: list[Stack] = [()]
    while callees[chain[-1]]:
        largest = max(callees[chain[-1]], key=residual.__getitem__)
        if residual[largest] <= MIN_SHARE_OF_RESIDUAL_TO_FOLLOW * residual[()]:
            break
        chain.append(largest)
    return chain[1:]


def _subtract_trees(
    slow: list[dict[Stack, float]], normal: list[dict[Stack, float]]
) -> dict[Stack, float]:
    """Return the mean time below each call of the slow, less the median of the normal, ns."""
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
    return _Frame(function, file, line) if separator else _Frame(frame, "", "")


def _drop_line(frame: str) -> str:
    function, file, _ = _parse_frame(frame)
    return f"{function} ({file}:)"


def _merge_lines(spent: TimeByStack) -> dict[Stack, float]:
    """Merge the lines of each function, but for that in the innermost one, which is as its callee."""
    merged: dict[Stack, float] = defaultdict(float)
    for stack, ns in spent.items():
        innermost = [frame for frame in stack[-1:] if _parse_frame(frame).line]
        merged[(*map(_drop_line, stack), *innermost)] += ns
    return merged


def _find_lines(
    functions: Stack, slow: Sequence[TimeByStack], normal: Sequence[TimeByStack]
) -> Stack:
    """Return the functions of a stack, each at the line on which most of the excess was seen."""
    residuals_of: list[dict[str, float]] = [defaultdict(float) for _ in functions]
    for sign, group in ((1, slow), (-1, normal)):
        for spent in group:
            for stack, ns in spent.items():
                if tuple(map(_drop_line, stack[: len(functions)])) == functions:
                    for residual, frame in zip(residuals_of, stack, strict=False):
                        residual[frame] += sign * ns / len(group)
    return tuple(max(residual, key=residual.__getitem__) for residual in residuals_of)
