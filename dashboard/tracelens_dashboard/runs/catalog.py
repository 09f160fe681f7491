"""The runs that are served: listed by ids that reveal nothing, opened on demand, a few kept open.

A run with an index opens immediately. Others are read and analyzed one after the other, in the
background, so that a page can show meanwhile how far that is; those that no page waits for, too, so
that a list of runs has a verdict of each (`survey`).
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tracelens.distil.places import fingerprint
from tracelens.errors import TraceLensError, TraceNotFound
from tracelens.load import open as open_trace
from tracelens.load import runs_in
from tracelens.lod import opening
from tracelens.lod.run_data import Glance
from tracelens.model.choice import EVERYTHING, Choice
from tracelens.model.fmt import shown_name
from tracelens_dashboard.runs import selection
from tracelens_dashboard.runs.live import Followed, Standing, follow, is_recorded
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.runs.tags import Tags
from tracelens_dashboard.runs.watched import WatchedJobs
from tracelens_dashboard.runs.worker import PATIENCE_S, Interrupted, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracelens.lod.opening import OnProgress, Progress
    from tracelens.model.trace import Trace
    from tracelens_dashboard.runs.selection import Selection

    Read = Callable[[Path, OnProgress], Trace]
    State = tuple[str | None, int]

MOST_OPEN: Final = 8
_MOST_PARTS: Final = 64
MOST_HELD_BYTES: Final = 300 << 20  # bytes of open runs; the one asked for last stays in any case

Kind = Literal["new", "queued", "working", "failed"]


class OpenRun(NamedTuple):
    """A run that is kept open, and an estimate of its memory."""

    store: Store
    held_bytes: int


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
    awaited: bool = False  # by a page, so that it is kept open
    recorded: bool = False  # still, when it was looked at
    failed: State | None = None  # of the files that could not be read

    @property
    def changed_ns(self) -> int:
        """When the run's folder changed last; 0 if it is gone."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def state(self) -> State:
        """What changes when its files do."""
        try:
            return fingerprint(self.path), self.changed_ns
        except OSError:
            return None, 0

    @contextmanager
    def progress_of(self, what: str, check: Callable[[], None]) -> Iterator[OnProgress]:
        """Keep the progress of some work on this run as its stage; `check` may raise to end it."""

        def on_progress(done: int, total: int) -> None:
            check()
            self.stage = Stage("working", what, done, total)

        on_progress(0, 0)
        yield on_progress

    def fail(self, sentence: str) -> None:
        """Note why it cannot be shown."""
        self.stage = Stage("failed", sentence)
        self.failed = self.state


