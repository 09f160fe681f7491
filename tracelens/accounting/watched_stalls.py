"""What a watch saw of ranks while others waited for them: their code, or a stopped process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.schema.life import Stalled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

__all__ = ["WatchedStall", "choose_frame", "find_watched_stall", "list_python_frames"]


@dataclass(frozen=True)
class WatchedStall:
    """A rank that a watch saw stand still: its state, and its innermost frame, empty if not known."""

    rank: int
    state: str
    frame: str

    @property
    def sentence(self) -> str:
        """What was seen."""
        if self.state == "stopped":
            return f"A watch saw then that the process of rank {self.rank} was stopped."
        return f"A watch saw rank {self.rank} then in {self.frame}."

    def to_evidence(self) -> dict[str, Any]:
        """Return it as plain values, for a finding."""
        return asdict(self)


def find_watched_stall(
    trace: Trace, ranks: Collection[int], step_numbers: Ints
) -> WatchedStall | None:
    """Find a stall of one of `ranks` in some steps that a watch recorded, or None.

    A watch records the step of the waiting ranks, which may be the step before or after.
    """
    for entry in trace.journal:
        if not isinstance(entry, Stalled) or entry.step is None:
            continue
        if not {*entry.culprits} <= {*ranks} or np.abs(step_numbers - entry.step).min() > 1:
            continue
        for rank in entry.culprits:
            state = entry.states.get(str(rank), "")
            frame = choose_frame(entry.stacks.get(str(rank), []))
            if frame or state == "stopped":
                return WatchedStall(rank, state, frame)
    return None


def choose_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame of the program's Python code, else the innermost one, else nothing."""
    return next(iter([*list_python_frames(frames), *frames]), "")


def list_python_frames(frames: Iterable[str]) -> list[str]:
    """Return the frames that are of Python code, but not of the recorder."""
    return [frame for frame in frames if ".py:" in frame and "(tracelens_instrument/" not in frame]
