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
from tracelens.accounting.pieces import spent_before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "Culprit",
    "Stack",
    "by_stack",
    "code_sentences",
    "differing_path",
    "of_always",
    "of_ranks",
    "of_shards",
    "of_steps",
    "path_text",
    "tree",
    "with_code",
]

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

Stack: TypeAlias = "tuple[str, ...]"
Spent: TypeAlias = "Mapping[Stack, float]"


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


def code_sentences(seen: Culprit | None) -> list[str]:
    """Return where in the code the time was seen."""
    if seen is None:
        return []
    called = f", called at {_place(seen.callers[-1])}" if seen.callers else ""
    return [f"Stack samples show where: {path_text(seen.path)}{called}."]


def path_text(path: Sequence[str]) -> str:
    """Return the functions of a path and where the last was, without repetition or, if long, middle."""
    names = [name for name, _ in groupby(_named(frame).function for frame in path)]
    if len(names) > 1 + MAX_LAST_FUNCTIONS_SHOWN:
        names = [names[0], "…", *names[-MAX_LAST_FUNCTIONS_SHOWN:]]
    return f"{' > '.join(names)} ({_place(path[-1])})"


def with_code(finding: Finding, seen: Culprit | None) -> Finding:
    """Return the finding with where in the code its time was seen."""
    if seen is None:
        return finding
    return replace(
        finding,
        sentence=" ".join([finding.sentence, *code_sentences(seen)]),
        function=seen.frame,
        evidence={**finding.evidence, "samples": seen.evidence()},
    )


def _place(frame: str) -> str:
    _, file, line = _named(frame)
    return f"{PurePath(file).name}:{line}"


