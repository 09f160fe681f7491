"""What a timeline has room for: windows of time, the pixel grid they snap to, rows for lanes.

Rows go from top to bottom: pinned ranks, all workers, devices' streams, shards. Below the row of an
opened process there is room for its tracks. Workers may be gathered into groups with a row each; below
the row of an opened group are those of its workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracelens.arrays import Ints
    from tracelens.lod.lanes import Lanes


SMALLEST_NS: Final = 1_000
OVERSCAN: Final = 0.35  # of the window's width, drawn on either side: a drag shows no blank margin
PINNED_PX: Final = 24
TALLEST_PX: Final = 40
GAP_PX: Final = 2  # between rows that are tall enough to be distinguished
GAP_FROM_PX: Final = 6
BETWEEN_SECTIONS_PX: Final = 14
WORKERS_PX: Final = 512
STREAMS_PX: Final = 384
SHARDS_PX: Final = 192
MAX_PINNED: Final = 12
TRACK_PX: Final = 20  # of a lane of an opened process: its spans' names can be read
TALLEST_TRACK_PX: Final = 28  # where the window has room
LOW_TRACK_PX: Final = 9
OPENED_PX: Final = 26  # of the row above them
MANY_TRACKS: Final = 32  # lanes that are so low
BETWEEN_TRACKS_PX: Final = 4
BESIDE_GROUP_PX: Final = 6
LEAST_ROW_PX, MOST_ROW_PX = 3, 80  # that one can ask for
TALLEST_PLAN_PX: Final = 6000  # that one can scroll through


@dataclass(frozen=True)
class Window:
    """What is looked at: [start_ns, end_ns)."""

    start_ns: int
    end_ns: int

    @property
    def width_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    def shift(self, offset_ns: int) -> Window:
        """Return it later by an offset; the run's start makes times since then absolute."""
        return Window(self.start_ns + offset_ns, self.end_ns + offset_ns)

    def widen(self, margin_ns: int) -> Window:
        """Return it with a margin on either side."""
        return Window(self.start_ns - margin_ns, self.end_ns + margin_ns)

    def clamp(self, outer: Window) -> Window:
        """Fit the window into `outer`, at least a microsecond wide, keeping its width where possible."""
        width_ns = min(max(self.width_ns, SMALLEST_NS), max(outer.width_ns, SMALLEST_NS))
        start_ns = max(outer.start_ns, min(self.start_ns, outer.end_ns - width_ns))
        return Window(start_ns, start_ns + width_ns)


@dataclass(frozen=True)
class Grid:
    """Pixel columns, each `column_ns` wide, one after the other from `start_ns` on."""

    start_ns: int
    column_ns: int
    column_count: int

    @property
    def end_ns(self) -> int:
        """Where the last column ends."""
        return self.start_ns + self.column_count * self.column_ns

    @property
    def window(self) -> Window:
        """What they cover."""
        return Window(self.start_ns, self.end_ns)


