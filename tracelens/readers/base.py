"""What every reader offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tracelens.model.choice import EVERYTHING, Choice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from tracelens.model.trace import Trace


MAX_CHARACTERS_QUOTED: Final = 60  # characters of a text in a sentence: more are cut off [policy]

Progress = Callable[[int, int], None]  # (done, total), in processes or files


@dataclass(frozen=True)
class Reading:
    """How a run is read.

    Files are read by `executor`, where there are several; None = in threads of this process. Of the
    events that a report asks for again, up to `kept_bytes` are kept. Ranks that `choice` leaves out are
    not read where their files say so. `rank_of` are the ranks that the user says files are of, by name.
    """

    progress: Progress | None = None
    executor: Executor | None = None
    kept_bytes: int = 0
    choice: Choice = EVERYTHING
    rank_of: Mapping[str, int] = field(default_factory=dict)


SIMPLY: Final = Reading()


class Reader(Protocol):
    """Reads one format; never guesses what a file lacks, never executes what it holds."""

    @property
    def name(self) -> str:
        """Name the format in a few words."""

    def sniff(self, path: Path, /) -> bool:
        """Return True if `path` looks like this format, without reading much of it."""

    def read(self, path: Path, options: Reading = SIMPLY, /) -> Trace:
        """Read it; parts that cannot be read become notes, and the rest is read all the same.

        Raises:
            MissingExtra: the library for the format is not installed.
            UnusableInput: nothing of it can be read, or it is not known which ranks recorded it.
        """


def quoted(text: str) -> str:
    """Return a text in quotes; what is not printed as itself is escaped."""
    is_short = len(text) <= MAX_CHARACTERS_QUOTED
    return repr(text if is_short else f"{text[:MAX_CHARACTERS_QUOTED]}...")
