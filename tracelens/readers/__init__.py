"""Each reader turns one kind of recording into a `Trace`; the first that recognises a path reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.readers.base import SIMPLY, Reading
from tracelens.schema.gate import beginning
from tracelens.schema.vocabulary import SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace
    from tracelens.readers.base import Reader

_EVENTS: Final = (".json", ".json.gz")
_DATABASES: Final = (".sqlite", ".sqlite3", ".db")
_DFTRACER: Final = (".pfw", ".pfw.gz", *_EVENTS)
_BEGINS: Final = (b"[", b"{", b"\x1f", b"\xef", b" ", b"\n", b"\r", b"\t")  # of JSON, plain or gzip
_OTLP: Final = tuple(
    f"{end}{packed}"
    for end in (".jsonl", ".json", ".otlp", ".pb", ".binpb")
    for packed in ("", ".gz")
)
_RECORDS: Final = (".log", ".log.gz", ".jsonl", ".jsonl.gz", *_EVENTS)
_OTF2: Final = b"\x03BOTF2"
_XPLANE: Final = (".xplane.pb",)
_PERFETTO: Final = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz")
_DUMP: Final = (b"\x80", b"{")  # begins of pickles and of JSON
_NUMBERED: Final = tuple(
    f"{digit}{suffix}" for digit in range(10) for suffix in ("", ".pkl", ".pickle", ".bin", ".json")
)
_STACKS: Final = (*_EVENTS, ".speedscope", ".chrometrace")
_SQLITE: Final = b"SQLite format 3\x00"


@dataclass(frozen=True)
class Format:
    """A reader whose module is imported when a path may be of its format."""

    may_be: Callable[[Path], bool]
    reader: Callable[[], Reader]

    @property
    def name(self) -> str:
        """Name the format in a few words."""
        return self.reader().name

    def sniff(self, path: Path) -> bool:
        """Return whether `path` looks like this format, without reading much of it."""
        return self.may_be(path) and self.reader().sniff(path)

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read it, as `Reader.read` says."""
        return self.reader().read(path, how)


def _table() -> Reader:
    from tracelens.readers.table import TableReader

    return TableReader()


def _native() -> Reader:
    from tracelens.readers.native.reader import NativeReader

    return NativeReader()


def _kineto() -> Reader:
    from tracelens.readers.kineto import KinetoReader

    return KinetoReader()


def _nsight() -> Reader:
    from tracelens.readers.nsight import NsightReader

    return NsightReader()


def _flight_recorder() -> Reader:
    from tracelens.readers.flight_recorder import FlightRecorderReader

    return FlightRecorderReader()


def _dftracer() -> Reader:
    from tracelens.readers.dftracer import DFTracerReader

    return DFTracerReader()


def _may_hold_lines(path: Path) -> bool:
    """Return whether a file begins as JSON or gzip does, or names in a folder say that some may."""
    if path.is_file():
        return beginning(path, 1) in _BEGINS
    return _holds(path, _DFTRACER)


def _viztracer() -> Reader:
    from tracelens.readers.viztracer import VizTracerReader

    return VizTracerReader()


def _stacks() -> Reader:
    from tracelens.readers.stacks import StacksReader

    return StacksReader()


def _may_hold_stacks(path: Path) -> bool:
    """Return whether a file begins as JSON or gzip does, or names in a folder say that some may."""
    return _holds(path, _STACKS) if path.is_dir() else _may_hold_lines(path)


def _perfetto() -> Reader:
    from tracelens.readers.perfetto import PerfettoReader

    return PerfettoReader()


def _may_be_packets(path: Path) -> bool:
    """Return whether a file begins as Perfetto's packets or gzip do, or one in a folder is called so."""
    if path.is_file():
        return beginning(path, 1) in (b"\n", b"\x1f")
    return _holds(path, _PERFETTO)


