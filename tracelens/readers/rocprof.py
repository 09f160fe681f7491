"""Reads rocprofv3's JSON: kernels, copies, ranges of ROCTx and calls of RCCL (docs/formats.md).

A file is of a process. Times are nanoseconds since its host was started, the same for all processes of a
host. Records say what they are by numbers into lists of the file's own `strings`.

Source: `source/docs/rocprofv3-schema.json` and `generateJSON.cpp` of ROCm's rocprofiler-sdk, 0.5 to 1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.errors import NotATrace
from tracelens.model.recognition import Gap
from tracelens.readers.event_stream import begin_of_events
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import MOST_NS, as_count, as_object, as_objects, as_text
from tracelens.readers.profiles import CheckedFile, ProfilesReader
from tracelens.readers.soundness import KERNEL_LAUNCHES
from tracelens.readers.words import (
    NOT_OF_NAMES,
    kernel_meaning,
    meaning,
    meaning_of_name,
    step_number,
)
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.files import FileSet

__all__ = ["RocprofReader", "is_rocprof"]

_TOOL: Final = "rocprofiler-sdk-tool"
_MARK: Final = re.compile(rb'^\{\s*"rocprofiler-sdk-tool"\s*:')
_LONGEST_NAME: Final = 256  # characters
_SYNCHRONIZES: Final = re.compile(r"^hip(Ctx|Device|Stream|Event)Synchronize")
_COMPUTES: Final = ("forward", "backprop", "update")
_KERNEL_NAMES: Final = (
    *("formatted_kernel_name", "truncated_kernel_name", "demangled_kernel_name", "kernel_name"),
)
_COPIES: Final = {
    "HOST_TO_DEVICE": "memcpy HtoD",
    "DEVICE_TO_HOST": "memcpy DtoH",
    "DEVICE_TO_DEVICE": "memcpy DtoD",
    "HOST_TO_HOST": "memcpy HtoH",
}
# Records that are in no row, by their list in the file.
_BESIDE: Final = {
    "hsa_api": "calls of HSA",
    "memory_allocation": "allocations of memory",
    "scratch_memory": "records of scratch memory",
    "pc_sample_host_trap": "samples of program counters",
    "pc_sample_stochastic": "samples of program counters",
    "rocdecode_api": "calls of rocDecode",
    "rocjpeg_api": "calls of rocJPEG",
}
_LAUNCH_COLUMNS: Final = {"start_ns": pl.Int64(), "correlation": pl.Int64()}
_COLUMNS: Final[dict[str, pl.DataType]] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "kind": pl.String(),
    "op": pl.String(),
    "name": pl.String(),
    "thread": pl.String(),
    "stream": pl.Int64(),
    "step": pl.Int32(),
    "bytes": pl.Int64(),
    "correlation": pl.Int64(),
}


@dataclass(eq=False)
class Profile(CheckedFile):
    """What one file holds; `pids` are its processes, `launches` begin and correlation of calls."""

    pids: set[int] = field(default_factory=set)
    launches: list[tuple[int | None, int | None]] = field(default_factory=list)

    @property
    def process_count(self) -> int:
        """Number of processes in it."""
        return len(self.pids)


def is_rocprof(path: Path) -> bool:
    """Return True if a file begins as rocprofv3's do."""
    return _MARK.match(begin_of_events(path)) is not None


