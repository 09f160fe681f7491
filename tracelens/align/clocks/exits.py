"""Aligns clocks by exits: when their hosts left the full collectives in which all took part.

No rank leaves a full collective before the last has arrived, so all leave at about the same time
however late one entered: exits tie clocks together, entries would absorb stragglers. Against a
virtual reference (the median clock), each clock gets a straight line fitted through medians of
blocks, and pieces where a line does not hold: one jump, or a slow wander.

Exits take a lasting lag of a host for an offset. Yet of a collective into which a host came last,
the rest is transfer and its own lag, both on its own clock: compared over the collectives of one
size, that tells the lags of hosts apart. It only widens the uncertainty, since a slow link would
look the same.

Times are nanoseconds, each clock's since its first exit; matrices are [collective, clock].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.align.clocks.lines import (
    BLOCK_COUNT,
    FAR_NS,
    MAX_DRIFT,
    MIN_POINTS_FOR_SLOPE,
    PLAUSIBLE_DRIFT,
    Line,
    fit_theil_sen,
)
from tracelens.model.calls import NEVER, distinct_columns, to_slice
from tracelens.model.clock_map import ClockMap, Correction
from tracelens.model.columns import FOREVER
from tracelens.schema.vocabulary import STATUSES

if TYPE_CHECKING:
    import polars as pl

    from tracelens.arrays import Flags, Floats, Indices, Ints
    from tracelens.model.calls import CallGrid
    from tracelens.model.trace import Trace

FIT_ROUNDS: Final = 3
MIN_EXITS_BESIDE_JUMP: Final = 8  # collectives: fewer on a side may be ranks that left late
MIN_COLLECTIVES: Final = 3
MAX_RATIO_TO_MEDIAN_SPREAD: Final = 3.0  # exits that are further apart did not synchronise
COLLECTIVES_PER_GATE_BLOCK: Final = 8  # show how far a clock is ahead for a while
MAD_TO_SIGMA: Final = 1.4826
MEDIAN_ERROR_RATIO: Final = 1.25  # a median's standard error over that of a mean
MIN_RATIO_OF_VISIBLE_DRIFT: Final = 5.0  # times the noise of a block
MIN_PIECE_NS: Final = 1_000.0  # a clock that leaves its line by less follows it
QUANTILE_OF_FAR_EXITS: Final = 0.9  # of how far single exits are from the lines beside a jump
MIN_RATIO_OF_CLEAR_JUMP: Final = 3.0  # times that distance
MIN_CLEARLY_LAST_NS: Final = 100_000.0  # more than lags can be
MIN_CALLS_FOR_LAG: Final = 8  # into which a host came last
STANDARD_ERRORS_OF_CERTAIN_LAG: Final = 3.0
QUANTILE_FOR_UNKNOWN_LAG: Final = 0.95  # of the known lags: assumed where nothing is known
MIN_UNCERTAINTY_NS: Final = 1_000.0  # no fit is more certain than this


def fit_exits(exits_ns: Floats) -> list[Correction] | None:
    """Fit each clock against the first, by exits in order of time, [collective, clock].

    Return a correction for each clock, or None where too few collectives synchronise.
    """
    aligned_ns = exits_ns.copy()
    lines = [Line()] * exits_ns.shape[1]
    for _ in range(FIT_ROUNDS):
        synchronised = _Synchronised.from_exits(aligned_ns)
        if len(synchronised.aligned_ns) < MIN_COLLECTIVES:
            return None
        more_lines = _fit_lines(synchronised)
        aligned_ns = np.stack(
            [
                clock_exits_ns - line.evaluate_ns(clock_exits_ns)
                for clock_exits_ns, line in zip(aligned_ns.T, more_lines, strict=True)
            ],
            axis=1,
        )
        lines = [line.then_corrected_by(more) for line, more in zip(lines, more_lines, strict=True)]
    synchronised = _Synchronised.from_exits(aligned_ns)
    block_exits_ns = np.array(
        [np.median(synchronised.aligned_ns[block], axis=0) for block in synchronised.rows_by_block]
    )
    residuals = [
        _follow_residual(synchronised, clock, clock_block_exits_ns)
        for clock, clock_block_exits_ns in enumerate(block_exits_ns.T)
    ]
    return [_correct_to_first(lines, residuals, clock) for clock in range(exits_ns.shape[1])]


class _Synchronised(NamedTuple):
    """Exits of the collectives that did synchronise.

    They are divided into blocks: `block_times_ns` are the median exits of the reference, [block], and
    `block_leads_ns` the medians of how far clocks are ahead of the reference, [block, clock].
    """

    aligned_ns: Floats
    reference_ns: Floats
    rows_by_block: list[Indices]
    block_times_ns: Floats
    block_leads_ns: Floats

    @classmethod
    def from_exits(cls, exits_ns: Floats) -> _Synchronised:
        """Take the median clock of exits, [collective, clock], as the reference; of two the first."""
        has_median = exits_ns.shape[1] > 2
        reference_ns = np.asarray(np.median(exits_ns, axis=1) if has_median else exits_ns[:, 0])
        rows = _find_synchronising(exits_ns, reference_ns)
        synced_ns, reference_ns = exits_ns[rows], reference_ns[rows]
        blocks = _split_into_blocks(len(synced_ns))
        times_ns = np.array([np.median(reference_ns[block]) for block in blocks])
        leads_ns = [
            np.median(synced_ns[block] - reference_ns[block, None], axis=0) for block in blocks
        ]
        return cls(
            aligned_ns=synced_ns,
            reference_ns=reference_ns,
            rows_by_block=blocks,
            block_times_ns=times_ns,
            block_leads_ns=np.array(leads_ns),
        )


def _split_into_blocks(count: int) -> list[Indices]:
    return np.array_split(np.arange(count), max(min(BLOCK_COUNT, count), 1))


def _find_synchronising(aligned_ns: Floats, reference_ns: Floats) -> Indices:
    """Return the collectives (rows) that did synchronise: their exits are as close as in others.

    `aligned_ns` are exits, [collective, clock], `reference_ns` those of the reference, [collective].

    The median lead of each clock is taken off by blocks first, so that a jump or a wandering clock is
    not mistaken for collectives that let ranks leave early.
    """
    leads_ns = aligned_ns - reference_ns[:, None]
    block_count = min(max(len(leads_ns) // COLLECTIVES_PER_GATE_BLOCK, 1), BLOCK_COUNT)
    for block in np.array_split(np.arange(len(leads_ns)), block_count):
        leads_ns[block] -= np.median(leads_ns[block], axis=0)
    low, high = np.quantile(leads_ns, [0.1, 0.9], axis=1)
    return np.flatnonzero(high - low <= MAX_RATIO_TO_MEDIAN_SPREAD * np.median(high - low))


def _fit_lines(exits: _Synchronised) -> list[Line]:
    """Fit a line to each clock; level ones where the run is too short for a drift to stand out."""
    times_ns, leads_ns = exits.block_times_ns, exits.block_leads_ns
    noise_ns = np.zeros(leads_ns.shape[1])
    if len(leads_ns) > 1:
        noise_ns = MAD_TO_SIGMA * np.median(np.abs(np.diff(leads_ns, axis=0)), axis=0) / np.sqrt(2)
    is_visible = np.ptp(times_ns) * PLAUSIBLE_DRIFT > MIN_RATIO_OF_VISIBLE_DRIFT * noise_ns
    median_leads_ns = np.median(leads_ns, axis=0)
    return [
        _fit_line(times_ns, leads_ns[:, clock])
        if is_visible[clock]
        else Line(float(median_leads_ns[clock]))
        for clock in range(leads_ns.shape[1])
    ]


def _fit_line(times_ns: Floats, leads_ns: Floats) -> Line:
    """Fit a line to leads, ns, [block]; if it is too steep for a clock, one by neighbours' slopes."""
    line = fit_theil_sen(times_ns, leads_ns)
    if abs(line.slope) <= MAX_DRIFT:
        return line
    gaps_ns = np.diff(times_ns)
    slopes_between = np.diff(leads_ns)[gaps_ns > 0] / gaps_ns[gaps_ns > 0]
    slope = float(np.median(slopes_between)) if len(slopes_between) else 0.0
    slope = slope if abs(slope) <= MAX_DRIFT else 0.0
    return Line(float(np.median(leads_ns - slope * times_ns)), slope)


