"""Reads a damaged file as its user would, and says what must not have happened.

Most are given to their reader alone. One of a few is opened with all that follows from it, some of these
as one rank of a run, for which `info` and `validate` run and the other ranks are compared, and some of
these are analyzed, too. Beside the run lies a folder to which links in it lead: nothing in that may ever
change, nor in the run's other files.
"""

from __future__ import annotations

import io
import os
import random
import stat
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Final

import polars as pl
from support.fuzz.counts import uncounted
from support.fuzz.runs import put, write_other_files
from support.fuzz.subjects import Subject, bases

from tracelens import load
from tracelens.cli import bug, main
from tracelens.errors import NotATrace, TraceLensError
from tracelens.model.fmt import shown_name
from tracelens.readers import READERS
from tracelens.readers.base import Reading

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.trace import Trace

__all__ = ["Failure", "Judge", "change_input"]

OPEN_EVERY: Final = 8  # inputs
RUN_EVERY: Final = 32
ANALYZE_EVERY: Final = 96
_DONE: Final = frozenset((0, 1, 3))  # exit codes: done, a problem was found, unusable
_RANK: Final = {"rank1.json": 1, "rank1.json.gz": 1, "rank0.json.gz": 0}  # these do not say it
# Where no recorder numbered calls they are numbered if all ranks make equally many, and not at all else.
_INFERRED: Final = ("seq", "status")
_MOST_TEXT: Final = 2000  # bytes of what a library printed

_State = dict[str, tuple[int, int, int]]


class Failure(Exception):
    """Something that must not happen; the message says what."""


def change_input(subject: Subject, seed: int, number: int, sound: list[bytes]) -> bytes:
    """Return input `number`, the same whenever it is asked for."""
    luck = random.Random(f"{subject.name} {seed} {number}")
    return subject.change(luck.choice(sound), luck)


