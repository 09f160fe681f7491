"""What a recorder of the comparison is: ways to record a span, and how it starts, ends and is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Arm", "Recorder", "nothing"]


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Arm:
    """One way to record a span.

    `less`: what its time is counted beyond, the loop alone or a loop of plain calls of a function.
    """

    name: str
    loop: Callable[[int], object]  # records so many
    stores: Literal["attributes", "name", "number", "nothing"] = "attributes"
    api: Literal["public", "private", "by hand"] = "public"
    less: Literal["loop", "call"] = "loop"


class Recorder(ABC):
    """A recorder as its documentation says to use it; a process makes one, which records to a folder.

    `distribution` is what pip calls it, None if it belongs to Python. `start` is the code that a program
    begins with; ``{folder}`` stands in it for where to record.
    """

    name: ClassVar[str]
    distribution: ClassVar[str | None]
    start: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Start it.

        Raises:
            ImportError: it is not installed.
        """

    @abstractmethod
    def arms(self) -> Sequence[Arm]:
        """Return the ways to record; the first is the one that a program would take."""

    def resume(self) -> None:  # noqa: B027 - most need not be told
        """Be ready to record: called before each loop, untimed."""

    def pause(self) -> None:  # noqa: B027 - as above
        """Make room, and let others be measured: called after each loop, untimed."""

    @abstractmethod
    def close(self) -> None:
        """End as a program does, so that all is on disk."""

    @staticmethod
    @abstractmethod
    def count_kept(folder: Path) -> int:
        """Count the spans of the first way that its files hold, as well as a reader can."""

    @classmethod
    def disabled_arms(cls) -> Sequence[Arm]:
        """Return ways to record that also run where nothing records, which is how they are measured.

        Raises:
            ImportError: it is not installed.
        """
        return ()
