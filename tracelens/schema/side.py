"""Side tables: what a process says once, instead of in every event.

While training runs they are lines of JSON in ``side.jsonl`` with the segments, each appended by one
`write`, so that a killed process leaves whole lines. In the Arrow file they stand as JSON in the schema
metadata, the communicators apart, which may name thousands of ranks and are mostly the same in all
files. Either way they are read back into `SideTables`. At a file's end a `Summary` follows them.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache

from tracelens.errors import NewerVersion, NotATrace
from tracelens.schema.endings import Ending
from tracelens.schema.json_text import dumps, loads
from tracelens.schema.vocabulary import SCHEMA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Final, TypeAlias

    SideRow: TypeAlias = (
        "Process | Definition | Thread | Communicator | ClockReading | Retention | Kept | Past"
        " | Ending | DetailChange"
    )

METADATA_KEY: Final = b"tracelens"
CONVERSION_KEY: Final = b"tracelens.conversion"  # of a table that a conversion wrote
COMMUNICATORS_KEY: Final = b"tracelens.communicators"
SUMMARY_KEY: Final = b"tracelens.summary"
METADATA_CHECKSUM_KEY: Final = b"tracelens.crc32"
_SINGLE_TEXT: Final = 1  # the version in which all side tables were one text, without a checksum
_MAX_TABLES_CACHED: Final = 32  # different tables of communicators that are kept
MAX_NAME: Final = 1000
_INTEGER_LIMIT: Final = 2**63
END_LINE: Final = b'{"table":"end"}\n'


@dataclass(frozen=True)
class Process:
    """Who recorded: one process of the job.

    `clock_domain` names the monotonic clock: processes with equal values share one.
    `incarnation` tells restarts of a rank apart (nanoseconds of wall time at start).
    `parent_rank_pid` is the pid of the recording process this one was forked or spawned from.
    `cores` are those on which it may run, such as ``0-3,8``, and `core_quota` how many cores' time it
    may use; null where nothing tells, or nothing limits it. `started_ns` is the wall time at which the
    process itself began, before it recorded; null where nothing tells.
    """

    role: str = "worker"
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    host: str = ""
    clock_domain: str = ""
    pid: int = 0
    parent_pid: int = 0
    parent_rank_pid: int | None = None
    incarnation: int = 0
    job: str = ""
    shard: int | None = None
    cores: str | None = None
    core_quota: float | None = None
    started_ns: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Definition:
    """The meaning of a record's `definition` number; `id` counts from 1."""

    id: int
    name: str
    kind: str
    type: str = "span"
    op: str | None = None
    algorithm: str | None = None
    communicator: int | None = None
    shard: int | None = None


@dataclass(frozen=True)
class Thread:
    """A row of the thread table.

    `in_flight` marks a track that is no thread: operations in flight (non-blocking
    collectives, gradient buckets), which may overlap each other and everything else. `device` is the
    number of the device whose stream this row is.
    """

    index: int
    name: str
    native_id: int = 0
    in_flight: bool = False
    device: int | None = None


@dataclass(frozen=True)
class Communicator:
    """A group of ranks that act together.

    `index` is this process's number for it; `uid` is equal in all its members and differs between
    groups (a hash of job, global ranks and order of creation).
    """

    index: int
    uid: str
    name: str
    ranks: list[int]


@dataclass(frozen=True)
class ClockReading:
    """One look at two clocks, nanoseconds.

    ``local``: `monotonic_ns` and `wall_ns` of this process, read within `window_ns`; and for how long
    its main thread has run on a core so far, `ran_ns`, and waited for one, `queued_ns`.
    ``ping_pong``: this process's clock minus `peer`'s is `offset_ns`, +- `window_ns` / 2 (half the
    smallest round trip), at `monotonic_ns` of this process.
    ``common``: a conversion brought the times of this process onto the clock of another host; how sure
    that is, +- `window_ns` / 2.
    ``device``: at `monotonic_ns`, which was read within `window_ns`, this process's clock minus that of
    `device` is `offset_ns`.
    """

    method: str
    monotonic_ns: int
    window_ns: int
    wall_ns: int | None = None
    peer: int | None = None
    offset_ns: int | None = None
    device: int | None = None
    ran_ns: int | None = None
    queued_ns: int | None = None


@dataclass(frozen=True)
class Retention:
    """What was to be kept of a recording; all of it, where nothing else is said.

    `last`: only this number of last steps. `every`: the detail of `burst` consecutive steps out of this
    many. `budget_bytes`: no more than that on disk. `detail`: what framework hooks were to record, one
    of `tracelens.schema.vocabulary.DETAILS`; unknown in traces from before it was a choice.
    """

    last: int | None = None
    every: int | None = None
    burst: int = 1
    budget_bytes: int | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Kept:
    """A moment at which the last steps were to be kept (monotonic clock), and the segment in use."""

    at_ns: int
    segment: int