def id_of(path: Path) -> str:
    """Name a run in addresses: the same at every start, and nothing of its path."""
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=6).hexdigest()


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that distinguish them."""
    resolved_paths = [path.resolve() for path in paths]
    return [_find_shortest_name(path, resolved_paths) for path in resolved_paths]


def _find_shortest_name(path: Path, all_paths: Sequence[Path]) -> str:
    """Return the shortest end of a path that no other one of the paths has."""
    for part_count in range(1, len(path.parts)):
        end_parts = path.parts[-part_count:]
        if sum(other.parts[-part_count:] == end_parts for other in all_paths) == 1:
            return shown_name("/".join(end_parts))
    return shown_name(path)


class Runs:
    """What is served. Requests share it."""

    def __init__(
        self,
        folders: Iterable[Path] = (),
        read: Read = open_trace,
        *,
        indexed: bool = True,
        most_held_bytes: int = MOST_HELD_BYTES,
    ) -> None:
        """Serve the runs in some folders; `indexed` is false where `read` makes more of them.

        Raises:
            TraceNotFound: there is nothing at one of the paths.
        """
        self._folders = tuple(folders)
        self._read = read
        self._indexed = indexed
        self._most_held_bytes = most_held_bytes
        self._lock = Lock()
        self._open: OrderedDict[str, OpenRun] = OrderedDict()  # by id
        self._worker = Worker(self._settle)
        self._glances: dict[str, tuple[State, Glance]] = {}  # of runs without an index
        self._entries: dict[str, Entry] = {}
        self._parts: OrderedDict[str, Entry] = OrderedDict()
        self._followed: dict[str, Followed] = {}
        self.alone: Store | None = None
        self.tags = Tags()
        self.watched_jobs = WatchedJobs()
        self.surveying = False
        self._survey_lock = Lock()
        _require(self._folders)
        self.look()

    @classmethod
    def from_store(cls, store: Store) -> Runs:
        """Serve one run, which is open, alone: addresses need not name it."""
        served = cls()
        served.alone = store
        source = store.source
        served._follow("", source if isinstance(source, Path) else source.path)
        return served

    def look(self) -> list[Entry]:
        """Return the present runs; an entry stays the same as long as its run is there."""
        paths = list(dict.fromkeys(path for folder in self._folders for path in runs_in(folder)))
        with self._lock:
            entries = {}
            for path, name in zip(paths, short_names(paths), strict=True):
                run_id = id_of(path)
                entries[run_id] = self._entries.get(run_id) or Entry(run_id, name, path)
            self._entries = entries
            return list(entries.values())

    @staticmethod
    def folders(entries: Sequence[Entry]) -> dict[str, str]:
        """Return the name of each run's folder, by run id: the shortest that distinguishes them."""
        folder_paths = [entry.path.resolve().parent for entry in entries]
        distinct_paths = list(dict.fromkeys(folder_paths))
        name_by_path = dict(zip(distinct_paths, short_names(distinct_paths), strict=True))
        return {
            entry.id: name_by_path[folder_path]
            for entry, folder_path in zip(entries, folder_paths, strict=True)
        }

    def entry(self, run: object) -> Entry | None:
        """Return a run, or a part of one, by its id."""
        run_selection = selection.read(run) if isinstance(run, str) else None
        entry = self._entry_of_run(run_selection.run) if run_selection else None
        if entry is None or run_selection is None or run_selection.choice.is_all:
            return entry
        return self._entry_of_part(entry, run_selection)

    def state_of(self, run: object) -> State | None:
        """Give a value that changes when a run's files do; null if it is not served."""
        entry = self.entry(run)
        return entry.state if entry else None

    def _entry_of_run(self, run: str | None) -> Entry | None:
        if run is None:
            return Entry("", self.alone.name, Path()) if self.alone else None
        if run not in self._entries:
            self.look()
        return self._entries.get(run)

    def _entry_of_part(self, entry: Entry, run_selection: Selection) -> Entry:
        """Return the entry of a selection, the same for all who ask; the latest are kept."""
        key = str(run_selection.key)
        with self._lock:
            if key not in self._parts:
                self._parts[key] = Entry(key, entry.name, entry.path, run_selection.choice)
            self._parts.move_to_end(key)
            while len(self._parts) > _MOST_PARTS:
                self._parts.popitem(last=False)
            return self._parts[key]

    def open(self, entry: Entry, patience_s: float = 0.0) -> Store | None:
        """Return a run opened; None while it is being read, or where that failed (`entry.stage`)."""
        with entry.lock:
            store = self._open_store(entry) or self._open_index(entry)
            if store:
                return store
            if entry.stage == NEW or (entry.stage == QUEUED and not entry.awaited):
                entry.stage = QUEUED
                entry.settled.clear()
                self._worker.ask(entry)
            entry.awaited = entry.stage.under_way
        entry.settled.wait(patience_s)
        return self._open_store(entry)

    def survey(self, *, enabled: bool) -> None:
        """Analyze all runs that were not yet, one at a time, the newest first; or stop that.

        A run that is still recorded is left until it is complete, one that cannot be read until its
        folder changes.
        """
        with self._survey_lock:
            self.surveying = enabled
            for entry in self._worker.backlog:
                if entry.stage == QUEUED and not entry.awaited:
                    entry.stage = NEW
            unread = [entry for entry in self.look() if self._is_unread(entry)] if enabled else []
            unread.sort(key=lambda entry: -entry.changed_ns)
            for entry in unread:
                entry.stage = QUEUED
                entry.settled.clear()
            self._worker.fill(unread)

    def _is_unread(self, entry: Entry) -> bool:
        """Return True if a run is to be analyzed; one that is still recorded is not yet."""
        if entry.stage.under_way or self.glance(entry):
            return False
        if entry.stage.kind == "failed" and entry.failed == entry.state:
            return False
        entry.recorded = is_recorded(entry.path)
        return not entry.recorded

    def close(self) -> None:
        """Wait a few seconds for the threads in the background: the server ends.

        Before Python 3.14 a process can abort if it ends while a daemon thread is in C++.
        """
        deadline_s = monotonic() + PATIENCE_S
        self.survey(enabled=False)
        self._worker.close()
        self.watched_jobs.close()
        with self._lock:
            stores = [self.alone, *(open_run.store for open_run in self._open.values())]
        threads = [store.refinement for store in stores if store]
        threads += [followed.reading for followed in list(self._followed.values())]
        for thread in threads:
            if thread:
                thread.join(max(deadline_s - monotonic(), 0.0))

    def glance(self, entry: Entry) -> Glance | None:
        """Return a run at a glance; None where it has to be read first."""
        open_run = self._open.get(entry.id)
        if open_run:
            return Glance.from_run(open_run.store.run)
        index_glance = opening.glanced(entry.path) if self._indexed else None
        state, glance = self._glances.get(entry.id, (None, None))
        return index_glance or (glance if glance and state == entry.state else None)

    def folder_of(self, run: str) -> Path | None:
        """Return the folder of a run that is served; None where it was not read from a path."""
        if self.alone and not run:
            source = self.alone.source
            return source if isinstance(source, Path) else source.path
        entry = self.entry(run)
        return entry.path if entry else None

    def standing(self, run: str, *, paused: bool) -> Standing:
        """Compare what is shown of a run with its folder; one that is recorded is read again."""
        followed = self._followed.get(run)
        if followed is None:  # a part of a run stays what it was
            return Standing()
        return followed.look(lambda: self._read_again(run, followed.path), paused=paused)

    def is_recorded(self, run: str) -> bool:
        """Return True if a run was still recorded when it was read last."""
        followed = self._followed.get(run)
        return followed is not None and followed.recorded

    def _read_again(self, run: str, path: Path) -> None:
        store = Store.open(path, lambda: self._read(path, _ignored), run_id=run or None)
        store.refine()
        if self.alone:
            self.alone = store
        elif entry := self._entries.get(run):
            self._keep(entry, store)

    def _follow(self, run: str, path: Path | None) -> None:
        followed = follow(path) if path and run not in self._followed else None
        if followed:
            self._followed[run] = followed

    def retry(self, entry: Entry) -> None:
        """Let a run that could not be read be tried again."""
        with entry.lock:
            if entry.stage.kind == "failed":
                entry.stage = NEW

    def _open_store(self, entry: Entry) -> Store | None:
        with self._lock:
            if entry.id not in self._open:
                return None
            self._open.move_to_end(entry.id)
            return self._open[entry.id].store

    def _open_index(self, entry: Entry) -> Store | None:
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
            self._open[entry.id] = OpenRun(store, store.held_bytes)
            while len(self._open) > 1 and self._holds_too_much():
                self._open.popitem(last=False)

    def _holds_too_much(self) -> bool:
        held_bytes = sum(open_run.held_bytes for open_run in self._open.values())
        return len(self._open) > MOST_OPEN or held_bytes > self._most_held_bytes

    def _settle(self, entry: Entry) -> None:
        """Read and analyze a run when its turn comes; after a failure, the others are served."""
        try:
            if not entry.choice.is_all:
                self._narrow(entry)
            elif entry.awaited or (entry.stage == QUEUED and not self.glance(entry)):
                self._read_first(entry)
            elif entry.stage == QUEUED:  # read meanwhile, because a page asked for it
                entry.stage = NEW
        except Interrupted:
            entry.stage = NEW
        except TraceLensError as error:
            message = str(error).replace(str(entry.path), entry.name)
            entry.fail(message.replace(shown_name(entry.path), entry.name))
        finally:
            if entry.stage.kind == "working":
                entry.fail(f"'{entry.name}' could not be opened; the terminal has the details.")
            entry.awaited = False
            entry.settled.set()

    def _read_first(self, entry: Entry) -> None:
        """Analyze a run that was not yet; keep it open if a page waits for it."""
        progress: Progress = partial(entry.progress_of, check=self._worker.check)
        store = self._analyze(entry, progress)
        self._glances[entry.id] = entry.state, Glance.from_run(store.run)
        if entry.awaited:
            store.refine()
            self._keep(entry, store)
        entry.stage = NEW

    def _analyze(self, entry: Entry, progress: Progress) -> Store:
        """Read a run and analyze it; `progress` is that of the entry for which it is done."""

        def read() -> Trace:
            with progress("reading") as on_progress:
                return self._read(entry.path, on_progress)

        path = entry.path if self._indexed else None
        return Store.open(path, read, progress, entry.id)

    def _narrow(self, entry: Entry) -> None:
        """Read the run of a selection, if it is not open, and narrow it to the selection."""
        run_selection = selection.read(entry.id)
        whole_run = self._entry_of_run(run_selection.run) if run_selection else None
        if whole_run is None:
            raise TraceNotFound("This run is not served any more.")
        progress: Progress = partial(entry.progress_of, check=self._worker.check)
        store = self.alone or self._open_store(whole_run) or self._open_index(whole_run)
        if store is None:
            store = self._analyze(whole_run, progress)
            store.refine()
            self._keep(whole_run, store)
        narrowed = store.narrow(entry.choice, progress, entry.id)
        narrowed.refine()
        self._keep(entry, narrowed)


def _ignored(_done: int, _total: int) -> None:
    """Show no progress."""


def _require(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise TraceNotFound(
                f"There is no '{path}': expected trace folders, tables of spans, or a folder that "
                "holds trace folders."
            )