def _follow_residual(exits: _Synchronised, clock: int, block_exits_ns: Floats) -> Correction:
    """Return the correction for what a clock's line leaves of its lead: nothing, a jump, or wander.

    Args:
        exits: Of all clocks.
        clock: Column of the clock.
        block_exits_ns: Its median exit in each block, [block].
    """
    times_ns = exits.aligned_ns[:, clock]
    leads_ns = times_ns - exits.reference_ns
    block_leads_ns, blocks = exits.block_leads_ns[:, clock], exits.rows_by_block
    centred_ns = leads_ns - np.median(leads_ns)
    if len(leads_ns) >= 4 * len(blocks):
        centred_ns = leads_ns - np.repeat(block_leads_ns, [len(block) for block in blocks])
    scatter_ns = MAD_TO_SIGMA * float(np.median(np.abs(centred_ns)))
    sigma_ns = MEDIAN_ERROR_RATIO * scatter_ns / float(np.sqrt(len(leads_ns) / len(blocks)))
    least_ns = max(6 * sigma_ns, MIN_PIECE_NS)
    if len(block_leads_ns) < MIN_POINTS_FOR_SLOPE or np.ptp(block_leads_ns) <= least_ns:
        return Correction(
            knot_times_ns=np.array([-FAR_NS, FAR_NS]),
            knot_values_ns=np.zeros(2),
            sigma_ns=sigma_ns,
            scatter_ns=scatter_ns,
        )
    near, correction = _find_blocks_near_jump(block_leads_ns), None
    if near:
        correction = _fit_jump(times_ns, leads_ns, np.concatenate(blocks[near]))
    if correction is None:
        correction = Correction(
            knot_times_ns=np.concatenate([[-FAR_NS], block_exits_ns, [FAR_NS]]),
            knot_values_ns=np.concatenate(
                [block_leads_ns[:1], block_leads_ns, block_leads_ns[-1:]]
            ),
        )
    return replace(correction, sigma_ns=sigma_ns, scatter_ns=scatter_ns)


