"""Interleaving: how much communication compute time hides, and what lies between optimizer updates.

With C the compute time and M the communication of a rank, hidden = |C and M|, exposed = |M without C|,
overlap = hidden / |M|; exposed communication is either waiting (not all arrived) or transfer. Waiting
has its cause in another rank and is not counted again here. The gap after update i is start(i+1) -
end(i) (Li et al. 2019 ask where those gaps are; docs/analyses/overlap-and-gradient-latency.md).

By bucket it is measured call by call: with o(t) a rank's compute time until t, o(end) - o(start)
of a call is hidden; what is exposed until the last arrival is waiting, the rest transfer. What overlaps
with two calls at once counts for both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, COMPUTE_CATEGORIES
from tracelens.accounting.communication.pickled_calls import find_pickled_calls
from tracelens.accounting.phases import exposed_transfer, job_ns
from tracelens.model import fmt
from tracelens.model.calls import NEVER, distinct, is_uniform
from tracelens.model.columns import NULL
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import WorkFix
from tracelens.replay.pricing import price_edits, price_less_work
from tracelens.stats.histogram import log_histogram

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.accounting.pieces import JoinedPieces, Segments
    from tracelens.accounting.weight_updates import WeightUpdates
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

__all__ = ["BUCKET_COLUMNS", "OVERLAP_COLUMNS", "Interleaving", "overlap_of_buckets", "run"]


# of the job: overlap that saves less is not reported [policy]
MIN_SAVING_TO_REPORT_OVERLAP: Final = 0.05
# of the job: transfers that no computation can hide and that take less are not reported [policy]
MIN_SHARE_TO_REPORT_SLOW_TRANSFERS: Final = 0.2
# share of the transfer: with as much latency, fewer bytes hardly help [chosen]
MIN_LATENCY_SHARE_IF_FEWER_BYTES_USELESS: Final = 0.5
# of the job: gaps between updates that cost less are not reported [policy]
MIN_SAVING_TO_REPORT_UPDATE_GAPS: Final = 0.05
# share of gaps: a report shows this quantile beside the median [policy]
QUANTILE_OF_LONG_GAPS: Final = 0.9
WITHIN: Final = "within a step"
BETWEEN: Final = "from step to step"
OVERLAP_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "hidden_ns": pl.Int64(),
    "wait_ns": pl.Int64(),  # exposed: in collectives not yet entered by all, or in PS queues
    "transfer_ns": pl.Int64(),  # exposed: the rest
    "backprop_ns": pl.Int64(),
    "overlap": pl.Float64(),  # hidden / (hidden + exposed), null without communication
}


@dataclass(frozen=True, eq=False)
class Interleaving(DisplayMixin):
    """Overlap per rank, step and bucket, gaps between updates, and what better interleaving could save.

    `gap_spread` counts the gaps by length (`robust.py`), within steps and from step to step.
    """

    overlap: pl.DataFrame
    by_step: pl.DataFrame
    by_bucket: pl.DataFrame
    updates: WeightUpdates
    gap_spread: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def gaps(self) -> pl.DataFrame:
        """What lies between updates, a row a gap, built at each access."""
        return self.updates.gaps


def run(facts: Facts) -> Interleaving:
    """Measure overlap and gaps of the main workers."""
    trace, phases = facts.trace, facts.phases
    overlap, updates = _overlap(phases), phases.updates
    job = job_ns(trace)
    measured = Interleaving(
        overlap=overlap,
        by_step=_by_step(phases),
        by_bucket=overlap_of_buckets(trace, phases),
        updates=updates,
        gap_spread=_gap_spread(updates),
        findings=(),
    )
    if not job or overlap.is_empty() or trace.parted:
        return measured  # of ranks that were left out neither waits nor gaps are known
    findings = [*_exposed(facts, overlap, job), *_between_updates(facts, updates, job)]
    return replace(measured, findings=tuple(findings))


def _by_step(phases: Phases) -> pl.DataFrame:
    """Return the mean rank's communication of each step."""
    ranks = phases.by_step(phases.there)
    there = (phases.steps >= 0) & (ranks > 0)
    windows = phases.by_step(np.ones(len(phases.there)))[there]
    sums = {
        "hidden_ns": phases.hidden_ns,
        "wait_ns": phases.of("wait", "ps_queue"),
        "transfer_ns": phases.of("transfer"),
    }
    means = {name: phases.by_step(values)[there] / windows for name, values in sums.items()}
    steps = pl.Series(phases.steps[there], dtype=pl.Int32)
    return pl.DataFrame({"step": steps, **means})


