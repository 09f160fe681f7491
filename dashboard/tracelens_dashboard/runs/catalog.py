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

from tracelens.distil.places import compute_fingerprint
from tracelens.errors import TraceLensError, TraceNotFound
from tracelens.load import list_runs
from tracelens.load import open as open_trace
from tracelens.lod import opening
from tracelens.lod.run_data import Glance
from tracelens.model.choice import EVERYTHING, Choice
from tracelens.model.fmt import shown_name
from tracelens_dashboard.runs import selection
from tracelens_dashboard.runs.live import FolderFollower, Freshness, follow, is_recorded
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
    FilesState = tuple[str | None, int]  # the files' digest, and when their folder changed (ns)

MAX_OPEN_RUNS: Final = 8
_MOST_PARTS: Final = 64
MOST_HELD_BYTES: Final = 300 << 20  # bytes of open runs; the one asked for last stays in any case

Kind = Literal["new", "queued", "working", "failed"]


class OpenRun(NamedTuple):
    """A run that is kept open, and an estimate of its memory."""

    store: Store
    held_bytes: int


@dataclass(frozen=True)
class Stage:
    """How far a run's opening is: parts of an activity that are done, or why it failed."""

    kind: Kind = "new"
    activity: str = ""
    done_part_count: int = 0
    total_part_count: int = 0
    failure_sentence: str = ""

    @property
    def is_under_way(self) -> bool:
        """Whether the run is being read, or is going to be."""
        return self.kind in {"queued", "working"}


NEW: Final = Stage()
QUEUED: Final = Stage("queued")


