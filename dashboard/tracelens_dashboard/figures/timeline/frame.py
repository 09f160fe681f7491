"""What one picture of the timeline stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.lod.query import COLUMNS
from tracelens_dashboard import text

if TYPE_CHECKING:
    import polars as pl

    from tracelens.lod.query import Scene
    from tracelens.lod.search import Call
    from tracelens.lod.viewport import Band, Plan, Window


LEFT_PX: Final = 120  # for the rows' labels; other figures with this axis have the same
RIGHT_PX: Final = 16
SECOND: Final = 1e9
NARROW: Final = "\N{NO-BREAK SPACE}" * 3  # between a row and its label: room for a mark


@dataclass(frozen=True)
class Frame:
    """Everything one picture of the timeline stands on."""

    scene: Scene
    plan: Plan
    seen: Window
    windows: pl.DataFrame
    flagged: frozenset[int] = frozenset()
    marked: Window | None = None
    marked_label: str = ""
    call: Call | None = None  # the selected collective
    opened: bool = False  # its rows are the threads of one rank
    path: pl.DataFrame | None = None  # the critical path, if it is to be drawn
    columns: int = COLUMNS  # pixels of the plot's width

    def seconds(self, at_ns: int) -> float:
        """Place a moment on the time axis."""
        return (at_ns - self.scene.whole.start_ns) / SECOND


def lane_label(frame: Frame, band: Band) -> str:
    """Name the rank, its device's stream, or the shard, of a band."""
    lane = frame.scene.lanes.lanes[band.lanes[0]]
    if frame.opened:
        return text.safe(lane.part)
    if lane.role == "ps":
        return f"PS {lane.rank} {lane.part}s"
    stream = lane.part.partition(" ")[2]  # without the device: there is little room
    return f"rank {lane.rank} {stream}".rstrip()