def profile_of(path: Path) -> Profile:
    """Read one file.

    Raises:
        NotATrace: it does not begin as such, is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    if not is_rocprof(path):
        raise NotATrace("it does not begin as rocprofv3's JSON does")
    profile, document = Profile(), JsonLines(path)
    frames = []
    for content in document:
        for process in _objects(content.get(_TOOL)):
            frames.append(_Process(process, profile).rows())
            refuse_beyond("rows", sum(part.height for part in frames))
    profile.take_damage(document)
    if frames:
        launches = pl.DataFrame(profile.launches, schema=_LAUNCH_COLUMNS, orient="row")
        profile.take_sound_rows(pl.concat(frames, how="diagonal"), launches)
    return profile


class _Process:
    """The records of one process."""

    def __init__(self, process: dict[str, Any], profile: Profile) -> None:
        metadata = as_object(process.get("metadata"))
        self.found = profile
        self.pid = _count(metadata.get("pid"))
        self.host = as_text(as_object(metadata.get("node")).get("hostname"))
        profile.pids.add(self.pid or 0)
        strings = as_object(process.get("strings"))
        self.kinds = list(_objects(strings.get("buffer_records")))
        self.messages = {
            _count(entry.get("key")): as_text(entry.get("value"))
            for entry in _objects(strings.get("marker_api"))
        }
        self.kernels = {
            _count(entry.get("kernel_id", number)): next(
                (name for key in _KERNEL_NAMES if (name := as_text(entry.get(key)))), ""
            )
            for number, entry in enumerate(_objects(process.get("kernel_symbols")))
        }
        self.records = as_object(process.get("buffer_records"))
        counters = as_object(process.get("callback_records")).get("counter_collection")
        if counted := sum(1 for _ in _objects(counters)):
            profile.left_out["collections of counters"] += counted
        self.streams: dict[tuple[object, ...], int] = {}
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}

    def rows(self) -> pl.DataFrame:
        """Return rows in words of `spans.build`; kernels are of the phase that launched them."""
        for record in self._records_of("kernel_dispatch", "kernels"):
            self._kernel(record)
        for record in self._records_of("memory_copy", "copies of memory"):
            self._copy(record)
        communicates = "reduction" in self.columns["kind"]
        for record in self._records_of("marker_api", "ranges of ROCTx"):
            self._range(record)
        for record in self._records_of("rccl_api", ""):
            self._call(record, communicates=communicates)
        launches = [*self._records_of("hip_api", "")]
        self.found.launches += [
            (_count(record.get("start_timestamp")), _correlation(record))
            for record in launches
            if KERNEL_LAUNCHES in self._operation(record)
        ]
        for name, sort in _BESIDE.items():
            if count := sum(1 for _ in self._records_of(name, "")):
                self.found.left_out[sort] += count
        ranges = self._frame().filter(pl.col("stream").is_null())
        self._waits(launches, set(ranges.filter(pl.col("kind").is_in(_COMPUTES))["thread"]))
        rows = _of_phases(self._frame(), launches, ranges)
        words = ("kind", "op", "name", "thread")
        return rows.with_columns(
            pl.col(words).cast(pl.Categorical()),
            pl.lit(self.host or None, pl.Categorical()).alias("host"),
            pl.lit(self.pid, pl.Int64).alias("pid"),
        )

    def _records_of(self, name: str, sort: str) -> Iterator[dict[str, Any]]:
        for record in _objects(self.records.get(name)):
            if sort:
                self.found.sorts[sort] += 1
            yield record

    def _frame(self) -> pl.DataFrame:
        return pl.DataFrame(
            {
                name: pl.Series(self.columns[name], dtype=kind, strict=False)
                for name, kind in _COLUMNS.items()
            }
        )

    def _add(self, record: dict[str, Any], kind: str, name: str, **facts: Any) -> None:
        start, end = (_count(record.get(f"{side}_timestamp")) for side in ("start", "end"))
        if not name or start is None or end is None or end < start:
            self.found.unusable += 1
            return
        correlation = _correlation(record)
        row = {"start_ns": start, "end_ns": end, "kind": kind, "name": name[:_LONGEST_NAME]}
        row |= {"correlation": correlation, **facts}
        for column, cells in self.columns.items():
            cells.append(row.get(column))

    def _stream(self, *key: object) -> int:
        """Number streams of a process: those of all its devices."""
        return self.streams.setdefault(key, len(self.streams))

    def _kernel(self, record: dict[str, Any]) -> None:
        info = as_object(record.get("dispatch_info"))
        name = self.kernels.get(_count(info.get("kernel_id")), "").removesuffix(".kd")
        kind, op = kernel_meaning(name) or ("device", None)
        stream = self._stream(
            *(_handle(info, key) for key in ("agent_id", "queue_id")), _handle(record, "stream_id")
        )
        self._add(record, kind, name, op=op, stream=stream)

    def _copy(self, record: dict[str, Any]) -> None:
        name = self._operation(record).removeprefix("MEMORY_COPY_")
        agents = [_handle(record, key) for key in ("stream_id", "src_agent_id", "dst_agent_id")]
        stream = self._stream("copies", *agents)
        self._add(
            record,
            "device",
            _COPIES.get(name, "memcpy"),
            stream=stream,
            bytes=_count(record.get("bytes")),
        )

    def _range(self, record: dict[str, Any]) -> None:
        """Add a range; what has no length is a mark."""
        if record.get("start_timestamp") == record.get("end_timestamp"):
            self.found.left_out["marks of ROCTx"] += 1
            return
        number = _correlation(record)
        name = self.messages.get(number) or self._operation(record)
        step = step_number(name)
        kind, _ = meaning_of_name(name, excluded=NOT_OF_NAMES | {"reduction"})
        self._add(
            record, "step" if step is not None else kind, name, thread=_thread(record), step=step
        )

    def _call(self, record: dict[str, Any], *, communicates: bool) -> None:
        """Add a call of RCCL, which only queues a kernel where kernels are recorded."""
        name = self._operation(record)
        name_meaning = meaning(name)
        if (
            communicates
            or name_meaning is None
            or name_meaning[0] != "reduction"
            or name_meaning[1] is None
        ):
            self.found.left_out["calls of RCCL"] += 1
            return
        self.found.sorts["calls of RCCL"] += 1
        self._add(record, "reduction", name, op=name_meaning[1], thread=_thread(record))

    def _waits(self, launches: list[dict[str, Any]], trains: set[str]) -> None:
        """Add when threads that train waited for the device; other calls of HIP only queue work."""
        for record in launches:
            name = self._operation(record)
            if _SYNCHRONIZES.match(name) and _thread(record) in trains:
                self.found.sorts["waits for a device"] += 1
                self._add(record, "device", name, thread=_thread(record))
            else:
                self.found.left_out["calls of HIP"] += 1

    def _operation(self, record: dict[str, Any]) -> str:
        """Return the operation of a record, by the numbers of its kind and its operation."""
        kind, operation = _count(record.get("kind")), _count(record.get("operation"))
        if kind is None or operation is None or kind >= len(self.kinds):
            return ""
        names = self.kinds[kind].get("operations")
        return (
            as_text(names[operation]) if isinstance(names, list) and operation < len(names) else ""
        )


def _of_phases(
    rows: pl.DataFrame, launches: list[dict[str, Any]], ranges: pl.DataFrame
) -> pl.DataFrame:
    """Give work of a device the phase of the range, last begun, in which a call of HIP launched it."""
    phases = ranges.filter(pl.col("kind").is_in([*_COMPUTES, "data"]))
    calls = pl.DataFrame(
        [
            (
                _correlation(r),
                _count(r.get("start_timestamp")),
                _thread(r),
            )
            for r in launches
        ],
        schema={"correlation": pl.Int64, "called_ns": pl.Int64, "thread": pl.String},
        orient="row",
    ).drop_nulls()
    if phases.is_empty() or calls.is_empty():
        return rows
    phase_of_correlation = (
        calls.unique("correlation", keep="first")
        .sort("called_ns")
        .join_asof(
            phases.sort("start_ns").select("thread", "start_ns", "end_ns", phase="kind"),
            left_on="called_ns",
            right_on="start_ns",
            by="thread",
            check_sortedness=False,
        )
        .filter(pl.col("called_ns") <= pl.col("end_ns"))
        .select("correlation", "phase")
    )
    ran_there = (pl.col("kind") == "device") & pl.col("stream").is_not_null()
    of_phase = ran_there & pl.col("phase").is_in(_COMPUTES)
    joined = rows.join(phase_of_correlation, on="correlation", how="left", maintain_order="left")
    return joined.with_columns(kind=pl.when(of_phase).then("phase").otherwise("kind")).drop("phase")


def _objects(value: object) -> Iterator[dict[str, Any]]:
    # Older versions wrote the object alone.
    return as_objects(value if isinstance(value, list) else [value])


def _correlation(record: dict[str, Any]) -> int | None:
    return _count(as_object(record.get("correlation_id")).get("internal"))


def _count(value: object) -> int | None:
    return as_count(value, MOST_NS)


def _handle(record: dict[str, Any], key: str) -> int | None:
    return _count(as_object(record.get(key)).get("handle"))


def _thread(record: dict[str, Any]) -> str:
    return f"thread {_count(record.get('thread_id')) or 0}"


class RocprofReader(ProfilesReader[Profile]):
    """Reads a file or a folder of rocprofv3's JSON."""

    name = "trace of rocprofv3"
    suffixes = (".json", ".json.gz")
    why_no_rank = "rocprofv3 does not write ranks"

    is_format = staticmethod(is_rocprof)
    read_file = staticmethod(profile_of)

    def gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield what ranges, kernels and calls do not say."""
        if "step" not in run.kinds:
            yield Gap(
                "no range of ROCTx is called as a step is",
                "where steps begin",
                "Put each step into a range called 'step N', and record with --marker-trace.",
            )
        if not run.kinds.intersection(_COMPUTES):
            yield Gap(
                "no range of ROCTx is called as a phase of training is",
                "which phase ranks compute in",
                "Call ranges forward, backward and optimizer, and record with --marker-trace.",
                decisive=False,
            )
        if "reduction" not in run.kinds:
            yield Gap(
                "no kernel or call of RCCL was recorded",
                "which rank others wait for",
                "Record with --kernel-trace and --rccl-trace.",
                hides_waits=True,
            )
        else:
            yield Gap(
                "kernels and calls of RCCL say neither their group, nor their size or number",
                "which calls belong to each other, where ranks do not make equally many",
                "Record the run with 'tracelens record', or profile it with torch.profiler.",
                decisive=False,
            )
