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
SECOND: Final = 1e9
LONGEST_LABEL: Final = 17
NARROW: Final = "\N{NO-BREAK SPACE}" * 3  # between a row and its label: room for a mark


OPEN, CLOSED = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}", "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"


@dataclass(frozen=True)
class Opened:
    """The tracks of a process below its row; `key` is what addresses call it."""

    key: str
    group: Group
    plan: Plan


@dataclass(frozen=True)
class Selected:
    """A span that is selected: its row (`band`), from when to when."""

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
    """Everything one picture of the timeline stands on."""

    scene: Scene
    plan: Plan
    visible: Window  # absolute times
    windows: pl.DataFrame
    flagged: frozenset[int] = frozenset()
    marked: Window | None = None
    marked_label: str = ""
    call: Call | None = None  # the selected collective
    opened: tuple[Opened, ...] = ()
    selected: tuple[Selected, ...] = ()
    path: pl.DataFrame | None = None  # the critical path, if it is to be drawn
    columns: int = COLUMNS  # pixels of the plot's width
    notes: tuple[Note, ...] = ()

    def seconds(self, at_ns: int) -> float:
        """Place a moment on the time axis."""
        return (at_ns - self.scene.whole.start_ns) / SECOND

    @property
    def keys(self) -> frozenset[str]:
        """What addresses call the processes that are opened."""
        return frozenset(process.key for process in self.opened)

    def frame_of(self, opened: Opened) -> Frame:
        """Return the frame of an opened process alone."""
        return replace(
            self, scene=opened.group.scene, plan=opened.plan, opened=(), flagged=frozenset()
        )


def lane_label(frame: Frame, band: Band) -> str:
    """Return the label of a band: its group, rank, stream of a device, or shard; else its track."""
    if band.group:
        return text.safe(band.group.name)
    lane = frame.scene.lanes.lanes[band.lanes[0]]
    if band.section == "tracks":
        owner = f"PS {lane.rank}" if lane.role == "ps" else f"rank {lane.rank}"
        return f"{owner}, {text.safe(lane.part)}"
    if lane.role == "ps":
        return f"PS {lane.rank} {lane.part}s"
    stream = lane.part.partition(" ")[2]  # without the device: there is little room
    return f"rank {lane.rank} {stream}".rstrip()


def track_label(lane: Lane) -> str:
    """Name a track at its first row, and leave the rows below it empty."""
    if lane.level:
        return ""
    return text.safe(fitting(lane.part))


def fitting(name: str) -> str:
    """Cut a name so that it fits next to a row."""
    return name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"
