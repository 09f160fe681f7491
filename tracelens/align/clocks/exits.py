"""Aligns clocks by exits: when their hosts left the full collectives in which all took part.

No rank leaves a full collective before the last has arrived, so all leave at about the same time
however late one entered: exits tie clocks together, entries would absorb stragglers. Against a
virtual reference (the median clock), each clock gets a straight line fitted through medians of
blocks, and pieces where a line does not hold: one jump, or a slow wander.

Exits take a lasting lag of a host for an offset. Yet of a collective into which a host came last,
the rest is transfer and its own lag, both on its own clock: compared over the collectives of one
size, that tells the lags of hosts apart. It only widens the uncertainty, since a slow link would
look the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.align.clocks.maps import (
    BLOCKS,
    FAR,
    MIN_FOR_SLOPE,
    MOST_DRIFT,
    PLAUSIBLE_DRIFT,
    ClockMap,
    Correction,
    Line,
    theil_sen,
)
from tracelens.model.calls import NEVER, distinct, stretch
from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import STATUSES

if TYPE_CHECKING:
    import polars as pl

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

ROUNDS: Final = 3
GATE: Final = 3.0
GATE_BLOCK: Final = 8  # collectives that say what a clock shows for a while
MAD_TO_SIGMA: Final = 1.4826
SMALLEST_PIECE_NS: Final = 1_000.0
FAR_EXIT: Final = 0.9  # quantile of how far single exits are from the lines beside a jump
MIN_EXITS_BESIDE_JUMP: Final = 8  # collectives: fewer on a side may be ranks that left late
CLEAR_JUMP: Final = 3.0  # times as high as that is a jump
MIN_COLLECTIVES: Final = 3
VISIBLE: Final = 5.0
CLEARLY_LAST_NS: Final = 100_000.0  # more than lags can be
FEWEST: Final = 8  # collectives into which a host came last
CERTAIN: Final = 3.0  # standard errors
UNKNOWN_QUANTILE: Final = 0.95  # of the known lags: what is assumed where nothing is known
_MEDIAN: Final = 1.25 * 1.4826
SMALLEST_NS: Final = 1_000.0  # no fit is more certain than this


def fit_exits(exits: Floats) -> list[Correction] | None:
    """Fit each clock against the first; `exits` is [collective, clock], in order of time.

    Null where too few collectives remain.
    """
    aligned = exits.copy()
    lines = [Line()] * exits.shape[1]
    for _ in range(ROUNDS):
        reference = _reference(aligned)
        kept = _gate(aligned, reference)
        if len(kept) < MIN_COLLECTIVES:
            return None
        x, y, _ = _blocks(aligned[kept], reference[kept])
        found = _lines(x, y)
        aligned = np.stack(
            [aligned[:, clock] - line.at(aligned[:, clock]) for clock, line in enumerate(found)], 1
        )
        lines = [line.corrected_by(more) for line, more in zip(lines, found, strict=True)]
    reference = _reference(aligned)
    kept = _gate(aligned, reference)
    synchronised = _Synchronised.of(aligned[kept], reference[kept])
    left = [_residual_of(synchronised, clock) for clock in range(exits.shape[1])]
    return [_against_first(lines, left, clock) for clock in range(exits.shape[1])]


def _lines(x: Floats, y: Floats) -> list[Line]:
    """Fit a line to each column; level ones where the run is too short for a drift to stand out."""
    noise = np.zeros(y.shape[1])
    if len(y) > 1:
        noise = MAD_TO_SIGMA * np.median(np.abs(np.diff(y, axis=0)), axis=0) / np.sqrt(2)
    visible = np.ptp(x) * PLAUSIBLE_DRIFT > VISIBLE * noise
    level = np.median(y, axis=0)
    return [
        _line(x, y[:, clock]) if visible[clock] else Line(float(level[clock]))
        for clock in range(y.shape[1])
    ]


def _line(x: Floats, y: Floats) -> Line:
    """Fit a line; where no clock drifts so fast, one jumps, of which few neighbours know."""
    line = theil_sen(x, y)
    if abs(line.slope) <= MOST_DRIFT:
        return line
    apart = np.diff(x) > 0
    slope = float(np.median(np.diff(y)[apart] / np.diff(x)[apart])) if apart.any() else 0.0
    slope = slope if abs(slope) <= MOST_DRIFT else 0.0
    return Line(float(np.median(y - slope * x)), slope)


def _reference(aligned: Floats) -> Floats:
    """Return the virtual clock: the median one; of two, the first, as neither is known to be right."""
    return np.asarray(np.median(aligned, axis=1) if aligned.shape[1] > 2 else aligned[:, 0])


def _gate(aligned: Floats, reference: Floats) -> Indices:
    """Choose collectives that did synchronise: their exits are as close together as in others.

    What a clock lastingly shows more than the reference is taken off by blocks first, so that a jump
    or a wandering clock is not mistaken for collectives that let ranks leave early.
    """
    rest = aligned - reference[:, None]
    blocks = min(max(len(rest) // GATE_BLOCK, 1), BLOCKS)
    for part in np.array_split(np.arange(len(rest)), blocks):
        rest[part] -= np.median(rest[part], axis=0)
    low, high = np.quantile(rest, [0.1, 0.9], axis=1)
    spread = high - low
    return np.flatnonzero(spread <= GATE * np.median(spread))


def _blocks(aligned: Floats, reference: Floats) -> tuple[Floats, Floats, list[Indices]]:
    """Return each block's median time and the clocks' median differences, and its collectives."""
    parts = np.array_split(np.arange(len(aligned)), min(BLOCKS, len(aligned)))
    x = np.array([np.median(reference[part]) for part in parts])
    y = np.array([np.median(aligned[part] - reference[part, None], axis=0) for part in parts])
    return x, y, parts


@dataclass(frozen=True, eq=False)
class _Residual:
    """What a clock's line leaves, at aligned times; jumps are (time, height)."""

    knots_s: Floats
    knots: Floats
    sigma: float
    spread: float
    jumps: tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class _Synchronised:
    """Exits of collectives that did synchronise, [collective, clock].

    By block, `levels` are the medians of what clocks show more than the reference, `middles` of exits.
    """

    aligned: Floats
    reference: Floats
    levels: Floats
    middles: Floats
    parts: list[Indices]

    @classmethod
    def of(cls, aligned: Floats, reference: Floats) -> _Synchronised:
        _, levels, parts = _blocks(aligned, reference)
        middles = np.array([np.median(aligned[part], axis=0) for part in parts])
        return cls(aligned, reference, levels, middles, parts)