@dataclass(frozen=True)
class DetailChange:
    """From `at_ns` on (monotonic clock) the process recorded at another detail, as was requested.

    `level` is a level of `DETAILS`, `sampling_hz` the rate at which stacks were sampled, null for none.
    """

    at_ns: int
    level: str
    sampling_hz: int | None = None


@dataclass(frozen=True)
class Past:
    """Steps that were left out because only the last were kept: how many, how long, the longest."""

    first: int
    last: int
    steps: int
    total_ns: int
    longest_ns: int
    longest: int


def summarize_steps(steps: Sequence[tuple[int, int, int]]) -> list[Past]:
    """Sum up steps (number, begin, end; ns) in one row; no row if no step has a number of 0 or more."""
    lengths = [(end - start, step) for step, start, end in steps if end >= start and step >= 0]
    if not lengths:
        return []
    numbers = [step for _, step in lengths]
    longest_ns, longest_step = max(lengths)
    return [
        Past(
            first=min(numbers),
            last=max(numbers),
            steps=len(lengths),
            total_ns=sum(length_ns for length_ns, _ in lengths),
            longest_ns=longest_ns,
            longest=longest_step,
        )
    ]


@dataclass(frozen=True)
class SideTables:
    """All side tables of one process.

    `dropped` counts lost events by reason, `thinned` by kind those that step sampling left out; `notes`
    are sentences on what a conversion left out as asked; `endings` are what ended the process, or a
    thread of it, the first one first; `details` are changes of detail while it recorded;
    `complete` says that the process ended its recording itself (false: killed, or still running), and
    `sorted` that the rows are in order of their begin.
    """

    process: Process = field(default_factory=Process)
    definitions: tuple[Definition, ...] = ()
    threads: tuple[Thread, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    retention: Retention = field(default_factory=Retention)
    kept: tuple[Kept, ...] = ()
    past: tuple[Past, ...] = ()
    thinned: dict[str, int] = field(default_factory=dict)
    sorted: bool = True
    notes: tuple[str, ...] = ()
    endings: tuple[Ending, ...] = ()
    details: tuple[DetailChange, ...] = ()

    def to_metadata(self, summary: Summary | None = None) -> dict[bytes, bytes]:
        """Pack into Arrow schema metadata (definitions are already in the columns).

        In the layout of the version that the process row names; the first one has no summary.
        """
        if self.process.schema == _SINGLE_TEXT:
            return {METADATA_KEY: dumps(asdict(replace(self, definitions=()))).encode()}
        packed = asdict(replace(self, definitions=(), communicators=()))
        del packed["communicators"]
        groups = [vars(group) for group in self.communicators]
        texts = {METADATA_KEY: packed, COMMUNICATORS_KEY: groups}
        if summary is not None:
            texts[SUMMARY_KEY] = vars(summary)
        return with_checksum({key: dumps(text).encode() for key, text in texts.items()})

    @classmethod
    def from_metadata(
        cls, metadata: dict[bytes, bytes] | None, *, is_checked: bool = False
    ) -> SideTables:
        """Unpack from Arrow schema metadata, whose checksum may have been found right already.

        Raises:
            NotATrace: the metadata is not ours or is damaged.
            NewerVersion: it was written by a newer TraceLens.
        """
        metadata = metadata or {}
        text = metadata.get(METADATA_KEY)
        if text is None:
            raise NotATrace("it is an Arrow file without TraceLens metadata")
        if not is_checked and not is_intact(metadata):
            raise NotATrace("its TraceLens metadata is damaged (its checksum is wrong)")
        try:
            packed = loads(text)
            check_version(packed["process"].get("schema"))
            return cls(
                process=_build(Process, packed["process"]),
                threads=tuple(_build(Thread, row) for row in packed["threads"]),
                communicators=_parse_communicators(metadata[COMMUNICATORS_KEY])
                if COMMUNICATORS_KEY in metadata
                else tuple(_build(Communicator, row) for row in packed["communicators"]),
                clocks=tuple(_build(ClockReading, row) for row in packed["clocks"]),
                dropped={str(k): int(v) for k, v in packed["dropped"].items()},
                complete=bool(packed["complete"]),
                retention=_build(Retention, packed.get("retention", {})),
                kept=tuple(_build(Kept, row) for row in packed.get("kept", ())),
                past=tuple(_build(Past, row) for row in packed.get("past", ())),
                thinned={str(k): int(v) for k, v in packed.get("thinned", {}).items()},
                sorted=bool(packed.get("sorted", True)),
                notes=tuple(packed.get("notes", ())),
                endings=tuple(_build(Ending, row) for row in packed.get("endings", ())),
                details=tuple(_build(DetailChange, row) for row in packed.get("details", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotATrace(f"its TraceLens metadata is damaged ({error})") from error


@dataclass(frozen=True)
class Summary:
    """What a whole file holds: known without reading its events.

    `rows` are events, `spans` those of type span, `steps` the steps of the training thread (not
    negative; of a process without step spans the step numbers of its busiest thread). `first_ns` and
    `last_ns` are the first begin and the last begin or end, null without events. `dropped` counts events
    that were lost without having been asked for; `kinds` are those of the events, in order of name.
    """

    rows: int
    spans: int
    steps: int
    first_ns: int | None
    last_ns: int | None
    dropped: int
    kinds: list[str]

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes] | None) -> Summary | None:
        """Unpack from the schema metadata at a file's end; None if it has no sound summary."""
        try:
            summary = _build(cls, loads((metadata or {})[SUMMARY_KEY]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        times = [time for time in (summary.first_ns, summary.last_ns) if time is not None]
        numbers = (summary.rows, summary.spans, summary.steps, summary.dropped, *times)
        is_sound = all(type(number) is int and 0 <= number < _INTEGER_LIMIT for number in numbers)
        has_words = isinstance(summary.kinds, list) and all(
            isinstance(k, str) for k in summary.kinds
        )
        return summary if is_sound and has_words and len(times) in {0, 2} else None


def is_intact(metadata: dict[bytes, bytes] | None) -> bool:
    """Return True if the checksum of the texts in Arrow schema metadata is right, or missing."""
    checksum = (metadata or {}).get(METADATA_CHECKSUM_KEY)
    return checksum is None or checksum == _checksum(metadata or {})


def with_checksum(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return Arrow schema metadata with the right checksum of its texts."""
    return metadata | {METADATA_CHECKSUM_KEY: _checksum(metadata)}


def _checksum(metadata: dict[bytes, bytes]) -> bytes:
    """Return the CRC-32 of the texts of ours, one after the other, as eight hexadecimal digits."""
    keys = (METADATA_KEY, COMMUNICATORS_KEY, SUMMARY_KEY)
    return b"%08x" % zlib.crc32(b"".join(metadata.get(key, b"") for key in keys))


@lru_cache(_MAX_TABLES_CACHED)
def _parse_communicators(text: bytes) -> tuple[Communicator, ...]:
    return tuple(_build(Communicator, row) for row in loads(text))


_ROWS: Final[dict[str, type[SideRow]]] = {
    "definitions": Definition,
    "threads": Thread,
    "communicators": Communicator,
    "clocks": ClockReading,
    "kept": Kept,
    "past": Past,
    "endings": Ending,
    "details": DetailChange,
}


def format_line(table: str, row: SideRow) -> bytes:
    """Return one line of the side file; `table` is a field of `SideTables`."""
    return dumps({"table": table, **asdict(row)}).encode() + b"\n"


def format_dropped_line(reason: str, count: int) -> bytes:
    """Return the line: `count` events were lost so far for `reason` (the last of a reason counts)."""
    return dumps({"table": "dropped", "reason": reason, "count": count}).encode() + b"\n"


def parse_lines(lines: Iterable[bytes]) -> SideTables:
    """Read a side file; a last line cut off by a full disk is left out.

    Raises:
        NotATrace: there is no process line, so the process of these events is not known.
        NewerVersion: it was written by a newer TraceLens.
    """
    process: Process | None = None
    rows: dict[str, list[Any]] = {table: [] for table in _ROWS}
    dropped: dict[str, int] = {}
    complete = False
    retention = Retention()
    for line in lines:
        try:
            row = loads(line)
            table = row.pop("table")
            if table == "process":
                check_version(row.get("schema"))
                process = _build(Process, row)
            elif table == "dropped":
                dropped[str(row["reason"])] = int(row["count"])
            elif table == "end":
                complete = True
            elif table == "retention":
                retention = _build(Retention, row)
            elif table in _ROWS:
                rows[table].append(_build(_ROWS[table], row))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    if process is None:
        raise NotATrace("its side file names no process")
    tables: dict[str, Any] = {table: tuple(table_rows) for table, table_rows in rows.items()}
    return SideTables(
        process=process, dropped=dropped, complete=complete, retention=retention, **tables
    )


def check_version(version: object) -> None:
    """Refuse what a newer TraceLens wrote."""
    if not isinstance(version, int) or version < 1:
        raise NotATrace(f"its schema version is {version!r}, expected a number from 1")
    if version > SCHEMA_VERSION:
        raise NewerVersion(
            f"it has schema version {version}, this TraceLens reads up to {SCHEMA_VERSION}: "
            "update TraceLens to read it"
        )


def _build(cls: type[Any], row: dict[str, Any]) -> Any:
    """Build a row (`cls`) from JSON; fields that a later minor version added are ignored."""
    fields = cls.__annotations__
    if row.keys() <= fields.keys():
        return cls(**row)
    return cls(**{key: value for key, value in row.items() if key in fields})