def _gap_spread(updates: WeightUpdates) -> pl.DataFrame:
    within = pl.when("within").then(pl.lit(WITHIN)).otherwise(pl.lit(BETWEEN))
    named = (some.with_columns(of=within) for some in updates.some_gaps())
    return log_histogram(named, "gap_ns", "of", ("rank", "start_ns", "gap_ns"))


def _overlap(phases: Phases) -> pl.DataFrame:
    rank = phases.pieces.steps["rank"].to_numpy()
    known, place = np.unique(rank, return_inverse=True)
    there = np.bincount(place, phases.there, minlength=len(known)) > 0
    sums = {
        "hidden_ns": phases.hidden_ns,
        "wait_ns": phases.of("wait", "ps_queue"),
        "transfer_ns": phases.of("transfer"),
        "backprop_ns": phases.of("backprop"),
    }
    columns = {
        name: np.bincount(place, values, minlength=len(known)).astype(np.int64)[there]
        for name, values in sums.items()
    }
    communication = pl.sum_horizontal("hidden_ns", "wait_ns", "transfer_ns")
    share = pl.when(communication > 0).then(pl.col("hidden_ns") / communication)
    table = pl.DataFrame({"rank": known[there], **columns}).with_columns(overlap=share)
    return table.select(pl.col(name).cast(kind) for name, kind in OVERLAP_COLUMNS.items())


def _exposed(facts: Facts, overlap: pl.DataFrame, job: int) -> list[Finding]:
    """Report what could be overlapped, or, if that is little, that more than that is exposed."""
    share = int(overlap["transfer_ns"].sum()) / (overlap.height * job)
    if share < MIN_SAVING_TO_REPORT_OVERLAP:
        return []
    price = price_edits(facts.replay, "overlap=on")
    if price.saving is None or price.saving < MIN_SAVING_TO_REPORT_OVERLAP:
        return _bound(facts, share, job)
    pickled = find_pickled_calls(facts.calls)
    mean = overlap["overlap"].mean()
    hidden = mean if isinstance(mean, float) else 0.0
    return [
        Finding.of(
            "exposed_communication",
            {"exposed": fmt.percent(share), "overlap": fmt.percent(hidden)},
            saving=price.saving,
            interval=price.interval,
            fix=price.fix,
            phase="reduction",
            more=[pickled.sentence] if pickled else [],
            evidence={
                "exposed_transfer": share,
                "overlap": hidden,
                "pickled": asdict(pickled) if pickled else None,
            },
        )
    ]


def _bound(facts: Facts, exposed: float, job: int) -> list[Finding]:
    """Report communication that is too slow for the compute that it could overlap with.

    `exposed` is what ranks expose on average, as a share of the job.
    """
    trace, phases = facts.trace, facts.phases
    steps = trace.steps["step"].unique().sort().to_numpy().astype(np.int64)
    share = float(exposed_transfer(phases, steps).sum()) / job
    is_slow = share >= MIN_SHARE_TO_REPORT_SLOW_TRANSFERS
    if not is_slow or not (trace.calls or trace.shards.height):
        return []
    identifiable = not trace.calls or bool((trace.messages["op"] == "send").any())
    link = (
        " If one link is slow, collectives alone do not tell which; messages between ranks would."
    )
    latency, pickled = facts.call_costs.latency_share, find_pickled_calls(facts.calls)
    return [
        Finding.of(
            "exposed_communication",
            {
                "exposed": fmt.percent(exposed),
                "remedy": _remedy(latency) if trace.calls else _OF_SERVERS,
                "link": "" if identifiable else link,
            },
            case="bound",
            saving=share,
            phase="reduction",
            more=[pickled.sentence] if pickled else [],
            evidence={
                "exposed_transfer": share,
                "latency_share": latency,
                "pickled": asdict(pickled) if pickled else None,
                "link_identifiable": identifiable,
            },
        )
    ]