def _residual_of(kept: _Synchronised, clock: int) -> _Residual:
    """Follow what a clock's line leaves against the reference: nothing, a jump, or wander."""
    rest = kept.aligned[:, clock] - kept.reference
    own, parts = kept.levels[:, clock], kept.parts
    spread = _scatter(rest, own, parts)
    sigma = 1.25 * spread / float(np.sqrt(len(rest) / len(parts)))
    knots_s, knots = np.array([-FAR, FAR]), np.zeros(2)
    jumps: tuple[tuple[float, float], ...] = ()
    if len(own) >= MIN_FOR_SLOPE and np.ptp(own) > max(6 * sigma, SMALLEST_PIECE_NS):
        knots_s, knots, jumps = _pieces(
            kept.aligned[:, clock], kept.middles[:, clock], rest, own, parts
        )
    return _Residual(knots_s, knots, sigma, spread, jumps)


def _against_first(lines: list[Line], left: list[_Residual], clock: int) -> Correction:
    """Return what to take off a clock to make it the first one, which may jump and wander itself."""
    line, first = lines[clock], lines[0]
    own, firsts = left[clock], left[0]
    knots_s = np.unique(np.concatenate([own.knots_s, firsts.knots_s]))
    apart = np.interp(knots_s, own.knots_s, own.knots) - np.interp(
        knots_s, firsts.knots_s, firsts.knots
    )
    t = (knots_s + line.intercept) / (1 - line.slope)
    total = (line.at(t) + apart - first.at(t)) / (1 - first.slope)
    if clock == 0:
        total = np.zeros_like(t)
    found = tuple(((at + line.intercept) / (1 - line.slope), height) for at, height in own.jumps)
    return Correction(t, total, own.sigma, own.spread, found)


