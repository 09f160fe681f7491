"""The runs that are served: listed by ids that reveal nothing, opened on demand, a few kept open.

A run with an index opens at once. Others are read and analyzed one after the other, in the
background, so that a page can show meanwhile how far that is.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final, Literal

from tracelens.errors import TraceLensError, TraceNotFound
from tracelens.load import open as open_trace
from tracelens.load import runs_in
from tracelens.lod import opening
from tracelens.lod.run_data import Glance
from tracelens.model.choice import EVERYTHING
from tracelens.model.fmt import shown_name
from tracelens_dashboard.runs import selection
from tracelens_dashboard.runs.live import Followed, Standing, followed
from tracelens_dashboard.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracelens.lod.opening import OnProgress, Progress
    from tracelens.model.choice import Choice
    from tracelens.model.trace import Trace
    from tracelens_dashboard.runs.selection import Selection

    Read = Callable[[Path, OnProgress], Trace]

MOST_OPEN: Final = 8
_MOST_PARTS: Final = 64
MOST_HELD: Final = 300 << 20  # bytes of open runs; the one asked for last stays in any case

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
    """A run, or a part of one, that can be asked for by its id; `settled` while nothing is under way."""

    id: str
    name: str
    path: Path
    choice: Choice = EVERYTHING
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
    def progress_of(self, what: str) -> Iterator[OnProgress]:
        """Keep the progress of some work on this run as its stage."""

        def on_progress(done: int, total: int) -> None:
            self.stage = Stage("working", what, done, total)

        on_progress(0, 0)
        yield on_progress


def id_of(path: Path) -> str:
    """Return what a run is called in addresses: the same at every start, and nothing of its path."""
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=6).hexdigest()


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that distinguish them."""
    found = [path.resolve() for path in paths]
    return [_shortest(path, found) for path in found]


def _shortest(path: Path, others: Sequence[Path]) -> str:
    for length in range(1, len(path.parts)):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in others) == 1:
            return shown_name("/".join(end))
    return shown_name(path)