_OF_SERVERS: Final = "fewer and larger messages, fewer bytes or faster links"


def _remedy(latency: float | None) -> str:
    """Return what could make transfers shorter, of which so much is latency."""
    if latency is None:
        return (
            "fewer calls, fewer bytes or faster links (latency and bandwidth cannot be separated: "
            "sizes are equal or were not recorded)"
        )
    if latency >= MIN_LATENCY_SHARE_IF_FEWER_BYTES_USELESS:
        return f"fewer calls or lower latency (latency is {fmt.percent(latency)} of the transfer)"
    return "fewer bytes or faster links"


def _between_updates(facts: Facts, updates: WeightUpdates, job: int) -> list[Finding]:
    """Report host time between the updates of one step, priced by the replay without it.

    A run whose steps are not known counts as one step, in which updates tell nothing. Waits and
    transfers between updates are not theirs: exposed communication reports them.
    """
    trace, phases = facts.trace, facts.phases
    steps = phases.steps[phases.steps >= 0]
    if len(steps) < 2:
        return []
    within = pl.concat(some.filter("within") for some in updates.some_gaps())
    host_ns = _host_time_in_gaps(trace, phases, within, steps)
    least_saving = MIN_SAVING_TO_REPORT_UPDATE_GAPS
    if float(host_ns.max(axis=1, initial=0.0).sum()) < least_saving * job:
        return []
    fix = WorkFix(steps, ((("uninstrumented",), host_ns),))
    price = price_less_work(facts.replay, fix, job)
    gaps_ns = within["gap_ns"]
    typical, long = gaps_ns.median(), gaps_ns.quantile(QUANTILE_OF_LONG_GAPS)
    if price.saving < least_saving or not isinstance(typical, float) or not isinstance(long, float):
        return []
    return [
        Finding.of(
            "update_gap",
            {"median": fmt.duration(typical), "long": fmt.duration(long)},
            saving=price.saving,
            interval=price.interval,
            fix=price.fix,
            phase="update",
            evidence={"median_gap_ns": typical, "p90_gap_ns": long, "gaps": within.height},
        )
    ]


def _host_time_in_gaps(trace: Trace, phases: Phases, gaps: pl.DataFrame, steps: Ints) -> Floats:
    """Return how long each worker runs unrecorded code between updates, ns, [step, worker]."""
    ranks = trace.workers["rank"].to_numpy()
    rows = np.searchsorted(steps, gaps["step"].to_numpy())
    order = np.argsort(ranks)
    columns = order[np.searchsorted(ranks[order], gaps["rank"].to_numpy())]
    gap_ns = np.zeros((len(steps), len(ranks)))
    is_known = np.append(steps, -1)[rows] == gaps["step"].to_numpy()
    np.add.at(gap_ns, (rows[is_known], columns[is_known]), gaps["gap_ns"].to_numpy()[is_known])
    window = phases.windows_of(trace.workers["process"].to_numpy(), steps[:, None])
    host_ns = np.where(window >= 0, phases.of("uninstrumented")[window], 0)
    return np.minimum(gap_ns, host_ns)


IS_COMPUTE: Final = np.array([name in COMPUTE_CATEGORIES for name in CATEGORIES])
BUCKET_COLUMNS: Final[dict[str, pl.DataType]] = {
    "bucket": pl.Int32(),
    "calls": pl.Int64(),  # of all ranks
    "bytes": pl.Float64(),  # median
    "hidden_ns": pl.Float64(),  # means of a call
    "wait_ns": pl.Float64(),
    "transfer_ns": pl.Float64(),
    "rank": pl.Int32(),  # of the call with most exposed, and when that was
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}


def overlap_of_buckets(trace: Trace, phases: Phases) -> pl.DataFrame:
    """Return a row a bucket, in order; empty where calls name none."""
    found: dict[int, _Bucket] = {}
    for grid in trace.calls:
        _add(found, grid, phases.pieces)
    rows = [found[number].row(number) for number in sorted(found)]
    return pl.DataFrame(rows, schema=BUCKET_COLUMNS, orient="row")


