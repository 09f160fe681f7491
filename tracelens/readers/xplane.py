"""Reads profiles of XLA (``.xplane.pb``), as JAX, TensorFlow and PyTorch/XLA write them: one a host.

Planes are the host or a device, lines their threads and streams. Lines of a device that repeat what its
operations are part of (modules, scopes, source code) are counted and left out. Times are picoseconds
from a line's begin. A file does not say its rank.

Source: tsl/profiler/protobuf/xplane.proto of OpenXLA. Fields that are not needed here are not declared.
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
from tracelens.readers.protobuf import build_classes, refuse_damage
from tracelens.readers.soundness import KERNEL_LAUNCHES
from tracelens.readers.words import (
    USER_CODE,
    find_kernel_meaning,
    find_meaning,
    find_meaning_of_names,
    parse_step_number,
)
from tracelens.schema.gate import read_contents, refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.files import FileSet
    from tracelens.readers.protobuf import Fields
    from tracelens.readers.words import Meaning

SUFFIX: Final = ".xplane.pb"
_INT, _UINT, _DOUBLE, _STRING, _BYTES = "INT64", "UINT64", "DOUBLE", "STRING", "BYTES"
_MESSAGES: Final[dict[str, Fields]] = {
    "Stat": {
        "metadata_id": (1, _INT, False), "double_value": (2, _DOUBLE, False),
        "uint64_value": (3, _UINT, False), "int64_value": (4, _INT, False),
        "str_value": (5, _STRING, False), "ref_value": (7, _UINT, False),
    },
    "Event": {
        "metadata_id": (1, _INT, False), "offset_ps": (2, _INT, False),
        "duration_ps": (3, _INT, False), "stats": (4, "Stat", True),
        "num_occurrences": (5, _INT, False),
    },
    "Line": {
        "id": (1, _INT, False), "name": (2, _STRING, False), "timestamp_ns": (3, _INT, False),
        "events": (4, "Event", True), "display_name": (11, _STRING, False),
    },
    "Named": {
        "id": (1, _INT, False), "name": (2, _STRING, False), "display_name": (4, _STRING, False),
    },
    "Entry": {"key": (1, _INT, False), "value": (2, "Named", False)},  # of a map
    "Plane": {
        "id": (1, _INT, False), "name": (2, _STRING, False), "lines": (3, "Line", True),
        "event_metadata": (4, "Entry", True), "stat_metadata": (5, "Entry", True),
        "stats": (6, "Stat", True),
    },
    "Space": {
        "planes": (1, "Plane", True), "errors": (2, _STRING, True), "warnings": (3, _STRING, True),
        "hostnames": (4, _STRING, True),
    },
}  # fmt: skip


def parse_space(content: bytes) -> Any:
    """Return the outermost message of a file's content, with its planes."""
    space_class = space()
    with refuse_damage("XPlane file"):
        return space_class.FromString(content)


@cache
def space() -> Any:
    """Return the class of the outermost message."""
    return build_classes("xplane", _MESSAGES)["Space"]


_DEVICE: Final = "/device:"
_HOST: Final = "/host:CPU"
_STEPS: Final = "Steps"
_STREAM: Final = re.compile(r"^(?:Stream #|XLA Ops|Async XLA Ops|SparseCore)")
_XLA_NAME: Final = re.compile(r"^([a-z]+(?:-[a-z]+)*?)(?:-start|-done)?(?:\.\d+)*$")
_STEP_NUMBER: Final = "step_num"
_CORRELATION: Final = "correlation_id"
_STREAMS_OF_A_DEVICE: Final = 1_000
_PS_PER_NS: Final = 1_000
_MAX_CHARACTERS_OF_NAME: Final = 256
_NONE: Final = -1


class _Track(NamedTuple):
    """A line of a plane: a thread of the host, or a stream of a device."""

    name: str
    origin_ns: int  # times of its events are since then
    stream: int | None  # None on the host
    step_stat_id: int  # of the stat that numbers steps, -1 without one
    correlation_stat_id: int  # of the stat that ties work to its launch, -1 without one


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
    """What one file holds, of the host that wrote it; events are counted by plane."""

    host: str = ""


def read_profile(path: Path) -> Profile:
    """Read the profile in a file, as `FilesReader.read_file` says."""
    profile_space = parse_space(read_contents(path))
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
    profile.set_sound_rows(spans, spans.filter(pl.col("stream").is_null()))
    return profile


def _keep_one_step_source(spans: list[_Row]) -> list[_Row]:
    """Keep the steps that the host marks (on no stream), or else those of the first device."""
    streams_of_steps = {span.stream for span in spans if span.kind == "step"}
    device_streams = [stream for stream in streams_of_steps if stream is not None]
    kept_stream = None if None in streams_of_steps else min(device_streams, default=None)
    return [span for span in spans if span.kind != "step" or span.stream == kept_stream]