def _correct_to_first(lines: list[Line], residuals: list[Correction], clock: int) -> Correction:
    """Return the correction that makes a clock the first one, which may jump and wander itself."""
    line, first_line = lines[clock], lines[0]
    residual, first_residual = residuals[clock], residuals[0]
    knots_ns = np.unique(np.concatenate([residual.knot_times_ns, first_residual.knot_times_ns]))
    beyond_first_ns = residual.evaluate_ns(knots_ns) - first_residual.evaluate_ns(knots_ns)
    times_ns = (knots_ns + line.intercept_ns) / (1 - line.slope)
    total_ns = line.evaluate_ns(times_ns) + beyond_first_ns - first_line.evaluate_ns(times_ns)
    total_ns = total_ns / (1 - first_line.slope) if clock else np.zeros_like(times_ns)
    jumps = tuple(
        ((time_ns + line.intercept_ns) / (1 - line.slope), height_ns)
        for time_ns, height_ns in residual.jump_times_and_heights_ns
    )
    return replace(
        residual, knot_times_ns=times_ns, knot_values_ns=total_ns, jump_times_and_heights_ns=jumps
    )


def _find_blocks_near_jump(levels_ns: Floats) -> slice | None:
    """Return the blocks around the one jump that explains most of how levels differ; None without one.

    `levels_ns` are leads, [block]. A jump within a block is half before its level, half after it.
    """
    changes = np.abs(np.diff(levels_ns))
    double_changes = changes[:-1] + changes[1:]
    range_ns, usual_change_ns = np.ptp(levels_ns), np.median(changes)
    if changes.max() > max(range_ns / 2, 8 * usual_change_ns):
        block_before_jump = int(changes.argmax())
        return slice(max(block_before_jump - 1, 0), block_before_jump + 3)
    if double_changes.max() > max(0.9 * range_ns, 16 * usual_change_ns):
        block_before_jump = int(double_changes.argmax())
        return slice(max(block_before_jump - 1, 0), block_before_jump + 4)
    return None