@dataclass
class Entry:
    """A run, or a part of one, which has its key as id; `lock` guards its stage."""

    run_key: str
    name: str
    path: Path
    choice: Choice = EVERYTHING
    stage: Stage = NEW
    lock: Lock = field(default_factory=Lock)
    opening_ended: Event = field(default_factory=Event)  # set while its opening is not under way
    is_awaited_by_page: bool = False  # by a page, so that it is kept open
    is_recorded: bool = False  # still, when it was looked at
    state_at_failure: FilesState | None = None  # of the files that could not be read

    @property
    def modified_ns(self) -> int:
        """When the run's folder changed last; 0 if it is gone."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def files_state(self) -> FilesState:
        """A value that changes when its files do."""
        try:
            return compute_fingerprint(self.path), self.modified_ns
        except OSError:
            return None, 0

    @contextmanager
    def track_progress(self, activity: str, check: Callable[[], None]) -> Iterator[OnProgress]:
        """Yield a function that keeps an activity's progress as the run's stage; `check` may raise."""

        def on_progress(done_count: int, total_count: int) -> None:
            check()
            self.stage = Stage("working", activity, done_count, total_count)

        on_progress(done_count=0, total_count=0)
        yield on_progress

    def fail(self, sentence: str) -> None:
        """Note why it cannot be shown."""
        self.stage = Stage("failed", failure_sentence=sentence)
        self.state_at_failure = self.files_state


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
    """The runs that are served. Requests share it."""

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
        self._read_trace = read
        self._uses_indexes = indexed
        self._most_held_bytes = most_held_bytes
        self._lock = Lock()
        self._open_run_by_id: OrderedDict[str, OpenRun] = OrderedDict()
        self._worker = Worker(self._read_in_turn)
        self._glance_by_id: dict[str, tuple[FilesState, Glance]] = {}  # of runs without an index
        self._entry_by_id: dict[str, Entry] = {}
        self._part_by_key: OrderedDict[str, Entry] = OrderedDict()
        self._follower_by_id: dict[str, FolderFollower] = {}
        self.only_store: Store | None = None  # the run that is served alone
        self.tags = Tags()
        self.watched_jobs = WatchedJobs()
        self.is_surveying = False
        self._survey_lock = Lock()
        _require(self._folders)
        self.list_entries()

    @classmethod
    def from_store(cls, store: Store) -> Runs:
        """Serve one open run alone: addresses need not name it."""
        served = cls()
        served.only_store = store
        served._follow("", store.path)
        return served

    def list_entries(self) -> list[Entry]:
        """Return the present runs; an entry stays the same as long as its run exists."""
        paths = list(dict.fromkeys(path for folder in self._folders for path in list_runs(folder)))
        with self._lock:
            entries = {}
            for path, name in zip(paths, short_names(paths), strict=True):
                run_id = id_of(path)
                entries[run_id] = self._entry_by_id.get(run_id) or Entry(run_id, name, path)
            self._entry_by_id = entries
            return list(entries.values())

    @staticmethod
    def name_folders(entries: Sequence[Entry]) -> dict[str, str]:
        """Return the name of each run's folder, by run id: the shortest that distinguishes them."""
        folder_paths = [entry.path.resolve().parent for entry in entries]
        distinct_paths = list(dict.fromkeys(folder_paths))
        name_by_path = dict(zip(distinct_paths, short_names(distinct_paths), strict=True))
        return {
            entry.run_key: name_by_path[folder_path]
            for entry, folder_path in zip(entries, folder_paths, strict=True)
        }

    def find_entry(self, run_key: object) -> Entry | None:
        """Return a run, or a part of one, by its key; None if it is not served."""
        run_selection = selection.read(run_key) if isinstance(run_key, str) else None
        entry = self._entry_of_run(run_selection.run_id) if run_selection else None
        if entry is None or run_selection is None or run_selection.choice.is_whole_run:
            return entry
        return self._entry_of_part(entry, run_selection)

    def files_state_of(self, run_key: object) -> FilesState | None:
        """Return a value that changes when a run's files do; None if it is not served."""
        entry = self.find_entry(run_key)
        return entry.files_state if entry else None

    def _entry_of_run(self, run_id: str | None) -> Entry | None:
        if run_id is None:  # a run that is served alone has no id
            only = self.only_store
            return Entry("", only.name, only.path or Path(only.name)) if only else None
        if run_id not in self._entry_by_id:
            self.list_entries()
        return self._entry_by_id.get(run_id)

    def _entry_of_part(self, entry: Entry, run_selection: Selection) -> Entry:
        """Return the entry of a selection, the same for all who ask; the latest are kept."""
        key = str(run_selection.address_key)
        with self._lock:
            if key not in self._part_by_key:
                self._part_by_key[key] = Entry(key, entry.name, entry.path, run_selection.choice)
            self._part_by_key.move_to_end(key)
            while len(self._part_by_key) > _MOST_PARTS:
                self._part_by_key.popitem(last=False)
            return self._part_by_key[key]

    def open_store(self, entry: Entry, patience_s: float = 0.0) -> Store | None:
        """Return a run opened; None while it is being read, or where that failed (`entry.stage`)."""
        with entry.lock:
            store = self._open_store(entry) or self._open_index(entry)
            if store:
                return store
            if entry.stage == NEW or (entry.stage == QUEUED and not entry.is_awaited_by_page):
                entry.stage = QUEUED
                entry.opening_ended.clear()
                self._worker.add_urgent(entry)
            entry.is_awaited_by_page = entry.stage.is_under_way
        entry.opening_ended.wait(patience_s)
        return self._open_store(entry)

    def survey(self, *, enabled: bool) -> None:
        """Analyze all runs that were not yet, one at a time, the newest first; stop unless `enabled`.

        A run that is still recorded is left until it is complete, one that cannot be read until its
        folder changes.
        """
        with self._survey_lock:
            self.is_surveying = enabled
            for entry in self._worker.backlog:
                if entry.stage == QUEUED and not entry.is_awaited_by_page:
                    entry.stage = NEW
            entries = self.list_entries() if enabled else []
            unread = [entry for entry in entries if self._is_unread(entry)]
            unread.sort(key=lambda entry: -entry.modified_ns)
            for entry in unread:
                entry.stage = QUEUED
                entry.opening_ended.clear()
            self._worker.replace_backlog(unread)

    def _is_unread(self, entry: Entry) -> bool:
        """Return True if a run is to be analyzed; one that is still recorded is not yet."""
        if entry.stage.is_under_way or self.find_glance(entry):
            return False
        if entry.stage.kind == "failed" and entry.state_at_failure == entry.files_state:
            return False
        entry.is_recorded = is_recorded(entry.path)
        return not entry.is_recorded

    def close(self) -> None:
        """Wait a few seconds for the threads in the background: the server ends.

        Before Python 3.14 a process can abort if it ends while a daemon thread is in C++.
        """
        deadline_s = monotonic() + PATIENCE_S
        self.survey(enabled=False)
        self._worker.close()
        self.watched_jobs.close()
        with self._lock:
            stores = [
                self.only_store,
                *(open_run.store for open_run in self._open_run_by_id.values()),
            ]
        threads = [store.refinement_thread for store in stores if store]
        threads += [follower.reading_thread for follower in list(self._follower_by_id.values())]
        for thread in threads:
            if thread:
                thread.join(max(deadline_s - monotonic(), 0.0))

    def find_glance(self, entry: Entry) -> Glance | None:
        """Return a run at a glance; None where it has to be read first, or its files changed."""
        open_run = self._open_run_by_id.get(entry.run_key)
        if open_run:
            return Glance.from_run(open_run.store.run)
        index_glance = opening.read_glance(entry.path) if self._uses_indexes else None
        files_state, glance = self._glance_by_id.get(entry.run_key, (None, None))
        return index_glance or (glance if glance and files_state == entry.files_state else None)

    def trace_folder_of(self, run_key: str) -> Path | None:
        """Return the folder of a run that is served; None where it was not read from a path."""
        if self.only_store:  # a part of it lies in the same folder
            return self.only_store.path
        entry = self.find_entry(run_key)
        return entry.path if entry else None

    def check_freshness(self, run_key: str, *, paused: bool) -> Freshness:
        """Compare what is shown of a run with its folder; one that is recorded is read again.

        Nothing is read again while the user has `paused` that.
        """
        follower = self._follower_by_id.get(run_key)
        if follower is None:  # a part of a run stays what it was
            return Freshness()
        return follower.check_folder(
            lambda: self._read_again(run_key, follower.path), paused=paused
        )

    def is_recorded(self, run_key: str) -> bool:
        """Return True if a run was still recorded when it was read last; a part of one never is."""
        follower = self._follower_by_id.get(run_key)
        return follower is not None and follower.was_recorded

    def _read_again(self, run_id: str, path: Path) -> None:
        """Read the run at `path` again, and keep it open in place of the earlier reading."""
        store = Store.open(
            path, lambda: self._read_trace(path, _ignore_progress), run_key=run_id or None
        )
        store.refine()
        if self.only_store:
            self.only_store = store
        elif entry := self._entry_by_id.get(run_id):
            self._keep_open(entry, store)

    def _follow(self, run_id: str, path: Path | None) -> None:
        follower = follow(path) if path and run_id not in self._follower_by_id else None
        if follower:
            self._follower_by_id[run_id] = follower

    def retry_opening(self, entry: Entry) -> None:
        """Let a run that could not be read be tried again."""
        with entry.lock:
            if entry.stage.kind == "failed":
                entry.stage = NEW

    def _open_store(self, entry: Entry) -> Store | None:
        with self._lock:
            if entry.run_key not in self._open_run_by_id:
                return None
            self._open_run_by_id.move_to_end(entry.run_key)
            return self._open_run_by_id[entry.run_key].store

    def _open_index(self, entry: Entry) -> Store | None:
        if not self._uses_indexes or entry.stage.is_under_way or not entry.choice.is_whole_run:
            return None
        store = Store.from_index(entry.path, entry.run_key)
        if store:
            store.refine()
            self._keep_open(entry, store)
        return store

    def _keep_open(self, entry: Entry, store: Store) -> None:
        """Keep a run open, and close those that were not asked for the longest."""
        if entry.choice.is_whole_run and self._uses_indexes:
            self._follow(entry.run_key, entry.path)
        entry.stage = NEW
        with self._lock:
            self._open_run_by_id[entry.run_key] = OpenRun(store, store.held_bytes)
            while len(self._open_run_by_id) > 1 and self._holds_too_much():
                self._open_run_by_id.popitem(last=False)

    def _holds_too_much(self) -> bool:
        held_bytes = sum(open_run.held_bytes for open_run in self._open_run_by_id.values())
        return len(self._open_run_by_id) > MAX_OPEN_RUNS or held_bytes > self._most_held_bytes

    def _read_in_turn(self, entry: Entry) -> None:
        """Read and analyze a run, or part of one, in its turn; a failure is noted as its stage."""
        try:
            if not entry.choice.is_whole_run:
                self._open_part(entry)
            elif entry.is_awaited_by_page or (
                entry.stage == QUEUED and not self.find_glance(entry)
            ):
                self._analyze_first(entry)
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
            entry.is_awaited_by_page = False
            entry.opening_ended.set()

    def _analyze_first(self, entry: Entry) -> None:
        """Analyze a run for the first time; keep its glance, and it open if a page waits."""
        progress: Progress = partial(entry.track_progress, check=self._worker.raise_if_closed)
        store = self._analyze(entry, progress)
        self._glance_by_id[entry.run_key] = entry.files_state, Glance.from_run(store.run)
        if entry.is_awaited_by_page:
            store.refine()
            self._keep_open(entry, store)
        entry.stage = NEW

    def _analyze(self, entry: Entry, progress: Progress) -> Store:
        """Read a run and analyze it; `progress(activity)` yields the function told the progress."""

        def read() -> Trace:
            with progress("reading") as on_progress:
                return self._read_trace(entry.path, on_progress)

        path = entry.path if self._uses_indexes else None
        return Store.open(path, read, progress, entry.run_key)

    def _open_part(self, entry: Entry) -> None:
        """Read the run of a selection, if it is not open, and narrow it to the selection."""
        run_selection = selection.read(entry.run_key)
        whole_run = self._entry_of_run(run_selection.run_id) if run_selection else None
        if whole_run is None:
            raise TraceNotFound("This run is not served any more.")
        progress: Progress = partial(entry.track_progress, check=self._worker.raise_if_closed)
        store = self.only_store or self._open_store(whole_run) or self._open_index(whole_run)
        if store is None:
            store = self._analyze(whole_run, progress)
            store.refine()
            self._keep_open(whole_run, store)
        narrowed = store.narrow(entry.choice, progress, entry.run_key)
        narrowed.refine()
        self._keep_open(entry, narrowed)


def _ignore_progress(_done: int, _total: int) -> None:
    """Show no progress."""


def _require(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise TraceNotFound(
                f"There is no '{path}': expected trace folders, tables of spans, or a folder that "
                "holds trace folders."
            )