class Judge:
    """Has a run in a folder of its own, where one file after the other is damaged."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        """Write the run, what lies beside it, and look what sound ranks hold."""
        self._subject = subject
        self._run, self._canary, self._cwd = (folder / name for name in ("run", "canary", "cwd"))
        for place in (self._canary, self._cwd, folder / "cache"):
            place.mkdir()
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), bug.DEBUG: "1"}
        os.chdir(self._cwd)
        (self._canary / "letter.txt").write_text("not a trace")
        (self._canary / "worker-00009-9.segments").mkdir()
        self._others = write_other_files(subject, self._run)
        (self._run / "index-v5").symlink_to(self._canary)
        if subject.is_ours:
            (self._run / "link.segments").symlink_to(self._canary / "worker-00009-9.segments")
        put(subject, self._run, bases(subject)[0])
        self._whole = self._run / subject.file if subject.around == "nothing" else self._run
        self._expected = self._ranks(self._read(self._whole))
        self._before = self._states()

    def look(self, data: bytes, number: int) -> str:
        """Read one input; return what became of it.

        Raises:
            Failure: what must not happen.
        """
        place = put(self._subject, self._run, data)
        try:
            outcome = self._open_input(place, data, aligned=number % OPEN_EVERY == 0)
            if number % RUN_EVERY == 0:
                outcome = self._as_a_run(data, analyzed=number % ANALYZE_EVERY == 0)
        except Failure:
            raise
        except BaseException as error:  # polars' panics are no Exception
            raise Failure(f"{type(error).__name__}\n{traceback.format_exc()}") from error
        finally:
            os.chdir(self._cwd)
        self._check_files()
        self._check_output()
        return outcome

    def _open_input(self, path: Path, data: bytes, *, aligned: bool) -> str:
        named = {self._subject.file_of(data): 1} if self._is_events else {}
        try:
            trace = load.open(path, rank_of=named) if aligned else self._read(path)
            trace.events.collect()
        except TraceLensError as error:
            return self._refused(error)
        if aligned and self._is_events and (wrong := uncounted(path)):
            raise Failure(wrong)
        return "noted" if trace.notes else "read"

    @property
    def _is_events(self) -> bool:
        return self._subject.around == "kineto"

    @staticmethod
    def _refused(error: TraceLensError) -> str:
        if "\n" in str(error) or not str(error):
            raise Failure(f"a sentence of several lines: {error!r}")
        return "refused"

    def _as_a_run(self, data: bytes, *, analyzed: bool) -> str:
        """Run the verbs; compare the other ranks."""
        run_path = self._whole
        verbs = [["info"], ["validate"], *([["analyze", "--format", "json"]] if analyzed else [])]
        ranks = [
            f"--rank-of={name}={rank}" for name, rank in _RANK.items() if (run_path / name).exists()
        ]
        for verb in verbs:
            put(self._subject, self._run, data)
            self._verb([verb[0], str(run_path), *verb[1:], *(ranks if self._is_events else [])])
        put(self._subject, self._run, data)
        try:
            trace = self._read(run_path)
        except TraceLensError as error:
            if self._others and not self._is_wholly_refused():
                raise Failure(f"the other ranks are not read either: {error}") from error
            return self._refused(error)
        frames = self._ranks(trace)
        for name, frame in self._expected.items():
            if name not in frames:
                raise Failure(f"{name} is not read any more")
            if not frames[name].equals(frame):
                raise Failure(f"{name} is read otherwise")
        return "noted" if trace.notes else "read"

    def _is_wholly_refused(self) -> bool:
        """Return whether a reader refuses all if two files contradict each other, and says so."""
        return self._subject.around in {"kineto", "nsight", "flight_recorder", "otf2"}

    def _verb(self, arguments: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = main(arguments)
        except SystemExit as stop:
            raise Failure(f"{arguments[0]} ended with {stop.code}: {err.getvalue()}") from stop
        if code not in _DONE:
            raise Failure(f"{arguments[0]} ended with {code}\n{err.getvalue()}")

    def _read(self, path: Path) -> Trace:
        """Read without alignment, which rightly considers all ranks."""
        reader = next((reader for reader in READERS if reader.sniff(path)), None)
        if reader is None:
            raise NotATrace("no reader recognises it")
        return reader.read(path, Reading(rank_of=_RANK))

    def _ranks(self, trace: Trace) -> dict[str, pl.DataFrame]:
        """Return the events of the other files."""
        names = {shown_name(path.name) for path in self._others}
        rows = trace.processes.filter(pl.col("file").is_in(names)).select("process", "file")
        text_columns = pl.col(pl.Categorical).cast(pl.String)
        others = ("process",) if self._subject.is_ours else ("process", *_INFERRED)
        return {
            file: trace.source.read_frame(process).drop(others).with_columns(text_columns)
            for process, file in rows.iter_rows()
        }

    def _check_files(self) -> None:
        """Look at what lies beside the damaged file and outside of the run."""
        states = self._states()
        if states != self._before:
            changed = sorted(
                name
                for name in {*states, *self._before}
                if states.get(name) != self._before.get(name)
            )
            self._before = states
            raise Failure(f"files outside were changed: {', '.join(changed)}")

    def _check_output(self) -> None:
        """Look whether a library wrote to standard error past Python, as polars' panics do."""
        if os.fstat(2).st_size if stat.S_ISREG(os.fstat(2).st_mode) else 0:
            text = os.pread(2, _MOST_TEXT, 0).decode("utf-8", "replace")
            os.ftruncate(2, 0)
            raise Failure(f"something was printed: {text}")

    def _states(self) -> _State:
        paths = [
            *self._others,
            self._canary,
            *self._canary.rglob("*"),
            self._cwd,
            *self._cwd.iterdir(),
        ]
        return {
            str(path): (state.st_mtime_ns, state.st_size, state.st_ino)
            for path in paths
            for state in [path.lstat()]
        }
