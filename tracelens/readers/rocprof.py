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
from tracelens.readers.event_stream import read_first_bytes
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_lines import JsonLines
from tracelens.readers.json_values import MOST_NS, as_count, as_object, as_objects, as_text
from tracelens.readers.profiles import CheckedFile, ProfilesReader
from tracelens.readers.soundness import KERNEL_LAUNCHES
from tracelens.readers.words import (
    NOT_OF_NAMES,
    USER_CODE,
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
    return _MARK.match(read_first_bytes(path)) is not None


def read_profile(path: Path) -> Profile:
    """Read one file.

    Raises:
        NotATrace: it does not begin as such, is no regular file, or larger than it may be.
        OSError: it cannot be read.
    """
    if not is_rocprof(path):
        raise NotATrace("it does not begin as rocprofv3's JSON does")
    profile, documents = Profile(), JsonLines(path)
    tables = []
    for document in documents:
        for process in _objects(document.get(_TOOL)):
            tables.append(_Process(process, profile).rows())
            refuse_beyond("rows", sum(table.height for table in tables))
    profile.take_damage(documents)
    if tables:
        launches = pl.DataFrame(profile.launches, schema=_LAUNCH_COLUMNS, orient="row")
        profile.take_sound_rows(pl.concat(tables, how="diagonal"), launches)
    return profile


class _Process:
    """The records of one process."""

    def __init__(self, process: dict[str, Any], profile: Profile) -> None:
        """Read the names of a process, and count the records of it that are not read."""
        metadata = as_object(process.get("metadata"))
        self.profile = profile
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
        if counter_count := sum(1 for _ in _objects(counters)):
            profile.left_out["collections of counters"] += counter_count
        self.streams: dict[tuple[object, ...], int] = {}
        self.spans = RowBuffer(_COLUMNS)

    def rows(self) -> pl.DataFrame:
        """Return spans in words of `spans.build`; kernels are of the phase that launched them."""
        for record in self._records_of("kernel_dispatch", "kernels"):
            self._add_kernel(record)
        for record in self._records_of("memory_copy", "copies of memory"):
            self._add_copy(record)
        has_reduction_kernels = "reduction" in self.spans.cells["kind"]
        for record in self._records_of("marker_api", "ranges of ROCTx"):
            self._add_range(record)
        for record in self._records_of("rccl_api", ""):
            self._add_call(record, has_reduction_kernels=has_reduction_kernels)
        hip_calls = [*self._records_of("hip_api", "")]
        self.profile.launches += [
            (_count(record.get("start_timestamp")), _correlation(record))
            for record in hip_calls
            if KERNEL_LAUNCHES in self._operation_name(record)
        ]
        for name, counted_as in _BESIDE.items():
            if count := sum(1 for _ in self._records_of(name, "")):
                self.profile.left_out[counted_as] += count
        ranges = self.spans.frame().filter(pl.col("stream").is_null())
        self._add_waits(hip_calls, set(ranges.filter(pl.col("kind").is_in(_COMPUTES))["thread"]))
        rows = _assign_phases(self.spans.frame(), hip_calls, ranges)
        word_columns = ("kind", "op", "name", "thread")
        return rows.with_columns(
            pl.col(word_columns).cast(pl.Categorical()),
            pl.lit(self.host or None, pl.Categorical()).alias("host"),
            pl.lit(self.pid, pl.Int64).alias("pid"),
        )

    def _records_of(self, name: str, counted_as: str) -> Iterator[dict[str, Any]]:
        for record in _objects(self.records.get(name)):
            if counted_as:
                self.profile.sorts[counted_as] += 1
            yield record

    def _add_span(self, record: dict[str, Any], kind: str, name: str, **facts: Any) -> None:
        """Add a span with the times and the correlation of its record; `facts` are further cells."""
        start_ns, end_ns = (_count(record.get(f"{side}_timestamp")) for side in ("start", "end"))
        if not name or start_ns is None or end_ns is None or end_ns < start_ns:
            self.profile.unusable += 1
            return
        row = {"start_ns": start_ns, "end_ns": end_ns, "kind": kind, "name": name[:_LONGEST_NAME]}
        self.spans.add({**row, "correlation": _correlation(record), **facts})

    def _number_stream(self, *key: object) -> int:
        """Number streams of a process: those of all its devices."""
        return self.streams.setdefault(key, len(self.streams))

    def _add_kernel(self, record: dict[str, Any]) -> None:
        """Add a kernel; it communicates if its name says so."""
        dispatch = as_object(record.get("dispatch_info"))
        name = self.kernels.get(_count(dispatch.get("kernel_id")), "").removesuffix(".kd")
        kind, op = kernel_meaning(name) or ("device", None)
        queue = (_handle(dispatch, "agent_id"), _handle(dispatch, "queue_id"))
        stream = self._number_stream(*queue, _handle(record, "stream_id"))
        self._add_span(record, kind, name, op=op, stream=stream)

    def _add_copy(self, record: dict[str, Any]) -> None:
        """Add a copy of memory; copies between the same agents are on a stream of their own."""
        name = self._operation_name(record).removeprefix("MEMORY_COPY_")
        ids = [_handle(record, key) for key in ("stream_id", "src_agent_id", "dst_agent_id")]
        stream, nbytes = self._number_stream("copies", *ids), _count(record.get("bytes"))
        name = _COPIES.get(name, "memcpy")
        self._add_span(record, "device", name, stream=stream, bytes=nbytes)

    def _add_range(self, record: dict[str, Any]) -> None:
        """Add a range; what has no length is a mark."""
        if record.get("start_timestamp") == record.get("end_timestamp"):
            self.profile.left_out["marks of ROCTx"] += 1
            return
        number = _correlation(record)
        name = self.messages.get(number) or self._operation_name(record)
        step = step_number(name)
        kind, _ = meaning_of_name(name, excluded=NOT_OF_NAMES | {"reduction"})
        kind = kind if step is None else "step"
        self._add_span(record, kind, name, thread=_thread(record), step=step)

    def _add_call(self, record: dict[str, Any], *, has_reduction_kernels: bool) -> None:
        """Add a call of RCCL, which only queues a kernel where kernels are recorded."""
        name = self._operation_name(record)
        kind, op = meaning(name) or USER_CODE
        if has_reduction_kernels or kind != "reduction" or op is None:
            self.profile.left_out["calls of RCCL"] += 1
            return
        self.profile.sorts["calls of RCCL"] += 1
        self._add_span(record, kind, name, op=op, thread=_thread(record))

    def _add_waits(self, hip_calls: list[dict[str, Any]], training_threads: set[str]) -> None:
        """Add the HIP calls in which threads that train wait for the device; others only queue work."""
        for record in hip_calls:
            name = self._operation_name(record)
            if _SYNCHRONIZES.match(name) and _thread(record) in training_threads:
                self.profile.sorts["waits for a device"] += 1
                self._add_span(record, "device", name, thread=_thread(record))
            else:
                self.profile.left_out["calls of HIP"] += 1

    def _operation_name(self, record: dict[str, Any]) -> str:
        """Return the name of a record's operation, by the numbers of its kind and its operation."""
        kind, number = _count(record.get("kind")), _count(record.get("operation"))
        if kind is None or number is None or kind >= len(self.kinds):
            return ""
        names = self.kinds[kind].get("operations")
        return as_text(names[number]) if isinstance(names, list) and number < len(names) else ""


def _assign_phases(
    spans: pl.DataFrame, hip_calls: list[dict[str, Any]], ranges: pl.DataFrame
) -> pl.DataFrame:
    """Give a device's work the phase of the range in which a HIP call of its correlation launched it.

    `ranges` are the spans of the host; of those around a call, the last begun counts.
    """
    phase_ranges = ranges.filter(pl.col("kind").is_in([*_COMPUTES, "data"]))
    launches = pl.DataFrame(
        [(_correlation(c), _count(c.get("start_timestamp")), _thread(c)) for c in hip_calls],
        schema={"correlation": pl.Int64, "called_ns": pl.Int64, "thread": pl.String},
        orient="row",
    ).drop_nulls()
    if phase_ranges.is_empty() or launches.is_empty():
        return spans
    phase_of_correlation = (
        launches.unique("correlation", keep="first")
        .sort("called_ns")
        .join_asof(
            phase_ranges.sort("start_ns").select("thread", "start_ns", "end_ns", phase="kind"),
            left_on="called_ns",
            right_on="start_ns",
            by="thread",
            check_sortedness=False,
        )
        .filter(pl.col("called_ns") <= pl.col("end_ns"))
        .select("correlation", "phase")
    )
    is_on_stream = (pl.col("kind") == "device") & pl.col("stream").is_not_null()
    is_of_phase = is_on_stream & pl.col("phase").is_in(_COMPUTES)
    joined = spans.join(phase_of_correlation, on="correlation", how="left", maintain_order="left")
    kind = pl.when(is_of_phase).then("phase").otherwise("kind")
    return joined.with_columns(kind=kind).drop("phase")


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
    read_file = staticmethod(read_profile)

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