@dataclass(eq=False)
class _Bucket:
    """Sums over the calls of a bucket, and the call with most exposed."""

    sizes: list[tuple[Ints, Ints]]  # values, and how often each occurs
    spent_ns: Ints  # hidden, wait, transfer
    longest: tuple[int, ...]  # what is exposed of it, less its process, rank, start, end

    def row(self, number: int) -> tuple[Any, ...]:
        """Return it in `BUCKET_COLUMNS`."""
        sizes, count = (np.concatenate(part) for part in zip(*self.sizes, strict=True))
        calls = int(count.sum())
        known = np.repeat(sizes[sizes >= 0], count[sizes >= 0])
        nbytes = float(np.median(known)) if len(known) else None
        means = (ns / calls for ns in self.spent_ns.tolist())
        return number, calls, nbytes, *means, *self.longest[2:]


def _add(found: dict[int, _Bucket], grid: CallGrid, pieces: Segments) -> None:
    """Add the calls of a communicator that name a bucket, and that all came to."""
    shape, place = grid.start_ns.shape, {name: at for at, name in enumerate(pieces.processes)}
    counted = grid.completed & (grid.last_ns != NEVER)[:, None]
    counted &= (distinct(grid.bucket) != NULL) & np.isin(grid.processes, list(place))
    numbers = np.unique(distinct(grid.bucket))
    bucket = np.broadcast_to(np.searchsorted(numbers, distinct(grid.bucket)), shape)
    spent = np.zeros((len(numbers), 3), np.int64)
    longest: list[tuple[int, ...]] = [(-1, 0)] * len(numbers)
    columns = np.flatnonzero(counted.any(axis=0))
    for some in pieces.joined(place[process] for process in grid.processes[columns].tolist()):
        those, columns = np.split(columns, [len(some.processes)])
        owner, calls = np.nonzero(counted.T[those])
        cells = calls, those[owner]
        start, end, mine = grid.start_ns[cells], grid.end_ns[cells], bucket[cells]
        parts = _parts(some, owner, start, grid.last_ns[calls], end)
        spent += np.stack([np.bincount(mine, ns, len(numbers)) for ns in parts], 1).astype(np.int64)
        exposed = parts[1] + parts[2]
        most = np.full(len(numbers), -1)
        np.maximum.at(most, mine, exposed)
        for at in np.flatnonzero(most > [ns for ns, *_ in longest]).tolist():
            call = int(np.argmax((mine == at) & (exposed == most[at])))
            column = cells[1][call]
            where = int(grid.ranks[column]), int(start[call]), int(end[call])
            longest[at] = int(most[at]), -int(grid.processes[column]), *where
    for at, number in enumerate(numbers.tolist()):
        sizes = _sizes(grid.nbytes, counted & (bucket == at))
        if len(sizes[0]):
            one = found.setdefault(number, _Bucket([], np.zeros(3, np.int64), (-1, 0)))
            one.sizes.append(sizes)
            one.spent_ns += spent[at]
            # Of calls as long the one of the first process.
            one.longest = max(one.longest, longest[at], key=lambda found: found[:2])


def _sizes(nbytes: Ints, chosen: Flags) -> tuple[Ints, Ints]:
    """Return the sizes of some cells, and how often each occurs."""
    if not is_uniform(nbytes):
        values, often = np.unique(nbytes[chosen], return_counts=True)
        return values, often
    often = np.count_nonzero(chosen, axis=1)
    calls = np.flatnonzero(often)
    return nbytes[calls, 0], often[calls]


def _parts(
    pieces: JoinedPieces, owner: Ints, start: Ints, last: Ints, end: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return how long calls, each of a worker, were hidden, waited and transferred."""
    arrived = np.clip(last, start, end)
    moments = pieces.moved(np.stack([start, arrived, end]), owner)
    compute = pieces.spent_before(IS_COMPUTE, moments)
    early, delayed = np.rint(np.diff(compute, axis=0)).astype(np.int64)
    return early + delayed, arrived - start - early, end - arrived - delayed
