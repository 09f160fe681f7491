"""Tags that the user gives to runs: short words by which a list of runs is filtered and grouped.

They are kept in one file of the user's (`$XDG_DATA_HOME/tracelens/tags.json`), by the folder of the run:
trace folders may belong to others, an index is made anew, and a cache may be emptied.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

from tracelens.conversion.lock import hold_lock
from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.model.fmt import shown_name
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_TAG_LETTERS: Final = 24
MAX_TAGS_PER_RUN: Final = 12  # of a run
_MOST_BYTES: Final = 16 << 20
_PATIENCE_S: Final = 5.0

TagsByRun = dict[str, tuple[str, ...]]


def tags_file() -> Path:
    """Return the file of the user's tags."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "tracelens" / "tags.json"


def clean_tag(text: object) -> str:
    """Return a tag as it is kept: without blanks at its ends, or characters that act; may be empty."""
    words = " ".join(text.replace(",", " ").split()) if isinstance(text, str) else ""
    return clean(words)[:MAX_TAG_LETTERS].strip()


class Tags:
    """The user's tags of all runs; several servers may change them."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or tags_file()
        self._state_as_read: tuple[int, int] = 0, 0  # when the file changed (ns), and its inode
        self._tags_by_run: TagsByRun = {}

    def tags_of(self, run: Path) -> tuple[str, ...]:
        """Return the tags of a run, in order."""
        return self._read_changed().get(_key(run), ())

    def add(self, run_paths: Iterable[Path], tag: str) -> None:
        """Give runs a tag, unless they have it in any case of its letters.

        Raises:
            InvalidArgument: it has no letter, or a run has too many.
            UnusableInput: the file cannot be read or written.
        """
        new_tag = clean_tag(tag)
        if not new_tag:
            raise InvalidArgument("A tag is a word or two, such as 'baseline'.")
        with self._edit_tags() as tags_by_run:
            for run_key in map(_key, run_paths):
                tags = tags_by_run.get(run_key, ())
                if new_tag.casefold() in map(str.casefold, tags):
                    continue
                if len(tags) >= MAX_TAGS_PER_RUN:
                    raise InvalidArgument(
                        f"A run has {MAX_TAGS_PER_RUN} tags at most: remove one of them first."
                    )
                tags_by_run[run_key] = tuple(sorted([*tags, new_tag], key=str.casefold))

    def remove(self, run: Path, tag: str) -> None:
        """Take a tag off a run, if it has it.

        Raises:
            UnusableInput: the file cannot be read or written.
        """
        with self._edit_tags() as tags_by_run:
            tags = tuple(run_tag for run_tag in tags_by_run.pop(_key(run), ()) if run_tag != tag)
            if tags:
                tags_by_run[_key(run)] = tags

    def _read_changed(self) -> TagsByRun:
        """Return the tags by run, read again if the file changed; none if it cannot be read."""
        try:
            file_state = self._file.stat()
        except OSError:
            return {}
        if (file_state.st_mtime_ns, file_state.st_ino) != self._state_as_read:
            try:
                self._tags_by_run = _read(self._file)
            except UnusableInput:
                self._tags_by_run = {}
            self._state_as_read = file_state.st_mtime_ns, file_state.st_ino
        return self._tags_by_run

    @contextmanager
    def _edit_tags(self) -> Iterator[TagsByRun]:
        """Lock the file, and write the tags by run after they were changed."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            lock_file = self._file.with_suffix(".lock")
            lock_file.touch()
            with hold_lock(lock_file, _PATIENCE_S):
                tags_by_run = _read(self._file) if self._file.exists() else {}
                yield tags_by_run
                _write(self._file, tags_by_run)
        except OSError as error:
            raise UnusableInput(
                f"Tags cannot be kept in '{shown_name(self._file)}': {error.strerror or error}."
            ) from error


def _key(run: Path) -> str:
    return str(run.resolve())


def _read(file: Path) -> TagsByRun:
    """Return the tags of each run from the file."""
    try:
        with file.open(encoding="utf-8") as opened:
            tags_by_run: Any = json.loads(opened.read(_MOST_BYTES))["runs"]
        return {run: tuple(map(str, tags)) for run, tags in tags_by_run.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableInput(
            f"'{shown_name(file)}' holds no tags that can be read: move it out of the way."
        ) from error


def _write(file: Path, tags_by_run: TagsByRun) -> None:
    """Replace the file as a whole: who reads it meanwhile sees the old or the new one."""
    with NamedTemporaryFile("w", dir=file.parent, prefix=".tags-", delete=False) as new_file:
        try:
            new_file.write(json.dumps({"runs": tags_by_run}, indent=1))
            new_file.close()
            Path(new_file.name).replace(file)
        except OSError:
            with suppress(OSError):
                Path(new_file.name).unlink()
            raise
