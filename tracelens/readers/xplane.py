"""Reads profiles of XLA (``.xplane.pb``), as JAX, TensorFlow and PyTorch/XLA write them: one a host.

Planes are the host or a device, lines their threads and streams. Lines of a device that say again what
its operations are part of (modules, scopes, source code) are counted and left out; its steps mark steps
where the host's annotations do not. Times are picoseconds from a line's begin. A file does not say its
rank: one alone is shown as rank 0, and the verdict stays open; of several files the user says it.

Source: tsl/profiler/protobuf/xplane.proto of OpenXLA. Fields that are not needed here are not declared:
protobuf's library skips them. What is made of it: docs/formats.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.errors import NotATrace
from tracelens.model.recognition import Gap
from tracelens.readers.json_values import MOST_NS
from tracelens.readers.profiles import CheckedFile, ProfilesReader
from tracelens.readers.protobuf import classes, whole
from tracelens.readers.soundness import KERNEL_LAUNCHES
from tracelens.readers.words import USER_CODE, kernel_meaning, meaning, meaning_of_name, step_number
from tracelens.schema.gate import contents, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.files import FileSet
    from tracelens.readers.protobuf import Fields

__all__ = ["SUFFIX", "XPlaneReader", "read_profile", "space"]

SUFFIX: Final = ".xplane.pb"
_INT, _UINT, _DOUBLE, _STRING, _BYTES = "INT64", "UINT64", "DOUBLE", "STRING", "BYTES"
_MESSAGES: Final[dict[str, Fields]] = {
    "Stat": {
        "metadata_id": (1, _INT, False),
        "double_value": (2, _DOUBLE, False),
        "uint64_value": (3, _UINT, False),
        "int64_value": (4, _INT, False),
        "str_value": (5, _STRING, False),
        "ref_value": (7, _UINT, False),
    },
    "Event": {
        "metadata_id": (1, _INT, False),
        "offset_ps": (2, _INT, False),
        "duration_ps": (3, _INT, False),
        "stats": (4, "Stat", True),
        "num_occurrences": (5, _INT, False),
    },
    "Line": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "timestamp_ns": (3, _INT, False),
        "events": (4, "Event", True),
        "display_name": (11, _STRING, False),
    },
    "Named": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "display_name": (4, _STRING, False),
    },
    "Entry": {"key": (1, _INT, False), "value": (2, "Named", False)},  # of a map
    "Plane": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "lines": (3, "Line", True),
        "event_metadata": (4, "Entry", True),
        "stat_metadata": (5, "Entry", True),
        "stats": (6, "Stat", True),
    },
    "Space": {
        "planes": (1, "Plane", True),
        "errors": (2, _STRING, True),
        "warnings": (3, _STRING, True),
        "hostnames": (4, _STRING, True),
    },
}


def parse_space(content: bytes) -> Any:
    """Return the outermost message of a file's content.

    Raises:
        NotATrace: it is another file.
        MissingExtra: protobuf's library is not installed.
    """
    space_class = space()
    with whole("XPlane file"):
        return space_class.FromString(content)


@cache
def space() -> Any:
    """Return the class of the outermost message."""
    return classes("xplane", _MESSAGES)["Space"]


_DEVICE: Final = "/device:"
_HOST: Final = "/host:CPU"
_STEPS: Final = "Steps"
_STREAM: Final = re.compile(r"^(?:Stream #|XLA Ops|Async XLA Ops|SparseCore)")
_OF_XLA: Final = re.compile(r"^([a-z]+(?:-[a-z]+)*?)(?:-start|-done)?(?:\.\d+)*$")
_STEP_NUMBER: Final = "step_num"
_CORRELATION: Final = "correlation_id"
_STREAMS_OF_A_DEVICE: Final = 1_000
_PS: Final = 1_000
_LONGEST_NAME: Final = 256
_NONE: Final = -1


class _Track(NamedTuple):
    """A line: `stream` is null on the host; stats that number steps and launches, -1 for none."""

    name: str
    begin_ns: int
    stream: int | None
    step_stat: int
    correlation_stat: int


class _Row(NamedTuple):
    start_ns: int
    end_ns: int
    kind: str
    op: str | None
    name: str
    thread: str | None
    stream: int | None
    step: int | None
    correlation: int | None = None


@dataclass(eq=False)
class Profile(CheckedFile):
    """What one file holds, of the host that wrote it; its `sorts` are planes."""

    host: str = ""


def read_profile(path: Path) -> Profile:
    """Translate a file.

    Raises:
        NotATrace: it is another file, or damaged.
        MissingExtra: protobuf's library is not installed.
        OSError: it cannot be read.
    """
    profile_space = parse_space(contents(path))
    if not profile_space.planes:
        raise NotATrace("there is no plane in it")
    profile = Profile(host=next(iter(profile_space.hostnames), ""))
    rows: list[_Row] = []
    for plane_number, plane in enumerate(profile_space.planes):
        rows += _convert_plane(plane_number, plane, profile)
        refuse_beyond("rows", len(rows))
    spans = _build_rows(_keep_one_step_source(rows)).with_columns(
        host=pl.lit(profile.host or None, pl.String), clock=pl.lit(path.name)
    )
    profile.take_sound_rows(spans, spans.filter(pl.col("stream").is_null()))
    return profile


def _keep_one_step_source(spans: list[_Row]) -> list[_Row]:
    """Keep the steps that the host marks, or else those of the first device; `_NONE` is the host."""
    steps = [span for span in spans if span.kind == "step"]
    sources = {_NONE if step.stream is None else step.stream for step in steps}
    first_source = min(sources, default=_NONE)
    kept_source = None if first_source == _NONE else first_source
    return [span for span in spans if span.kind != "step" or span.stream == kept_source]


def _convert_plane(plane_number: int, plane: Any, profile: Profile) -> Iterator[_Row]:
    """Yield the spans of a plane: the host, or the device with number `plane_number`."""
    metadata_by_id = {entry.key: entry.value for entry in plane.event_metadata}
    stat_name_by_id = {entry.key: entry.value.name for entry in plane.stat_metadata}
    step_stat, launch_stat = (
        next((stat_id for stat_id, name in stat_name_by_id.items() if name == stat_name), _NONE)
        for stat_name in (_STEP_NUMBER, _CORRELATION)
    )
    on_device = plane.name.startswith(_DEVICE)
    for line in plane.lines:
        line_name = line.display_name or line.name
        event_count = len(line.events)
        profile.sorts[plane.name] += event_count
        if on_device and not _STREAM.match(line_name) and line_name != _STEPS:
            left_out_as = f"events of '{line_name[:40]}', which repeat operations"
            profile.left_out[left_out_as] += event_count
            continue
        if not on_device and plane.name != _HOST:
            profile.left_out[f"events of the plane '{plane.name[:40]}'"] += event_count
            continue
        device_stream = plane_number * _STREAMS_OF_A_DEVICE + line.id % _STREAMS_OF_A_DEVICE
        stream = device_stream if on_device else None
        track = _Track(line_name, line.timestamp_ns, stream, step_stat, launch_stat)
        for event in line.events:
            span = _convert_event(event, metadata_by_id.get(event.metadata_id), track)
            if span is None:
                profile.unusable += 1
            else:
                yield span


def _convert_event(event: Any, metadata: Any, track: _Track) -> _Row | None:
    """Return an event as a row; None where it has no name, or no time that there can be."""
    name = (metadata.display_name or metadata.name)[:_LONGEST_NAME] if metadata is not None else ""
    start_ns = track.begin_ns + event.offset_ps // _PS
    end_ns = start_ns + event.duration_ps // _PS
    if not name or event.num_occurrences or not (0 <= start_ns < MOST_NS and abs(end_ns) < MOST_NS):
        return None
    on_host = track.stream is None
    if on_host or track.name == _STEPS:
        step = _step_of(event, track.step_stat, name) if on_host else _number(name)
        if step is not None or not on_host:
            return _Row(start_ns, end_ns, "step", None, name, track.name, track.stream, step)
    kind, op = _meaning_on_host(name) if on_host else _meaning_on_device(name)
    thread = track.name if on_host else None
    is_correlated = not on_host or KERNEL_LAUNCHES in name
    correlation = _stat_value(event, track.correlation_stat) if is_correlated else None
    return _Row(start_ns, end_ns, kind, op, name, thread, track.stream, None, correlation)


def _meaning_on_host(name: str) -> tuple[str, str | None]:
    """Return the kind of an annotation; "$" begins a function of Python."""
    return USER_CODE if name.startswith("$") else meaning_of_name(name)


def _meaning_on_device(name: str) -> tuple[str, str | None]:
    """Return the kind of an operation on a device, by the kernel's name or XLA's."""
    of_xla = _OF_XLA.match(name)
    name_meaning = kernel_meaning(name) or (meaning(of_xla[1]) if of_xla else None)
    return name_meaning if name_meaning and name_meaning[0] == "reduction" else ("device", None)


def _step_of(event: Any, step_stat: int, name: str) -> int | None:
    """Return the step of an annotation of the host, by its stat or its name; None without."""
    value = _stat_value(event, step_stat)
    return step_number(name) if value is None else _number(str(value))


def _stat_value(event: Any, number: int) -> int | None:
    """Return the whole number that an event has as a stat; None if it has no such stat."""
    for stat in event.stats if number != _NONE else ():
        if stat.metadata_id == number:
            value: int = stat.int64_value or stat.uint64_value
            return value if value < 1 << 63 else None
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _build_rows(rows: list[_Row]) -> pl.DataFrame:
    """Return one row per span; steps that a device marks are on no stream."""
    schema = {
        "start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String, "op": pl.String,
        "name": pl.String, "thread": pl.String, "stream": pl.Int64, "step": pl.Int32,
        "correlation": pl.Int64,
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    on_steps = (pl.col("kind") == "step") & pl.col("stream").is_not_null()
    return frame.with_columns(stream=pl.when(~on_steps).then("stream"))


class XPlaneReader(ProfilesReader[Profile]):
    """Reads a file ``HOST.xplane.pb``, or a folder with one a host."""

    name = "profile of XLA (XPlane)"
    format = "profile of XLA"
    suffixes = (SUFFIX,)
    why_no_rank = "XPlane files do not say their rank"
    read_file = staticmethod(read_profile)

    def is_format(self, file: Path, /) -> bool:
        """Return True if a file is called as profilers of XLA call theirs: nothing else marks it."""
        return file.name.endswith(SUFFIX)

    def gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield what no annotation names."""
        if "step" not in run.kinds:
            yield Gap(
                "no step is marked",
                "how steps differ, and which rank is slow in them",
                "Put each step into jax.profiler.StepTraceAnnotation('train', step_num=N).",
                decisive=len(run.contents) > 1,
            )
        if not run.kinds & {"forward", "backprop", "update"}:
            yield Gap(
                "no annotation names a phase of training",
                "which phase ranks compute in: XLA runs a step as one program",
                "Put phases into jax.profiler.TraceAnnotation called forward, backward and optimizer.",
                decisive=False,
            )
        if run.rows["stream"].n_unique() > 1:
            yield Gap(
                "all devices of a process are streams of its rank",
                "which device of a process is slow",
                "Run one process a device.",
                decisive=False,
            )