class Runs:
    """What is served. Requests share it."""

    def __init__(
        self,
        places: Iterable[Path] = (),
        read: Read = open_trace,
        *,
        indexed: bool = True,
        most_held: int = MOST_HELD,
    ) -> None:
        """Serve the runs at some places; `indexed` is false where `read` makes more of them.

        Raises:
            TraceNotFound: there is nothing at one of the places.
        """
        self._places = tuple(places)
        self._read = read
        self._indexed = indexed
        self._most_held = most_held
        self._lock = Lock()
        self._open: OrderedDict[str, tuple[Store, int]] = OrderedDict()
        self._turn = Lock()
        self._entries: dict[str, Entry] = {}
        self._parts: OrderedDict[str, Entry] = OrderedDict()
        self._followed: dict[str, Followed] = {}
        self.alone: Store | None = None
        _require(self._places)
        self.look()

    @classmethod
    def of(cls, store: Store) -> Runs:
        """Serve one run, which is open, alone: addresses need not name it."""
        served = cls()
        served.alone = store
        source = store.source
        served._follow("", source if isinstance(source, Path) else source.path)
        return served

    def look(self) -> list[Entry]:
        """List the runs that are there now."""
        paths = list(dict.fromkeys(run for place in self._places for run in runs_in(place)))
        with self._lock:
            known = self._entries
            found = zip(paths, short_names(paths), strict=True)
            self._entries = {
                key: known.get(key) or Entry(key, name, path)
                for path, name in found
                for key in [id_of(path)]
            }
            return list(self._entries.values())

    def entry(self, run: object) -> Entry | None:
        """Return a run, or a part of one, by its id."""
        asked = selection.read(run) if isinstance(run, str) else None
        if asked is None:
            return None
        whole = self._whole(asked.run)
        return whole if whole is None or asked.choice.is_all else self._part(whole, asked)

    def _whole(self, run: str | None) -> Entry | None:
        if run is None:
            return Entry("", self.alone.name, Path()) if self.alone else None
        found = self._entries.get(run)
        if found is None:
            self.look()
            found = self._entries.get(run)
        return found

    def _part(self, whole: Entry, asked: Selection) -> Entry:
        """Return the entry of a part, the same for all who ask; those asked for last are known."""
        key = str(asked.key)
        with self._lock:
            if key not in self._parts:
                self._parts[key] = Entry(key, whole.name, whole.path, asked.choice)
            self._parts.move_to_end(key)
            while len(self._parts) > _MOST_PARTS:
                self._parts.popitem(last=False)
            return self._parts[key]

    def open(self, entry: Entry, patience_s: float = 0.0) -> Store | None:
        """Return a run opened; None while it is being read, or where that failed (`entry.stage`)."""
        with entry.lock:
            store = self._kept(entry) or self._by_index(entry)
            if store:
                return store
            if entry.stage == NEW:
                entry.stage = QUEUED
                entry.settled.clear()
                Thread(target=self._settle, args=(entry,), daemon=True).start()
        entry.settled.wait(patience_s)
        return self._kept(entry)

    def glance(self, entry: Entry) -> Glance | None:
        """Return a run at a glance; None where it has to be read first."""
        store = self._open.get(entry.id)
        if store:
            return Glance.of(store[0].run)
        return opening.glanced(entry.path) if self._indexed else None

    def standing(self, run: str, *, paused: bool) -> Standing:
        """Return how what is shown of a run stands to its folder; one that is recorded is read again."""
        followed = self._followed.get(run)
        if followed is None:  # a part of a run stays what it was
            return Standing()
        return followed.look(lambda: self._read_again(run, followed.path), paused=paused)

    def _read_again(self, run: str, path: Path) -> None:
        store = Store.open(path, lambda: self._read(path, _ignored), run_id=run or None)
        store.refine()
        if self.alone:
            self.alone = store
        elif entry := self._entries.get(run):
            self._keep(entry, store)

    def _follow(self, run: str, path: Path | None) -> None:
        found = followed(path) if path and run not in self._followed else None
        if found:
            self._followed[run] = found

    def again(self, entry: Entry) -> None:
        """Let a run that could not be read be tried again."""
        with entry.lock:
            if entry.stage.kind == "failed":
                entry.stage = NEW

    def _kept(self, entry: Entry) -> Store | None:
        with self._lock:
            if entry.id not in self._open:
                return None
            self._open.move_to_end(entry.id)
            return self._open[entry.id][0]

    def _by_index(self, entry: Entry) -> Store | None:
        if not self._indexed or entry.stage.under_way or not entry.choice.is_all:
            return None
        store = Store.indexed(entry.path, entry.id)
        if store:
            store.refine()
            self._keep(entry, store)
        return store

    def _keep(self, entry: Entry, store: Store) -> None:
        """Keep a run open, and close those that were not asked for the longest."""
        if entry.choice.is_all and self._indexed:
            self._follow(entry.id, entry.path)
        entry.stage = NEW
        with self._lock:
            self._open[entry.id] = store, store.held_bytes
            while len(self._open) > 1 and self._too_much():
                self._open.popitem(last=False)

    def _too_much(self) -> bool:
        held = sum(size for _, size in self._open.values())
        return len(self._open) > MOST_OPEN or held > self._most_held

    def _settle(self, entry: Entry) -> None:
        """Read and analyze a run when its turn comes; whatever fails, the others are served."""
        try:
            with self._turn:
                if entry.choice.is_all:
                    self._analyze(entry, entry.progress_of)
                else:
                    self._narrow(entry)
        except TraceLensError as error:
            message = str(error).replace(str(entry.path), entry.name)
            entry.stage = Stage("failed", message.replace(shown_name(entry.path), entry.name))
        finally:
            if entry.stage.kind == "working":
                sentence = f"'{entry.name}' could not be opened; the terminal has the details."
                entry.stage = Stage("failed", sentence)
            entry.settled.set()

    def _analyze(self, entry: Entry, progress: Progress) -> Store:
        def read() -> Trace:
            with progress("reading") as on_progress:
                return self._read(entry.path, on_progress)

        path = entry.path if self._indexed else None
        store = Store.open(path, read, progress, entry.id)
        store.refine()
        self._keep(entry, store)
        return store

    def _narrow(self, entry: Entry) -> None:
        asked = selection.read(entry.id)
        whole = self._whole(asked.run) if asked else None
        if whole is None:
            raise TraceNotFound("This run is not served any more.")
        store = self.alone or self._kept(whole) or self._by_index(whole)
        store = store or self._analyze(whole, entry.progress_of)
        part = store.part(entry.choice, entry.progress_of, entry.id)
        part.refine()
        self._keep(entry, part)


def _ignored(_done: int, _total: int) -> None:
    """Show no progress."""


def _require(places: Iterable[Path]) -> None:
    for place in places:
        if not place.exists():
            raise TraceNotFound(
                f"There is no '{place}': expected trace folders, tables of spans, or a folder that "
                "holds trace folders."
            )
