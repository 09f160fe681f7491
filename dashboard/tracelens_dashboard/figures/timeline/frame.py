"""What one picture of the timeline stands on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tracelens.lod.query import COLUMNS, Scene
from tracelens_dashboard import text

if TYPE_CHECKING:
    import polars as pl

    from tracelens.lod.lanes import Lane
    from tracelens.lod.search import Call
    from tracelens.lod.tracks.group import Group
    from tracelens.lod.viewport import Band, Plan, Window


LEFT_PX: Final = 120  # for the rows' labels; other figures with this axis have the same
RIGHT_PX: Final = 16
NS_PER_SECOND: Final = 1e9
LONGEST_LABEL: Final = 17
NARROW: Final = "\N{NO-BREAK SPACE}" * 3  # between a row and its label: room for a mark


OPEN, CLOSED = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}", "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"


@dataclass(frozen=True)
class OpenedProcess:
    """The tracks of a process below its row; `process_key` is what addresses call it."""

    process_key: str
    track_group: Group
    row_plan: Plan


@dataclass(frozen=True)
class SelectedSpan:
    """A span that is selected: the strip of pixels that shows it (`band`), from when to when."""

    band: Band
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Note:
    """What a user noted at a time, or over a stretch of time, in ns since the run's start."""

    start_ns: int
    end_ns: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Frame:
    """Everything one picture of the timeline stands on; windows are absolute."""

    scene: Scene
    row_plan: Plan
    visible_window: Window
    step_windows: pl.DataFrame  # a row per step: step, start_ns, end_ns
    flagged_ranks: frozenset[int] = frozenset()
    marked_window: Window | None = None
    marked_label: str = ""
    selected_call: Call | None = None  # a collective
    opened_processes: tuple[OpenedProcess, ...] = ()
    selected_spans: tuple[SelectedSpan, ...] = ()
    path_stretches: pl.DataFrame | None = None  # of the critical path, if it is to be drawn
    plot_width_px: int = COLUMNS
    notes: tuple[Note, ...] = ()

    def seconds_since_start(self, moment_ns: int) -> float:
        """Return an absolute moment as seconds since the run's start, as on the time axis."""
        return (moment_ns - self.scene.run_window.start_ns) / NS_PER_SECOND

    def frame_of_process(self, process: OpenedProcess) -> Frame:
        """Return the frame of an opened process alone."""
        return replace(
            self,
            scene=process.track_group.scene,
            row_plan=process.row_plan,
            opened_processes=(),
            flagged_ranks=frozenset(),
        )


def band_label(frame: Frame, band: Band) -> str:
    """Return the label of a band, a strip of pixels: its group, rank, stream, shard, or track."""
    # One that several ranks share is named after the first.
    if band.group:
        return text.escape_name(band.group.name)
    lane = frame.scene.span_lanes.owners[band.lane_indices[0]]
    if band.section == "tracks":
        owner = f"PS {lane.rank}" if lane.role == "ps" else f"rank {lane.rank}"
        return f"{owner}, {text.escape_name(lane.track_name)}"
    if lane.role == "ps":
        return f"PS {lane.rank} {lane.track_name}s"
    stream = lane.track_name.partition(" ")[2]  # without the device: there is little room
    return f"rank {lane.rank} {stream}".rstrip()


def track_label(lane: Lane) -> str:
    """Name a track at its first row; empty for the rows of deeper spans below it."""
    if lane.depth_in_track:
        return ""
    return text.escape_name(cut_name(lane.track_name))


def cut_name(name: str) -> str:
    """Cut a name so that it fits next to a row."""
    return name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"