def _otlp() -> Reader:
    from tracelens.readers.otlp import OtlpReader

    return OtlpReader()


def _may_be_requests(path: Path) -> bool:
    """Return whether a file begins as JSON, gzip or a message of protobuf may, or a name says so."""
    if path.is_file():
        return beginning(path, 1) in (*_BEGINS, b"\0") or path.name.endswith(_OTLP)
    return _holds(path, _OTLP)


def _nccl_inspector() -> Reader:
    from tracelens.readers.nccl_inspector import NcclInspectorReader

    return NcclInspectorReader()


def _may_hold_records(path: Path) -> bool:
    """Return whether a file begins as JSON or gzip does, or names in a folder say that some may."""
    return _holds(path, _RECORDS) if path.is_dir() else _may_hold_lines(path)


def _rocprof() -> Reader:
    from tracelens.readers.rocprof import RocprofReader

    return RocprofReader()


def _exported_events() -> Reader:
    from tracelens.readers.exported_events import ExportedEventsReader

    return ExportedEventsReader()


def _horovod() -> Reader:
    from tracelens.readers.horovod import HorovodReader

    return HorovodReader()


def _may_be_timeline(path: Path) -> bool:
    """Return whether it is a file that begins as JSON or gzip does, whatever its name."""
    return path.is_file() and beginning(path, 1) in _BEGINS


def _otf2() -> Reader:
    from tracelens.readers.otf2 import Otf2Reader

    return Otf2Reader()


def _xplane() -> Reader:
    from tracelens.readers.xplane import XPlaneReader

    return XPlaneReader()


def _may_be_xplane(path: Path) -> bool:
    """Return whether a file is called as profilers of XLA call theirs, or one in a folder is."""
    return _holds(path, _XPLANE) if path.is_dir() else path.name.endswith(_XPLANE)


def _may_be_archive(path: Path) -> bool:
    """Return whether a file begins as OTF2's anchors do, or names in a folder say that one may."""
    if path.is_file():
        return beginning(path, len(_OTF2)) == _OTF2
    return _holds(path, (".otf2",))


def _may_be_dump(path: Path) -> bool:
    """Return whether a file begins as pickles or JSON do, or names in a folder end in ranks."""
    if path.is_file():
        return beginning(path, 1) in _DUMP
    return _holds(path, _NUMBERED)


def _may_be_database(path: Path) -> bool:
    """Return whether a file begins as SQLite's do, or names in a folder say that some may."""
    if path.is_file():
        return beginning(path, len(_SQLITE)) == _SQLITE
    return _holds(path, _DATABASES)


def _may_hold_events(path: Path) -> bool:
    """Return whether names say that there may be trace events in JSON, and no recording of our own."""
    return _holds(path, _EVENTS) if path.is_dir() else path.name.endswith(_EVENTS)


def _holds(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a folder has a file with one of the suffixes, and no recording of our own."""
    if not path.is_dir():
        return False
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries]
    ours = any(name.endswith((TRACE_SUFFIX, SEGMENTS_SUFFIX)) for name in names)
    return not ours and any(name.endswith(suffixes) for name in names)


READERS: Final[tuple[Reader, ...]] = (
    Format(Path.is_file, _table),
    Format(_may_be_database, _nsight),
    Format(_may_be_dump, _flight_recorder),
    Format(_may_be_archive, _otf2),
    Format(_may_be_xplane, _xplane),
    Format(_may_be_packets, _perfetto),
    Format(_may_be_requests, _otlp),
    Format(_may_hold_records, _nccl_inspector),
    Format(_may_hold_lines, _dftracer),
    Format(_may_hold_records, _rocprof),
    Format(_may_be_timeline, _exported_events),
    Format(_may_be_timeline, _horovod),
    Format(_may_hold_events, _viztracer),
    Format(_may_hold_stacks, _stacks),
    Format(_may_hold_events, _kineto),
    Format(Path.exists, _native),
)