def snap_to_grid(window: Window, run_window: Window, columns: int) -> Grid:
    """Cover a window with `columns` columns, and `OVERSCAN` of it on each side with more.

    Columns start at multiples of their width: a span keeps its pixels while one pans, so that
    nothing shimmers. The grid ends where the run ends.
    """
    column_ns = max(1, -(-window.width_ns // columns))
    overscan_ns = int(window.width_ns * OVERSCAN)
    start_ns = max(window.start_ns - overscan_ns, run_window.start_ns) // column_ns * column_ns
    end_ns = -(-min(window.end_ns + overscan_ns, run_window.end_ns) // column_ns) * column_ns
    return Grid(start_ns, column_ns, max(1, (end_ns - start_ns) // column_ns))


Section = Literal["pinned", "groups", "workers", "streams", "shards", "tracks"]


class RowGroup(NamedTuple):
    """The lanes of gathered workers, such as those of a host; `address_key`: what addresses call it."""

    address_key: str
    name: str
    lane_indices: tuple[int, ...]
    is_opened: bool = False


@dataclass(frozen=True)
class Band:
    """A strip of pixels, `height_px` from `top_px` on, and the lanes that share it.

    `group` is set where it is the row of a group: of an opened one in the section ``groups``, of a
    closed one, which represents its workers, in theirs.
    """

    section: Section
    top_px: int
    height_px: int
    lane_indices: tuple[int, ...]
    group: RowGroup | None = None

    @property
    def middle_px(self) -> float:
        """Where its label is drawn."""
        return self.top_px + self.height_px / 2


@dataclass(frozen=True)
class Plan:
    """All bands, from `top_px` down to `bottom_px`, and where the tracks of lanes begin."""

    bands: tuple[Band, ...]
    bottom_px: int
    top_px: int = 0
    track_top_px_by_lane: Mapping[int, int] = field(default_factory=dict)

    def find_band(self, y_px: float) -> Band | None:
        """Return the band at a height; None between bands."""
        at_height = (
            band for band in self.bands if band.top_px <= y_px < band.top_px + band.height_px
        )
        return next(at_height, None)

    def select_section(self, name: Section) -> tuple[Band, ...]:
        """Return the bands of one section."""
        return tuple(band for band in self.bands if band.section == name)


def plan_rows(
    lanes: Lanes,
    pinned: Sequence[int] = (),
    order: Sequence[int] | None = None,
    *,
    groups: Sequence[RowGroup] = (),
    track_px_by_lane: Mapping[int, int] | None = None,
    room_px: int = 0,
    row_px: int | None = None,
) -> Plan:
    """Assign a band to every lane.

    Args:
        lanes: All lanes.
        pinned: Lanes that stand above the others, too.
        order: The workers' lanes, in the order that is asked for.
        groups: Into which the workers are gathered, in the order of rows; none = each for itself.
        track_px_by_lane: Lanes that are opened, and how many pixels their tracks take below them.
        room_px: The height of the window; workers get what the others leave of it, or `WORKERS_PX`.
        row_px: The height of a row that is asked for; None: as there is room.
    """
    workers = [row for row, lane in enumerate(lanes.owners) if lane.role == "worker"]
    track_px_by_lane = track_px_by_lane or {}
    opened_processes = {lanes.owners[row].process for row in track_px_by_lane}
    streams = [  # of opened processes, they are among the tracks
        row
        for row, lane in enumerate(lanes.owners)
        if lane.role == "device" and lane.process not in opened_processes
    ]
    shards = [row for row, lane in enumerate(lanes.owners) if lane.role == "ps"]
    stack = _Stack(track_px_by_lane, row_px)
    stack.add("pinned", list(pinned)[:MAX_PINNED], PINNED_PX * MAX_PINNED)
    other_px = sum(track_px_by_lane.values()) + stack.next_top_px
    worker_room_px = max(WORKERS_PX, room_px - other_px)
    if groups:
        stack.add_groups(groups, worker_room_px)
    else:
        stack.add("workers", list(order or workers), worker_room_px)
    stack.add("streams", streams, STREAMS_PX)
    stack.add("shards", shards, SHARDS_PX)
    return Plan(
        tuple(stack.bands), max(stack.next_top_px, 1), track_top_px_by_lane=stack.track_top_by_lane
    )


def plan_tracks(lanes: Lanes, top_px: int = 0, row_px: int | None = None) -> Plan:
    """Assign a band to each lane of an opened process, from `top_px` on."""
    pitch_px = row_px or (LOW_TRACK_PX if len(lanes) > MANY_TRACKS else TRACK_PX)
    bands: list[Band] = []
    next_top_px = top_px + BESIDE_GROUP_PX
    for index, lane in enumerate(lanes.owners):
        next_top_px += BETWEEN_TRACKS_PX if bands and not lane.depth_in_track else 0
        bands.append(Band("tracks", next_top_px, max(1, pitch_px - 1), (index,)))
        next_top_px += pitch_px
    return Plan(tuple(bands), next_top_px + BESIDE_GROUP_PX, top_px)


class _Stack:
    """Bands, added section by section, one below the other."""

    def __init__(self, track_px_by_lane: Mapping[int, int], row_px: int | None) -> None:
        self.bands: list[Band] = []
        self.track_top_by_lane: dict[int, int] = {}
        self.next_top_px = 0
        self._track_px_by_lane = track_px_by_lane
        self._row_px = row_px

    def add(self, section: Section, lanes: list[int], room_px: int) -> None:
        """Append one section's bands."""
        if not lanes:
            return
        self._begin()
        tallest_px = PINNED_PX if section == "pinned" else TALLEST_PX
        pitch_px, max_rows = self._find_pitch(len(lanes), room_px, tallest_px)
        self._add_rows(section, lanes, pitch_px, max_rows)

    def add_groups(self, groups: Sequence[RowGroup], room_px: int) -> None:
        """Append a band for each group, and below that of an opened one those of its workers."""
        self._begin()
        row_count = sum(1 + len(group.lane_indices) * group.is_opened for group in groups)
        pitch_px, max_rows = self._find_pitch(row_count, room_px, TALLEST_PX)
        for group in groups:
            section: Section = "groups" if group.is_opened else "workers"
            group_pitch_px = max(pitch_px, TRACK_PX) if group.is_opened else pitch_px
            self._append(section, group.lane_indices, group_pitch_px, group)
            if group.is_opened:
                self._add_rows("workers", list(group.lane_indices), pitch_px, max_rows)

    def _begin(self) -> None:
        self.next_top_px += BETWEEN_SECTIONS_PX if self.bands else 0

    def _find_pitch(self, count: int, room_px: int, tallest_px: int) -> tuple[int, int]:
        """Return the height of each of `count` rows, pixels, and the most rows that fit."""
        if self._row_px:
            return self._row_px, max(room_px, TALLEST_PLAN_PX) // self._row_px
        pitch_px = max(1, min(tallest_px, room_px // count))
        return pitch_px, max(1, room_px // pitch_px)

    def _add_rows(self, section: Section, lanes: list[int], pitch_px: int, max_rows: int) -> None:
        for lanes_of_row in np.array_split(np.array(lanes), min(len(lanes), max_rows)):
            for band in self._split_at_opened(lanes_of_row.tolist()):
                self._add_band(section, band, pitch_px)

    def _split_at_opened(self, group: list[int]) -> Iterator[tuple[int, ...]]:
        """Give each opened lane a band of its own."""
        closed: list[int] = []
        for lane in group:
            if self._is_to_open(lane):
                if closed:
                    yield tuple(closed)
                yield (lane,)
                closed = []
            else:
                closed.append(lane)
        if closed:
            yield tuple(closed)

    def _add_band(self, section: Section, lanes: tuple[int, ...], pitch_px: int) -> None:
        """Append a band; below that of an opened lane there is room for its tracks."""
        is_opened = len(lanes) == 1 and self._is_to_open(lanes[0])
        if is_opened:
            pitch_px = min(max(pitch_px, TRACK_PX), max(OPENED_PX, self._row_px or 0))
        self._append(section, lanes, pitch_px)
        if is_opened:
            self.track_top_by_lane[lanes[0]] = self.next_top_px
            self.next_top_px += self._track_px_by_lane[lanes[0]]

    def _is_to_open(self, lane: int) -> bool:
        """Return True for an opened lane whose tracks have no place yet."""
        return lane in self._track_px_by_lane and lane not in self.track_top_by_lane

    def _append(
        self, section: Section, lanes: tuple[int, ...], pitch_px: int, group: RowGroup | None = None
    ) -> None:
        gap_px = GAP_PX if pitch_px >= GAP_FROM_PX else 0
        self.bands.append(Band(section, self.next_top_px, pitch_px - gap_px, lanes, group))
        self.next_top_px += pitch_px


def find_most_severe_lanes(groups: Sequence[tuple[int, ...]], severity: Ints) -> list[int]:
    """Choose the lane that represents each group: the one with the greatest severity."""
    return [max(group, key=lambda lane: int(severity[lane])) for group in groups]