def _convert_plane(plane_number: int, plane: Any, profile: Profile) -> Iterator[_Row]:
    """Yield the spans of a plane: the host, or the device with number `plane_number`."""
    metadata_by_id = {entry.key: entry.value for entry in plane.event_metadata}
    stat_name_by_id = {entry.key: entry.value.name for entry in plane.stat_metadata}
    step_stat_id, correlation_stat_id = (
        next((stat_id for stat_id, name in stat_name_by_id.items() if name == stat_name), _NONE)
        for stat_name in (_STEP_NUMBER, _CORRELATION)
    )
    on_device = plane.name.startswith(_DEVICE)
    for line in plane.lines:
        line_name = line.display_name or line.name
        event_count = len(line.events)
        profile.event_counts[plane.name] += event_count
        if on_device and not _STREAM.match(line_name) and line_name != _STEPS:
            left_out_as = f"events of '{line_name[:40]}', which repeat operations"
            profile.left_out_counts[left_out_as] += event_count
            continue
        if not on_device and plane.name != _HOST:
            profile.left_out_counts[f"events of the plane '{plane.name[:40]}'"] += event_count
            continue
        device_stream = plane_number * _STREAMS_OF_A_DEVICE + line.id % _STREAMS_OF_A_DEVICE
        stream = device_stream if on_device else None
        track = _Track(line_name, line.timestamp_ns, stream, step_stat_id, correlation_stat_id)
        for event in line.events:
            span = _convert_event(event, metadata_by_id.get(event.metadata_id), track)
            if span is None:
                profile.unusable_count += 1
            else:
                yield span


def _convert_event(event: Any, metadata: Any, track: _Track) -> _Row | None:
    """Return an event as a row; None where it has no name, or no time that there can be.

    Events of the line of steps, and those of the host that are numbered, are steps.
    """
    name = (
        (metadata.display_name or metadata.name)[:_MAX_CHARACTERS_OF_NAME]
        if metadata is not None
        else ""
    )
    start_ns = track.origin_ns + event.offset_ps // _PS_PER_NS
    end_ns = start_ns + event.duration_ps // _PS_PER_NS
    if not name or event.num_occurrences or not (0 <= start_ns < MOST_NS and abs(end_ns) < MOST_NS):
        return None
    on_host = track.stream is None
    if on_host or track.name == _STEPS:
        step = _find_step(event, track.step_stat_id, name) if on_host else _parse_number(name)
        if step is not None or not on_host:
            return _Row(start_ns, end_ns, "step", op=None, name=name, thread=track.name,
                        stream=track.stream, step=step)  # fmt: skip
    kind, op = _find_meaning_on_host(name) if on_host else _find_meaning_on_device(name)
    thread = track.name if on_host else None
    is_correlated = not on_host or KERNEL_LAUNCHES in name
    correlation = _read_stat(event, track.correlation_stat_id) if is_correlated else None
    return _Row(
        start_ns, end_ns, kind, op, name, thread, track.stream, step=None, correlation=correlation
    )


def _find_meaning_on_host(name: str) -> Meaning:
    """Return the kind of an annotation; "$" begins a function of Python."""
    return USER_CODE if name.startswith("$") else find_meaning_of_names(name)


def _find_meaning_on_device(name: str) -> Meaning:
    """Return the kind of an operation on a device, by the kernel's name or XLA's."""
    xla_name = _XLA_NAME.match(name)
    kind, op = (
        find_kernel_meaning(name) or (find_meaning(xla_name[1]) if xla_name else None) or USER_CODE
    )
    return (kind, op) if kind == "reduction" else ("device", None)


def _find_step(event: Any, step_stat_id: int, name: str) -> int | None:
    """Return the step of an annotation of the host, by its stat or its name; None without."""
    value = _read_stat(event, step_stat_id)
    return parse_step_number(name) if value is None else _parse_number(str(value))


def _read_stat(event: Any, stat_id: int) -> int | None:
    """Return the whole number that an event has as a stat; None if it has no such stat."""
    for stat in event.stats if stat_id != _NONE else ():
        if stat.metadata_id == stat_id:
            value: int = stat.int64_value or stat.uint64_value
            return value if value < 1 << 63 else None
    return None


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _build_rows(rows: list[_Row]) -> pl.DataFrame:
    """Return one row per span, in the fields of `_Row`; steps that a device marks are on no stream."""
    schema = {
        "start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.String, "op": pl.String,
        "name": pl.String, "thread": pl.String, "stream": pl.Int64, "step": pl.Int32,
        "correlation": pl.Int64,
    }  # fmt: skip
    is_step_on_device = (pl.col("kind") == "step") & pl.col("stream").is_not_null()
    spans = pl.DataFrame(rows, schema=schema, orient="row")
    return spans.with_columns(stream=pl.when(~is_step_on_device).then("stream"))


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

    def list_gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield what no annotation names."""
        if "step" not in run.kinds:
            yield Gap(
                "no step is marked",
                "how steps differ, and which rank is slow in them",
                "Put each step into jax.profiler.StepTraceAnnotation('train', step_num=N).",
                is_decisive=len(run.file_by_name) > 1,
            )
        if not run.kinds & {"forward", "backprop", "update"}:
            yield Gap(
                "no annotation names a phase of training",
                "which phase ranks compute in: XLA runs a step as one program",
                "Put phases into jax.profiler.TraceAnnotation called forward, backward and optimizer.",
                is_decisive=False,
            )
        if run.rows["stream"].n_unique() > 1:
            yield Gap(
                "all devices of a process are streams of its rank",
                "which device of a process is slow",
                "Run one process a device.",
                is_decisive=False,
            )