def _scatter(rest: Floats, levels: Floats, parts: list[Indices]) -> float:
    """Return how far single exits are from their block's level, as a standard deviation."""
    if len(rest) < 4 * len(parts):
        return MAD_TO_SIGMA * float(np.median(np.abs(rest - np.median(rest))))
    within = np.concatenate([rest[part] - level for part, level in zip(parts, levels, strict=True)])
    return MAD_TO_SIGMA * float(np.median(np.abs(within)))


def _pieces(
    t: Floats, middle: Floats, rest: Floats, levels: Floats, parts: list[Indices]
) -> tuple[Floats, Floats, tuple[tuple[float, float], ...]]:
    """Return knots for what is left of a clock: one jump, if it is one, else wander."""
    steps = np.abs(np.diff(levels))
    at = int(steps.argmax())
    both = steps[:-1] + steps[1:]  # a jump within a block is half before its level, half after it
    around = int(both.argmax())
    jump = None
    if steps[at] > np.ptp(levels) / 2 and steps[at] > 8 * np.median(steps):
        jump = _jump(t, rest, np.concatenate(parts[max(at - 1, 0) : at + 3]))
    elif both[around] > 0.9 * np.ptp(levels) and both[around] > 16 * np.median(steps):
        jump = _jump(t, rest, np.concatenate(parts[max(around - 1, 0) : around + 4]))
    return jump or (
        np.concatenate([[-FAR], middle, [FAR]]),
        np.concatenate([levels[:1], levels, levels[-1:]]),
        (),
    )


