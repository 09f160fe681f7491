"""One run of those that are served: what it is called, and how far its opening has come."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, Literal

from tracelens.words import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracelens.lod.opening import Tell

Kind = Literal["new", "queued", "working", "failed"]


@dataclass(frozen=True)
class Stage:
    """How far a run's opening is: what is done to it (`done` of `total`), or why it failed."""

    kind: Kind = "new"
    what: str = ""
    done: int = 0
    total: int = 0

    @property
    def under_way(self) -> bool:
        """Whether the run is being read, or is going to be."""
        return self.kind in {"queued", "working"}


NEW: Final = Stage()
QUEUED: Final = Stage("queued")


@dataclass
class Entry:
    """A run that can be asked for by its id; `settled` while nothing is under way."""

    id: str
    name: str
    path: Path
    stage: Stage = NEW
    lock: Lock = field(default_factory=Lock)
    settled: Event = field(default_factory=Event)

    @property
    def changed_ns(self) -> int:
        """When the run's folder changed last; 0 if it is gone."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @contextmanager
    def telling(self, what: str) -> Iterator[Tell]:
        """Keep what is said of the progress of some work on this run."""

        def tell(done: int, total: int) -> None:
            self.stage = Stage("working", what, done, total)

        tell(0, 0)
        yield tell


def id_of(path: Path) -> str:
    """Return what a run is called in addresses: the same at every start, and nothing of its path."""
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=6).hexdigest()


def names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart."""
    found = [path.resolve() for path in paths]
    return [_shortest(path, found) for path in found]


def _shortest(path: Path, others: Sequence[Path]) -> str:
    for length in range(1, len(path.parts)):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in others) == 1:
            return shown_name("/".join(end))
    return shown_name(path)