def of_ranks(
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
        extra_ns: How late a step, as own time tells.
    """
    if not _sampled(trace, steps):
        return None
    spent = _by_rank(trace, phases, [phase], steps)
    slow = {rank: spent[rank] for rank in ranks if any(spent.get(rank, ()))}
    usual = [spent[rank] for rank in peers if rank in spent]
    if not slow or not usual:
        return None
    whole = _by_rank(trace, phases, OWN_CATEGORIES, steps)
    return _enough(
        differing_path(list(slow.values()), usual, [whole[rank] for rank in slow]), extra_ns
    )


def of_steps(
    trace: Trace, phases: Phases, phase: str, *, steps: Ints, others: Ints, extra_ns: float
) -> Culprit | None:
    """Look for what all ranks do longer in some steps than in others, in a phase."""
    if not _sampled(trace, steps) or not len(others):
        return None
    slow, usual = (_by_rank(trace, phases, [phase], some) for some in (steps, others))
    seen = [rank for rank, found in slow.items() if any(found) and rank in usual]
    if not seen:
        return None
    whole = _by_rank(trace, phases, OWN_CATEGORIES, steps)
    found = differing_path(
        *([table[rank] for rank in seen] for table in (slow, usual, whole)),
    )
    return _enough(found, extra_ns)


def of_always(
    trace: Trace, phases: Phases, phase: str, *, steps: Ints, extra_ns: float
) -> Culprit | None:
    """Look for what takes the time of a phase that is long in all steps of all ranks."""
    if not _sampled(trace, steps):
        return None
    spent = {
        rank: some for rank, some in _by_rank(trace, phases, [phase], steps).items() if any(some)
    }
    if not spent:
        return None
    whole = _by_rank(trace, phases, OWN_CATEGORIES, steps)
    return _enough(
        differing_path(list(spent.values()), [], [whole[rank] for rank in spent]), extra_ns
    )


def of_shards(trace: Trace, shards: Collection[int]) -> Culprit | None:
    """Look for what PS shards do longer than the others while they serve; at all, if they are all."""
    if trace.samples.is_empty() or not shards:
        return None
    serving = _serving(trace)
    steps = max(serving["step"].n_unique(), 1)
    served, whole = (_by_shard(trace, some, steps) for some in (serving, _open(serving)))
    slow = [shard for shard in shards if any(served.get(shard, ()))]
    others = [found for shard, found in served.items() if shard not in shards]
    if not slow or not (others or set(served) <= set(shards)):
        return None
    return differing_path([served[one] for one in slow], others, [whole[one] for one in slow])


def _serving(trace: Trace) -> pl.DataFrame:
    """Return when threads of shards served: disjoint pieces with process, thread and step."""
    running = trace.threads.filter(~pl.col("in_flight")).select("process", "thread")
    of_thread = ("process", "thread")
    reached = pl.col("end_ns").cum_max().shift(1).over(of_thread)
    begin = pl.max_horizontal("start_ns", reached)
    return (
        trace.requests_of(trace.shards)
        .filter((pl.col("kind") == "ps") & pl.col("end_ns").is_not_null())
        .join(running.lazy(), on=["process", "thread"], how="semi")
        .sort(*of_thread, "start_ns")
        .select(*of_thread, "step", "end_ns", start_ns=begin)
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .collect()
    )


def _open(served: pl.DataFrame) -> pl.DataFrame:
    """Return from when to when each thread served anything."""
    whole = served.group_by("process", "thread")
    return whole.agg(pl.col("start_ns").min(), pl.col("end_ns").max())


def _by_shard(trace: Trace, inside: pl.DataFrame, steps: int) -> dict[int, dict[Stack, float]]:
    """Return how much of a step each stack took in some pieces of the time of shards' threads, ns."""
    found: dict[int, dict[Stack, float]] = defaultdict(lambda: defaultdict(float))
    numbers = dict(trace.shards.select("process", pl.coalesce("shard", "rank")).iter_rows())
    of_thread = ("process", "thread")
    samples = trace.samples.sort("start_ns").partition_by(of_thread, as_dict=True)
    for thread, pieces in inside.partition_by(of_thread, as_dict=True).items():
        seen = samples.get(thread)
        for stack, time in by_stack(seen, pieces).items() if seen is not None else ():
            found[numbers[thread[0]]][stack] += time / steps
    return found


def _enough(found: Culprit | None, extra_ns: float) -> Culprit | None:
    least_ns = MIN_SHARE_OF_DELAY_IN_SAMPLES * extra_ns
    return found if found and found.extra_ns >= least_ns else None


def _sampled(trace: Trace, steps: Ints) -> bool:
    return bool(len(steps)) and not trace.samples.is_empty()


def _by_rank(
    trace: Trace, phases: Phases, categories: Iterable[str], steps: Ints
) -> dict[int, dict[Stack, float]]:
    """Return how much of a step each stack of a rank's training thread took in some phases, ns."""
    mine = trace.workers.select("process", "rank", thread="training_thread")
    samples = trace.samples.join(mine, on=["process", "thread"]).sort("start_ns")
    ranks = set(samples["rank"])
    pieces = pl.concat([phases.pieces.of(name, steps, ranks) for name in categories])
    inside = pieces.sort("start_ns").partition_by("rank", as_dict=True)
    found = {}
    for (rank,), rows in samples.partition_by("rank", as_dict=True, maintain_order=True).items():
        spent = by_stack(rows, inside.get((rank,), pieces.clear()))
        found[int(rank)] = {stack: time / len(steps) for stack, time in spent.items()}
    return found


def by_stack(samples: pl.DataFrame, inside: pl.DataFrame) -> dict[Stack, float]:
    """Return how much of the pieces' time each stack took, ns; that of none if few were seen."""
    seen = spent_before(inside, samples["end_ns"].to_numpy()) - spent_before(
        inside, samples["start_ns"].to_numpy()
    )
    total = float((inside["end_ns"] - inside["start_ns"]).sum())
    if seen.sum() < MIN_TIME_SAMPLED_NS:
        return {(): total}
    scale = total / seen.sum()
    summed = samples.select("frames", time=pl.Series(seen * scale)).filter(pl.col("time") > 0)
    # In the order of samples, in which callers then add them up: floats differ by it in the last digit.
    rows = summed.group_by("frames", maintain_order=True).agg(pl.col("time").sum()).iter_rows()
    return {tuple(frames): time for frames, time in rows}


def tree(ranks: Sequence[Spent]) -> list[dict[Stack, float]]:
    """Return for each rank how long was spent below every call, by the calls that led to it."""
    trees = []
    for spent in ranks:
        below: dict[Stack, float] = {}
        for stack, time in spent.items():
            for depth in range(len(stack) + 1):
                below[stack[:depth]] = below.get(stack[:depth], 0.0) + time
        trees.append(below)
    return trees


def differing_path(
    slow: Sequence[Spent], usual: Sequence[Spent], whole: Sequence[Spent]
) -> Culprit | None:
    """Return the path of calls in which the slow spend more than usual.

    Args:
        slow: How much of a step each stack took, for each rank that is slow; and
        usual: for each with which they are compared, the median of which counts. Without any, all that
            the slow ones spend is excess.
        whole: The same of all that the slow do in these steps, whatever is slow.
    """
    slow, usual, whole = (list(map(_of_program, spent)) for spent in (slow, usual, whole))
    trees = [tree(list(map(_by_function, spent))) for spent in (slow, usual, whole)]
    residual = _residuals(trees[0], trees[1])
    chain = _chain(residual) if residual[()] > 0 else []
    if not chain:
        return None
    all_of_it = _mean(trees[2], chain)
    informed = [_informedness(call, chain[0], residual, all_of_it) for call in chain]
    functions = tuple(frame for frame in chain[-1] if not _named(frame).line)
    innermost = len(functions) - 1
    begin = innermost
    if max(informed) >= MIN_INFORMEDNESS_TO_LEAVE_CALLERS:
        least_informedness = MIN_RATIO_OF_INFORMEDNESS * max(informed)
        first = next(at for at, one in enumerate(informed) if one >= least_informedness)
        begin = min(first, innermost)
    frames = _lines(functions, slow, usual)
    return Culprit(frames[begin:], frames[:begin], residual[chain[-1]])


def _of_program(spent: Spent) -> dict[Stack, float]:
    """Leave out the recorder's own calls, which stand between those of the program."""
    found: dict[Stack, float] = defaultdict(float)
    for stack, time in spent.items():
        found[tuple(frame for frame in stack if RECORDER not in frame)] += time
    return found


def _informedness(call: Stack, root: Stack, residual: Spent, whole: Spent) -> float:
    """Return the call's share of the excess less its share of the usual time of its thread's `root`."""
    usual = whole[root] - residual[root]
    share = (whole[call] - residual[call]) / usual if usual > 0 else 0.0
    return min(residual[call] / residual[()], 1.0) - min(max(share, 0.0), 1.0)


def _chain(residual: Spent) -> list[Stack]:
    """Return the calls that hold most of the excess, each called by the one before."""
    below: dict[Stack, list[Stack]] = defaultdict(list)
    for call in residual:
        if call:
            below[call[:-1]].append(call)
    chain: list[Stack] = [()]
    while below[chain[-1]]:
        worst = max(below[chain[-1]], key=residual.__getitem__)
        if residual[worst] <= MIN_SHARE_OF_RESIDUAL_TO_FOLLOW * residual[()]:
            break
        chain.append(worst)
    return chain[1:]


def _residuals(
    slow: list[dict[Stack, float]], usual: list[dict[Stack, float]]
) -> dict[Stack, float]:
    """Return what was spent on average below each call of the slow, over the median of the usual."""
    calls = {call for below in slow for call in below}
    return {
        call: _mean(slow, [call])[call]
        - (float(np.median([below.get(call, 0.0) for below in usual])) if usual else 0.0)
        for call in calls
    }


def _mean(trees: list[dict[Stack, float]], calls: Iterable[Stack]) -> dict[Stack, float]:
    return {call: float(np.mean([below.get(call, 0.0) for below in trees])) for call in calls}


class _Named(NamedTuple):
    function: str
    file: str
    line: str  # empty for a function as a whole


@cache
def _named(frame: str) -> _Named:
    """Take apart ``function (file:line)``."""
    function, place, where = frame.removesuffix(")").rpartition(" (")
    file, _, line = where.rpartition(":")
    return _Named(function, file, line) if place else _Named(frame, "", "")


def _function(frame: str) -> str:
    """Return the frame without its line."""
    function, file, _ = _named(frame)
    return f"{function} ({file}:)"


def _by_function(spent: Spent) -> dict[Stack, float]:
    """Merge the lines of each function, but for that in the innermost one, which is as its callee."""
    found: dict[Stack, float] = defaultdict(float)
    for stack, time in spent.items():
        line = [frame for frame in stack[-1:] if _named(frame).line]
        found[(*map(_function, stack), *line)] += time
    return found


def _lines(functions: Stack, slow: Sequence[Spent], usual: Sequence[Spent]) -> Stack:
    """Return the functions of a stack, each at the line on which most of the excess was seen."""
    seen: list[dict[str, float]] = [defaultdict(float) for _ in functions]
    for sign, ranks in ((1, slow), (-1, usual)):
        for spent in ranks:
            for stack, time in spent.items():
                if tuple(map(_function, stack[: len(functions)])) == functions:
                    for lines, frame in zip(seen, stack, strict=False):
                        lines[frame] += sign * time / len(ranks)
    return tuple(max(lines, key=lines.__getitem__) for lines in seen)