def _split(rest: Floats, near: Indices) -> int:
    """Return the first collective after the jump: where two levels fit best, by absolute deviation."""
    part = rest[near]
    side = max(len(part) // 4, 1)
    low, high = np.median(part[:side]), np.median(part[-side:])
    before = np.concatenate([[0.0], np.cumsum(np.abs(part - low))])
    after = np.concatenate([[0.0], np.cumsum(np.abs(part - high))])
    return int(near[0] + np.argmin(before + after[-1] - after))


def _jump(
    t: Floats, rest: Floats, near: Indices
) -> tuple[Floats, Floats, tuple[tuple[float, float], ...]] | None:
    """Fit a line on each side; the jump itself lies between two of the collectives `near` it.

    None where it is not clearly higher than single exits scatter around these lines, or where a side has
    too few collectives to show a level.
    """
    split = min(max(_split(rest, near), 1), len(t) - 1)
    if min(split, len(t) - split) < MIN_EXITS_BESIDE_JUMP:
        return None
    left, right = _line_of_side(t[:split], rest[:split]), _line_of_side(t[split:], rest[split:])
    at = (t[split - 1] + t[split]) / 2
    knots_s = np.array([-FAR, at - 0.5, at + 0.5, FAR])  # within a nanosecond
    knots = np.concatenate([left.at(knots_s[:2]), right.at(knots_s[2:])])
    height = float(knots[2] - knots[1])
    apart = np.concatenate([rest[:split] - left.at(t[:split]), rest[split:] - right.at(t[split:])])
    scatter = float(np.quantile(np.abs(apart), FAR_EXIT))
    if abs(height) < max(CLEAR_JUMP * scatter, SMALLEST_PIECE_NS):
        return None
    return knots_s, knots, ((float(at), height),)


def _line_of_side(t: Floats, rest: Floats) -> Line:
    parts = np.array_split(np.arange(len(t)), min(BLOCKS, len(t)))
    x = np.array([np.median(t[part]) for part in parts])
    return theil_sen(x, np.array([np.median(rest[part]) for part in parts]))


@dataclass(frozen=True, eq=False)
class Lags:
    """Lag of each host beyond the usual one, and its standard error; nan where unknown."""

    lag: Floats
    error: Floats

    def uncertainty(self) -> Floats:
        """Return how far each clock may be off against the first because of lags, nanoseconds."""
        apart = np.abs(self.lag - self.lag[0])
        error = np.hypot(self.error, self.error[0])
        certain = apart > CERTAIN * error
        if not certain.any():
            return np.zeros_like(apart)
        usual = float(np.quantile(apart[certain], UNKNOWN_QUANTILE))
        return np.where(np.isnan(apart), usual, np.where(certain, apart + CERTAIN * error, 0.0))


def lags(lasted: Floats, sizes: Ints) -> Lags:
    """Measure lags.

    Args:
        lasted: From a host's last arrival to its exit on its own clock, [collective, host].
        sizes: Of each collective: only equal ones are compared.
    """
    hosts = lasted.shape[1]
    shortest = np.partition(lasted, 1, axis=1)[:, :2]
    clear = shortest[:, 1] - shortest[:, 0] > CLEARLY_LAST_NS
    last, rest = lasted.argmin(axis=1)[clear], shortest[clear, 0]
    for size in np.unique(sizes[clear]):
        same = sizes[clear] == size
        rest[same] -= np.median(rest[same])
    lag, error = np.full((2, hosts), np.nan)
    for host in range(hosts):
        mine = rest[last == host]
        if len(mine) >= FEWEST:
            lag[host] = np.median(mine)
            error[host] = _MEDIAN * np.median(np.abs(mine - lag[host])) / np.sqrt(len(mine))
    return Lags(lag, error)


def from_exits(trace: Trace, clocks: pl.DataFrame) -> dict[int, ClockMap]:
    """Fit the clocks of the communicator that spans most of them; empty where none can be fitted.

    `clocks` says for each process which clock it has. The first clock is the common one.
    """
    found = _exits(trace, clocks)
    if found is None:
        return {}
    corrections = fit_exits(found.exits)
    if corrections is None:
        return {}
    members, bases = found.members, found.bases
    uncertainty = lags(found.lasted, found.sizes).uncertainty() if len(members) > 1 else np.zeros(1)
    jumps = Correction(np.zeros(1), np.zeros(1), jumps=corrections[0].jumps)
    maps = {members[0]: ClockMap(int(bases[0]), int(bases[0]), jumps if jumps.jumps else None)}
    fitted = list(zip(members, bases, corrections, uncertainty, strict=True))
    for member, base, correction, lag in fitted[1:]:
        # Exits take a lasting lag of a host for an offset: what is known of it bounds the error.
        uncertainty_ns = round(max(correction.sigma, correction.spread, lag, SMALLEST_NS))
        maps[member] = ClockMap(int(base), int(bases[0]), correction, uncertainty_ns)
    return maps


def spread_of(found: ClockMap) -> float:
    """Return how far single exits scatter around the fit."""
    return found.correction.spread if found.correction else 0.0


def shifted(found: ClockMap, by: float, uncertainty: float) -> ClockMap:
    """Move a clock by a bias that a sharper measurement found."""
    if found.correction is None:
        return found
    correction = replace(found.correction, knots=found.correction.knots + by)
    return replace(found, correction=correction, uncertainty_ns=round(uncertainty))


@dataclass(frozen=True, eq=False)
class _Exits:
    """Clocks, where each begins to count, exits and time since the last entry, [collective, clock]."""

    members: list[int]
    bases: Ints
    exits: Floats
    lasted: Floats
    sizes: Ints


@dataclass(frozen=True, eq=False)
class _Ends:
    """The full calls of a communicator by clock: [call, clock], nanoseconds; `there` says which are."""

    uid: str
    seq: Ints
    there: Flags
    ends: Ints  # the median of a clock's processes, rounded down
    fraction: Floats  # what was rounded off
    entered: Ints
    nbytes: Ints


def _exits(trace: Trace, clocks: pl.DataFrame) -> _Exits | None:
    """Return the time at which each common collective was left, by each clock."""
    clock_of = dict(clocks.select("process", "clock").iter_rows())
    count = int(clocks["clock"].n_unique())
    found = _ends(trace, clock_of, count, "closed")
    if not found:  # calls matched by their order still tell, by how little they scatter
        found = _ends(trace, clock_of, count, "estimated")
    members = _widest(found)
    if len(members) < 2:
        return None
    columns = stretch(np.array(members))
    parts = [(ends, stretch(np.flatnonzero(ends.there[:, columns].all(axis=1)))) for ends in found]

    def cells(name: str) -> Ints:
        return np.concatenate([getattr(ends, name)[rows][:, columns] for ends, rows in parts])

    times, entered, sizes, fraction = map(cells, ("ends", "entered", "nbytes", "fraction"))
    order = np.argsort(times[:, 0])
    bases = times.min(axis=0)
    exits = ((times - bases) + fraction)[order]
    return _Exits(members, bases, exits, (times - entered)[order].astype(float), sizes[order, 0])


def _widest(found: list[_Ends]) -> list[int]:
    """Return the clocks of the collective that most clocks took part in; of several the first."""
    width, members = 0, []
    for ends in found:
        widths = ends.there.sum(axis=1)
        first = int(widths.argmax())
        if widths[first] > width:
            width, members = int(widths[first]), np.flatnonzero(ends.there[first]).tolist()
    return members


def _ends(trace: Trace, clock_of: dict[int, int], count: int, status: str) -> list[_Ends]:
    """Return the full collectives of a status by clock: their last entries and median exits."""
    found = [_by_clock(grid, clock_of, count, STATUSES.index(status)) for grid in trace.calls]
    return [ends for ends in found if ends.there.any()]


def _by_clock(grid: CallGrid, clock_of: dict[int, int], count: int, status: int) -> _Ends:
    full = grid.taken(np.flatnonzero(grid.is_full))
    shape = (full.height, count)
    there, fraction = np.zeros(shape, np.bool_), np.zeros(shape)
    ends, entered, nbytes = np.zeros((3, *shape), np.int64)
    clocks = np.array([clock_of.get(process, -1) for process in grid.processes.tolist()])
    known, sizes = np.unique(clocks[clocks >= 0], return_counts=True)
    for size in np.unique(sizes).tolist():  # clocks of equally many processes go together
        alike = known[sizes == size]
        columns = np.array([np.flatnonzero(clocks == clock) for clock in alike.tolist()])
        for calls, some in full.blocks():
            closed = some.there & (some.end_ns != FOREVER) & (distinct(some.status) == status)
            closed = closed[:, columns]
            first, later = _median_exit(np.where(closed, some.end_ns[:, columns], FOREVER), closed)
            # Differences from the first exit are small, so that their median is exact.
            down = np.floor(later)
            cells = calls, alike
            there[cells] = closed.any(axis=-1)
            ends[cells], fraction[cells] = first + down.astype(np.int64), later - down
            entered[cells] = np.where(closed, some.start_ns[:, columns], NEVER).max(axis=-1)
            nbytes[cells] = np.where(closed, some.nbytes[:, columns], 0).max(axis=-1, initial=0)
    return _Ends(grid.uid, full.seq, there, ends, fraction, entered, nbytes)


def _median_exit(ends: Ints, closed: Flags) -> tuple[Ints, Floats]:
    """Return the first exit of each clock, and by how much the median one is later, [call, clock]."""
    ordered, count = np.sort(ends, axis=-1), closed.sum(axis=-1)[..., None]
    low, high = (
        np.take_along_axis(ordered, place, -1) - ordered[..., :1]
        for place in (np.maximum(count - 1, 0) // 2, count // 2)
    )
    return ordered[..., 0], ((low + high) / 2)[..., 0]
