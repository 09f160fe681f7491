"""The journal of a job's life: events of its processes that `record` and `watch` saw from outside.

Each of these programs appends JSON lines to its own file in the trace folder. A line holds an entry
below, with its name in `entry`. All times are wall time in nanoseconds since 1970.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields

from tracelens.schema.gate import open_regular
from tracelens.schema.host import host_name
from tracelens.schema.json_text import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, Final

JOURNALS: Final = "life-*.jsonl"
_MOST_BYTES: Final = 1 << 26
_INTEGER_LIMIT: Final = 1 << 63


@dataclass(frozen=True)
class Launched:
    """`record` started the command; `pid` is that of the command on `host`, `command` its program."""

    at_ns: int
    host: str = ""
    pid: int = 0
    command: str = ""


@dataclass(frozen=True)
class Signalled:
    """`record` got a signal, which it passed on to the command.

    `signal` is its name. `is_key` is True if a key of the terminal sent it, such as Ctrl-C. `parent` is
    the program that started `record`, as far as that is known.
    """

    at_ns: int
    signal: str = ""
    is_key: bool = False
    parent: str = ""


@dataclass(frozen=True)
class Ended:
    """The command ended with an exit code as a shell reports it: 128 + number after a signal."""

    at_ns: int
    code: int = 0


@dataclass(frozen=True)
class Exited:
    """A recorded process ended.

    `code` is its exit code, negative for the number of a signal; null if nobody could read it.
    `incarnation` is that of its recording. `is_out_of_memory` is True if its control group or the kernel
    counted a kill for want of memory meanwhile. `has_recorded` is False for the process of a rank that
    started and left no recording; its `incarnation` is when its Python started.
    """

    at_ns: int
    role: str = "worker"
    rank: int = 0
    host: str = ""
    pid: int = 0
    incarnation: int = 0
    code: int | None = None
    is_out_of_memory: bool = False
    has_recorded: bool = True


@dataclass(frozen=True)
class Stalled:
    """No rank has made progress since `since_ns`.

    `culprits` are the ranks that all others wait for, `waiting` those in the call `op` number `seq` of
    `communicator` (null where no call is open). `states` are those of processes by rank (running,
    sleeping, uninterruptible, stopped, traced, zombie, gone), `stacks` their frames, innermost first, as
    ``function (file:line)``; `no_stacks` says why stacks are missing.
    """

    at_ns: int
    since_ns: int = 0
    culprits: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    communicator: str | None = None
    op: str | None = None
    seq: int | None = None
    step: int | None = None
    states: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    no_stacks: str | None = None


@dataclass(frozen=True)
class Resumed:
    """The stall that began at `since_ns` is over."""

    at_ns: int
    since_ns: int = 0


Entry = Launched | Signalled | Ended | Exited | Stalled | Resumed
_ENTRIES: Final = {
    kind.__name__.lower(): kind for kind in (Launched, Signalled, Ended, Exited, Stalled, Resumed)
}


class Journal:
    """A file of entries that this process appends to; each is on disk before the next statement."""

    def __init__(self, folder: Path) -> None:
        """Open the file, which appears with its first entry.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / JOURNALS.replace("*", f"{host_name()}-{os.getpid()}")

    def append(self, entry: Entry) -> None:
        """Append an entry.

        Raises:
            OSError: the file cannot be written.
        """
        line = dumps({"entry": type(entry).__name__.lower(), **asdict(entry)}) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self._path, flags, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def list_journal_files(folder: Path) -> list[Path]:
    """List the journals of a trace folder by name."""
    return sorted(folder.glob(JOURNALS)) if folder.is_dir() else []


def read_journals(folder: Path) -> list[Entry]:
    """Read the entries of all journals of a trace folder, by time.

    Lines that are no entry are left out: the last one may be cut off, and a newer TraceLens may write
    entries of other names.
    """
    entries = [entry for file in list_journal_files(folder) for entry in _read(file)]
    return sorted(entries, key=lambda entry: entry.at_ns)


def _read(file: Path) -> Iterator[Entry]:
    try:
        with open_regular(file) as stream:
            lines = stream.read(_MOST_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines:
        entry = _parse(line)
        if entry is not None:
            yield entry


def _parse(line: bytes) -> Entry | None:
    """Return the entry of a line; None if a word or a type is not as expected."""
    try:
        row: dict[str, Any] = loads(line)
        kind = _ENTRIES[row.pop("entry")]
        values = {
            entry_field.name: row[entry_field.name]
            for entry_field in fields(kind)
            if entry_field.name in row
        }
        entry = kind(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    is_sound = all(
        _HAS_TYPE[str(entry_field.type)](getattr(entry, entry_field.name))
        for entry_field in fields(kind)
    )
    return entry if is_sound else None


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < _INTEGER_LIMIT


def _are_texts(value: object) -> bool:
    return type(value) is list and all(type(text) is str for text in value)


# Whether a value has the type of an entry's field, by the annotation of the field.
_HAS_TYPE: Final[dict[str, Callable[[Any], bool]]] = {
    "int": _is_number,
    "int | None": lambda value: value is None or _is_number(value),
    "str": lambda value: type(value) is str,
    "str | None": lambda value: value is None or type(value) is str,
    "bool": lambda value: type(value) is bool,
    "list[int]": lambda value: type(value) is list and all(map(_is_number, value)),
    "dict[str, str]": lambda value: type(value) is dict and _are_texts([*value.values()]),
    "dict[str, list[str]]": lambda value: (
        type(value) is dict and all(map(_are_texts, value.values()))
    ),
}