def _find_jump(leads_ns: Floats, near: Indices) -> int:
    """Return the first collective after the jump in leads, [collective]: where two levels fit best."""
    near_leads_ns = leads_ns[near]
    quarter = max(len(near_leads_ns) // 4, 1)
    level_before_ns = np.median(near_leads_ns[:quarter])
    level_after_ns = np.median(near_leads_ns[-quarter:])
    deviation_before = np.concatenate([[0.0], np.cumsum(np.abs(near_leads_ns - level_before_ns))])
    deviation_after = np.concatenate([[0.0], np.cumsum(np.abs(near_leads_ns - level_after_ns))])
    return int(near[0] + np.argmin(deviation_before + deviation_after[-1] - deviation_after))


def _fit_jump(times_ns: Floats, leads_ns: Floats, near: Indices) -> Correction | None:
    """Fit a line on each side of a jump in leads, [collective]; it is between two of those `near` it.

    None where it is not clearly higher than single exits scatter around these lines, or where a side has
    too few collectives to show a level.
    """
    first_after = min(max(_find_jump(leads_ns, near), 1), len(times_ns) - 1)
    if min(first_after, len(times_ns) - first_after) < MIN_EXITS_BESIDE_JUMP:
        return None
    sides = slice(None, first_after), slice(first_after, None)
    line_before, line_after = (_fit_side(times_ns[side], leads_ns[side]) for side in sides)
    jump_ns = (times_ns[first_after - 1] + times_ns[first_after]) / 2
    knots_ns = np.array([-FAR_NS, jump_ns - 0.5, jump_ns + 0.5, FAR_NS])  # within a nanosecond
    values_ns = np.concatenate(
        [line_before.evaluate_ns(knots_ns[:2]), line_after.evaluate_ns(knots_ns[2:])]
    )
    height_ns = float(values_ns[2] - values_ns[1])
    distances_ns = [
        leads_ns[side] - line.evaluate_ns(times_ns[side])
        for side, line in zip(sides, (line_before, line_after), strict=True)
    ]
    scatter_ns = float(np.quantile(np.abs(np.concatenate(distances_ns)), QUANTILE_OF_FAR_EXITS))
    if abs(height_ns) < max(MIN_RATIO_OF_CLEAR_JUMP * scatter_ns, MIN_PIECE_NS):
        return None
    return Correction(
        knot_times_ns=knots_ns,
        knot_values_ns=values_ns,
        jump_times_and_heights_ns=((float(jump_ns), height_ns),),
    )


def _fit_side(times_ns: Floats, leads_ns: Floats) -> Line:
    blocks = _split_into_blocks(len(times_ns))
    times = np.array([np.median(times_ns[block]) for block in blocks])
    return fit_theil_sen(times, np.array([np.median(leads_ns[block]) for block in blocks]))


@dataclass(frozen=True, eq=False)
class Lags:
    """Lag of each host beyond the usual one, and its standard error, [host], ns; nan where unknown."""

    lag_ns: Floats
    error_ns: Floats

    def bound_errors(self) -> Floats:
        """Measure how far each clock may be off against the first because of lags, [host], ns."""
        lag_ns = np.abs(self.lag_ns - self.lag_ns[0])
        margin_ns = STANDARD_ERRORS_OF_CERTAIN_LAG * np.hypot(self.error_ns, self.error_ns[0])
        is_certain = lag_ns > margin_ns
        if not is_certain.any():
            return np.zeros_like(lag_ns)
        assumed_ns = float(np.quantile(lag_ns[is_certain], QUANTILE_FOR_UNKNOWN_LAG))
        known_ns = np.where(is_certain, lag_ns + margin_ns, 0.0)
        return np.where(np.isnan(lag_ns), assumed_ns, known_ns)


def measure_lags(durations_ns: Floats, sizes_bytes: Ints) -> Lags:
    """Measure how much later than others each host leaves collectives into which it came last.

    Args:
        durations_ns: From a host's last arrival to its exit on its own clock, [collective, host].
        sizes_bytes: Bytes of each collective: only equal ones are compared.
    """
    host_count = durations_ns.shape[1]
    two_shortest_ns = np.partition(durations_ns, 1, axis=1)[:, :2]
    is_clear = two_shortest_ns[:, 1] - two_shortest_ns[:, 0] > MIN_CLEARLY_LAST_NS
    last_host, rest_ns = durations_ns.argmin(axis=1)[is_clear], two_shortest_ns[is_clear, 0]
    for size_bytes in np.unique(sizes_bytes[is_clear]):
        has_size = sizes_bytes[is_clear] == size_bytes
        rest_ns[has_size] -= np.median(rest_ns[has_size])
    lag_ns, error_ns = np.full((2, host_count), np.nan)
    for host in range(host_count):
        host_rest_ns = rest_ns[last_host == host]
        if len(host_rest_ns) >= MIN_CALLS_FOR_LAG:
            lag_ns[host] = np.median(host_rest_ns)
            mad_ns = np.median(np.abs(host_rest_ns - lag_ns[host]))
            error_ns[host] = MEDIAN_ERROR_RATIO * MAD_TO_SIGMA * mad_ns / np.sqrt(len(host_rest_ns))
    return Lags(lag_ns, error_ns)


def map_by_exits(trace: Trace, processes: pl.DataFrame) -> dict[int, ClockMap]:
    """Fit the clocks of the communicator that spans most of them; empty where none can be fitted.

    `processes` says for each process which clock it has. The first clock is the common one.
    """
    common_exits = _gather_exits(trace, processes)
    corrections = fit_exits(common_exits.exits_ns) if common_exits else None
    if common_exits is None or corrections is None:
        return {}
    bases_ns = common_exits.first_exits_ns.tolist()
    lag_errors_ns = measure_lags(
        common_exits.since_entry_ns, common_exits.sizes_bytes
    ).bound_errors()
    jumps_only = Correction(
        knot_times_ns=np.zeros(1),
        knot_values_ns=np.zeros(1),
        jump_times_and_heights_ns=corrections[0].jump_times_and_heights_ns,
    )
    first_map = ClockMap(
        base_ns=bases_ns[0],
        target_ns=bases_ns[0],
        correction=jumps_only if jumps_only.jump_times_and_heights_ns else None,
    )
    maps = {common_exits.clocks[0]: first_map}
    fits = zip(common_exits.clocks, bases_ns, corrections, lag_errors_ns, strict=True)
    for clock, base_ns, correction, lag_error_ns in list(fits)[1:]:
        # Exits take a lasting lag of a host for an offset: what is known of it bounds the error.
        errors_ns = (correction.sigma_ns, correction.scatter_ns, lag_error_ns, MIN_UNCERTAINTY_NS)
        maps[clock] = ClockMap(
            base_ns,
            target_ns=bases_ns[0],
            correction=correction,
            uncertainty_ns=round(max(errors_ns)),
        )
    return maps


def measure_scatter(clock_map: ClockMap) -> float:
    """Measure how far single exits scatter around the fit, ns."""
    return clock_map.correction.scatter_ns if clock_map.correction else 0.0


def shift_map(clock_map: ClockMap, bias_ns: float, uncertainty_ns: float) -> ClockMap:
    """Return the map without a bias that a sharper measurement found."""
    correction = clock_map.correction
    if correction is None:
        return clock_map
    shifted = replace(correction, knot_values_ns=correction.knot_values_ns + bias_ns)
    return replace(clock_map, correction=shifted, uncertainty_ns=round(uncertainty_ns))


class _CommonExits(NamedTuple):
    """Clocks, each one's first exit, exits since then and time since the last entry, and sizes."""

    clocks: list[int]
    first_exits_ns: Ints
    exits_ns: Floats
    since_entry_ns: Floats
    sizes_bytes: Ints  # [collective]


class _Exits(NamedTuple):
    """The full calls of a communicator by clock, all [call, clock]; not every clock takes part."""

    takes_part: Flags
    exit_ns: Ints  # the median of a clock's processes, rounded down
    fraction_ns: Floats  # what was rounded off
    entry_ns: Ints  # the last one of a clock's processes
    nbytes: Ints


def _gather_exits(trace: Trace, processes: pl.DataFrame) -> _CommonExits | None:
    """Return the exits of the collectives that the clocks of the widest one share; None for one clock.

    `processes` has one row per process.
    """
    clock_of = dict(processes.select("process", "clock").iter_rows())
    clock_count = int(processes["clock"].n_unique())
    all_exits: list[_Exits] = []
    for status in ("closed", "estimated"):  # calls matched by their order scatter, but still tell
        status_code = STATUSES.index(status)
        all_exits = [_read_exits(grid, clock_of, clock_count, status_code) for grid in trace.calls]
        all_exits = [exits for exits in all_exits if exits.takes_part.any()]
        if all_exits:
            break
    members = _find_widest(all_exits)
    if len(members) < 2:
        return None
    columns = to_slice(np.array(members))
    common_calls = [
        to_slice(np.flatnonzero(exits.takes_part[:, columns].all(axis=1))) for exits in all_exits
    ]
    exit_ns, fraction_ns, entry_ns, nbytes = (
        np.concatenate(
            [
                cells[call_rows][:, columns]
                for cells, call_rows in zip(matrices, common_calls, strict=True)
            ]
        )
        for matrices in list(zip(*all_exits, strict=True))[1:]
    )
    order = np.argsort(exit_ns[:, 0])
    bases_ns = exit_ns.min(axis=0)
    return _CommonExits(
        clocks=members,
        first_exits_ns=bases_ns,
        exits_ns=((exit_ns - bases_ns) + fraction_ns)[order],
        since_entry_ns=(exit_ns - entry_ns)[order].astype(float),
        sizes_bytes=nbytes[order, 0],
    )


def _find_widest(grids: list[_Exits]) -> list[int]:
    """Return the clocks of the collective that most clocks took part in; of several the first."""
    widest = [grid.takes_part[int(grid.takes_part.sum(axis=1).argmax())] for grid in grids]
    return np.flatnonzero(max(widest, key=np.count_nonzero)).tolist() if widest else []


def _read_exits(grid: CallGrid, clock_of: dict[int, int], clock_count: int, status: int) -> _Exits:
    """Return the exits of a communicator's full calls that have a status (number in `STATUSES`)."""
    full_calls = grid.take_calls(np.flatnonzero(grid.is_synchronised))
    shape = (full_calls.call_count, clock_count)
    is_there, fraction_ns = np.zeros(shape, np.bool_), np.zeros(shape)
    exit_ns, entry_ns, nbytes = np.zeros((3, *shape), np.int64)
    column_clocks = np.array([clock_of.get(process, -1) for process in grid.processes.tolist()])
    present, counts = np.unique(column_clocks[column_clocks >= 0], return_counts=True)
    for count in np.unique(counts).tolist():  # clocks of equally many processes go together
        clocks = present[counts == count]
        columns = np.array([np.flatnonzero(column_clocks == clock) for clock in clocks.tolist()])
        for call_range, block in full_calls.split_into_blocks():
            has_status = distinct_columns(block.status) == status
            is_over = (block.is_made & (block.end_ns != FOREVER) & has_status)[:, columns]
            ends_ns = np.where(is_over, block.end_ns[:, columns], FOREVER)
            first_exit_ns, median_after_first_ns = _find_median_exits(ends_ns, is_over)
            # Differences from the first exit are small, so that their median is exact.
            whole_ns = np.floor(median_after_first_ns)
            cells = call_range, clocks
            is_there[cells] = is_over.any(axis=-1)
            exit_ns[cells] = first_exit_ns + whole_ns.astype(np.int64)
            fraction_ns[cells] = median_after_first_ns - whole_ns
            entry_ns[cells] = np.where(is_over, block.start_ns[:, columns], NEVER).max(axis=-1)
            nbytes[cells] = np.where(is_over, block.nbytes[:, columns], 0).max(axis=-1, initial=0)
    return _Exits(is_there, exit_ns, fraction_ns, entry_ns, nbytes)


def _find_median_exits(ends_ns: Ints, is_over: Flags) -> tuple[Ints, Floats]:
    """Return each clock's first exit, and by how much the median one is later, [call, clock].

    Both arguments are [call, clock, process of the clock].
    """
    ordered_ns, process_count = np.sort(ends_ns, axis=-1), is_over.sum(axis=-1)[..., None]
    low_ns, high_ns = (
        np.take_along_axis(ordered_ns, index, -1) - ordered_ns[..., :1]
        for index in (np.maximum(process_count - 1, 0) // 2, process_count // 2)
    )
    return ordered_ns[..., 0], ((low_ns + high_ns) / 2)[..., 0]
