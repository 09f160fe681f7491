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
    KINDS_NOT_OF_NAMES,
    USER_CODE,
    find_kernel_meaning,
    find_meaning,
    find_meaning_of_names,
    parse_step_number,
)
from tracelens.schema.gate import refuse_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.files import FileSet

_TOOL: Final = "rocprofiler-sdk-tool"
_MARK: Final = re.compile(rb'^\{\s*"rocprofiler-sdk-tool"\s*:')
_MAX_CHARACTERS_OF_NAME: Final = 256  # characters
_SYNCHRONIZES: Final = re.compile(r"^hip(Ctx|Device|Stream|Event)Synchronize")
_COMPUTING_KINDS: Final = ("forward", "backprop", "update")
_KERNEL_NAMES: Final = (
    *("formatted_kernel_name", "truncated_kernel_name", "demangled_kernel_name", "kernel_name"),
)
_NAME_OF_COPY: Final = {
    "HOST_TO_DEVICE": "memcpy HtoD",
    "DEVICE_TO_HOST": "memcpy DtoH",
    "DEVICE_TO_DEVICE": "memcpy DtoD",
    "HOST_TO_HOST": "memcpy HtoH",
}
# Records that are in no row, by their list in the file.
_LISTS_LEFT_OUT: Final = {
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
    **dict.fromkeys(("start_ns", "end_ns"), pl.Int64()),
    **dict.fromkeys(("kind", "op", "name", "thread"), pl.String()),
    **dict.fromkeys(("stream", "bytes", "correlation"), pl.Int64()),
    "step": pl.Int32(),
}


@dataclass(eq=False)
class Profile(CheckedFile):
    """What one file holds."""

    pids: set[int] = field(default_factory=set)
    # Begin (ns) and correlation of each.
    launches: list[tuple[int | None, int | None]] = field(default_factory=list)

    @property
    def process_count(self) -> int:
        """Number of processes in it."""
        return len(self.pids)


def is_rocprof(path: Path) -> bool:
    """Return True if a file begins as rocprofv3's do."""
    return _MARK.match(read_first_bytes(path)) is not None


def read_profile(path: Path) -> Profile:
    """Read the profile in a file, as `FilesReader.read_file` says."""
    if not is_rocprof(path):
        raise NotATrace("it does not begin as rocprofv3's JSON does")
    profile, documents = Profile(), JsonLines(path)
    tables = []  # the spans of each process
    for document in documents:
        for process in _to_objects(document.get(_TOOL)):
            tables.append(_Process(process, profile).build_spans())
            refuse_beyond("rows", sum(table.height for table in tables))
    profile.copy_damage(documents)
    if tables:
        launches = pl.DataFrame(profile.launches, schema=_LAUNCH_COLUMNS, orient="row")
        profile.set_sound_rows(pl.concat(tables, how="diagonal"), launches)
    return profile


class _Process:
    """The records of one process."""

    def __init__(self, process: dict[str, Any], profile: Profile) -> None:
        """Read the names of a process, and count the records of it that are not read."""
        metadata = as_object(process.get("metadata"))
        self.profile = profile
        self.pid = _to_number(metadata.get("pid"))
        self.host = as_text(as_object(metadata.get("node")).get("hostname"))
        profile.pids.add(self.pid or 0)
        strings = as_object(process.get("strings"))
        self.record_kinds = list(_to_objects(strings.get("buffer_records")))
        self.message_by_correlation = {
            _to_number(entry.get("key")): as_text(entry.get("value"))
            for entry in _to_objects(strings.get("marker_api"))
        }
        self.name_by_kernel_id = {
            _to_number(entry.get("kernel_id", number)): next(
                (name for key in _KERNEL_NAMES if (name := as_text(entry.get(key)))), ""
            )
            for number, entry in enumerate(_to_objects(process.get("kernel_symbols")))
        }
        self.records_by_list = as_object(process.get("buffer_records"))
        counters = as_object(process.get("callback_records")).get("counter_collection")
        if counter_count := sum(1 for _ in _to_objects(counters)):
            profile.left_out_counts["collections of counters"] += counter_count
        self.number_by_stream: dict[tuple[object, ...], int] = {}
        self.spans = RowBuffer(_COLUMNS)

    def build_spans(self) -> pl.DataFrame:
        """Return spans in words of `spans.build`; kernels are of the phase that launched them."""
        for record in self._list_records("kernel_dispatch", counted_as="kernels"):
            self._add_kernel(record)
        for record in self._list_records("memory_copy", counted_as="copies of memory"):
            self._add_copy(record)
        has_reduction_kernels = "reduction" in self.spans.cells["kind"]
        for record in self._list_records("marker_api", counted_as="ranges of ROCTx"):
            self._add_range(record)
        for record in self._list_records("rccl_api"):
            self._add_call(record, has_reduction_kernels=has_reduction_kernels)
        hip_calls = [*self._list_records("hip_api")]
        self.profile.launches += [
            (_to_number(record.get("start_timestamp")), _correlation_id(record))
            for record in hip_calls
            if KERNEL_LAUNCHES in self._operation_name(record)
        ]
        for list_name, left_out_as in _LISTS_LEFT_OUT.items():
            if count := sum(1 for _ in self._list_records(list_name)):
                self.profile.left_out_counts[left_out_as] += count
        host_spans = self.spans.to_frame().filter(pl.col("stream").is_null())
        computing_spans = host_spans.filter(pl.col("kind").is_in(_COMPUTING_KINDS))
        self._add_waits(hip_calls, training_threads={*computing_spans["thread"]})
        spans = _assign_phases(self.spans.to_frame(), hip_calls, host_spans)
        word_columns = ("kind", "op", "name", "thread")
        return spans.with_columns(
            pl.col(word_columns).cast(pl.Categorical()),
            pl.lit(self.host or None, pl.Categorical()).alias("host"),
            pl.lit(self.pid, pl.Int64).alias("pid"),
        )

    def _list_records(self, list_name: str, counted_as: str = "") -> Iterator[dict[str, Any]]:
        """Yield the records of a list in the file, and count them if they have a name for that."""
        for record in _to_objects(self.records_by_list.get(list_name)):
            if counted_as:
                self.profile.event_counts[counted_as] += 1
            yield record

    def _add_span(self, record: dict[str, Any], kind: str, name: str, **cells: Any) -> None:
        """Add a span with the times (ns) and the correlation of its record; `cells` are further ones."""
        start_ns, end_ns = (
            _to_number(record.get(f"{side}_timestamp")) for side in ("start", "end")
        )
        if not name or start_ns is None or end_ns is None or end_ns < start_ns:
            self.profile.unusable_count += 1
            return
        row = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "kind": kind,
            "name": name[:_MAX_CHARACTERS_OF_NAME],
        }
        self.spans.add({**row, "correlation": _correlation_id(record), **cells})

    def _number_stream(self, *stream_key: object) -> int:
        """Return the number of a stream; streams of all devices of the process are counted together."""
        return self.number_by_stream.setdefault(stream_key, len(self.number_by_stream))

    def _add_kernel(self, record: dict[str, Any]) -> None:
        """Add a kernel; it communicates if its name says so."""
        dispatch = as_object(record.get("dispatch_info"))
        kernel_id = _to_number(dispatch.get("kernel_id"))
        name = self.name_by_kernel_id.get(kernel_id, "").removesuffix(".kd")
        kind, op = find_kernel_meaning(name) or ("device", None)
        queue_key = (_read_handle(dispatch, "agent_id"), _read_handle(dispatch, "queue_id"))
        stream_number = self._number_stream(*queue_key, _read_handle(record, "stream_id"))
        self._add_span(record, kind, name, op=op, stream=stream_number)

    def _add_copy(self, record: dict[str, Any]) -> None:
        """Add a copy of memory; copies between the same agents are on a stream of their own."""
        direction = self._operation_name(record).removeprefix("MEMORY_COPY_")
        ids = [_read_handle(record, key) for key in ("stream_id", "src_agent_id", "dst_agent_id")]
        stream_number, copied_bytes = self._number_stream("copies", *ids), record.get("bytes")
        name = _NAME_OF_COPY.get(direction, "memcpy")
        self._add_span(record, "device", name, stream=stream_number, bytes=_to_number(copied_bytes))

    def _add_range(self, record: dict[str, Any]) -> None:
        """Add a range of code; a record without a length is a mark, which has no row."""
        if record.get("start_timestamp") == record.get("end_timestamp"):
            self.profile.left_out_counts["marks of ROCTx"] += 1
            return
        correlation = _correlation_id(record)
        name = self.message_by_correlation.get(correlation) or self._operation_name(record)
        step = parse_step_number(name)
        kind, _ = find_meaning_of_names(name, excluded_kinds=KINDS_NOT_OF_NAMES | {"reduction"})
        kind = kind if step is None else "step"
        self._add_span(record, kind, name, thread=_thread_name(record), step=step)

    def _add_call(self, record: dict[str, Any], *, has_reduction_kernels: bool) -> None:
        """Add a call of RCCL as communication, unless its kernels are: it only queues one then."""
        name = self._operation_name(record)
        kind, op = find_meaning(name) or USER_CODE
        if has_reduction_kernels or kind != "reduction" or op is None:
            self.profile.left_out_counts["calls of RCCL"] += 1
            return
        self.profile.event_counts["calls of RCCL"] += 1
        self._add_span(record, kind, name, op=op, thread=_thread_name(record))

    def _add_waits(self, hip_calls: list[dict[str, Any]], training_threads: set[str]) -> None:
        """Add the HIP calls in which threads that train wait for the device; others only queue work."""
        for record in hip_calls:
            name = self._operation_name(record)
            if _SYNCHRONIZES.match(name) and _thread_name(record) in training_threads:
                self.profile.event_counts["waits for a device"] += 1
                self._add_span(record, "device", name, thread=_thread_name(record))
            else:
                self.profile.left_out_counts["calls of HIP"] += 1

    def _operation_name(self, record: dict[str, Any]) -> str:
        """Return the name of a record's operation, by the numbers of its kind and its operation."""
        kind_index, op_index = _to_number(record.get("kind")), _to_number(record.get("operation"))
        if kind_index is None or op_index is None or kind_index >= len(self.record_kinds):
            return ""
        op_names = self.record_kinds[kind_index].get("operations")
        if not isinstance(op_names, list) or op_index >= len(op_names):
            return ""
        return as_text(op_names[op_index])


def _assign_phases(
    spans: pl.DataFrame, hip_calls: list[dict[str, Any]], host_spans: pl.DataFrame
) -> pl.DataFrame:
    """Give a device's work the phase of the range in which a HIP call of its correlation launched it.

    Of the ranges among `host_spans` around a call, the last begun counts. What was launched while data
    was loaded stays of kind `device`, as does what was launched outside of phases.
    """
    phase_ranges = host_spans.filter(pl.col("kind").is_in([*_COMPUTING_KINDS, "data"]))
    launches = pl.DataFrame(
        [
            (_correlation_id(c), _to_number(c.get("start_timestamp")), _thread_name(c))
            for c in hip_calls
        ],
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
    is_of_phase = is_on_stream & pl.col("phase").is_in(_COMPUTING_KINDS)
    joined = spans.join(phase_of_correlation, on="correlation", how="left", maintain_order="left")
    kind = pl.when(is_of_phase).then("phase").otherwise("kind")
    return joined.with_columns(kind=kind).drop("phase")


def _to_objects(value: object) -> Iterator[dict[str, Any]]:
    # Older versions wrote the object alone.
    return as_objects(value if isinstance(value, list) else [value])


def _correlation_id(record: dict[str, Any]) -> int | None:
    return _to_number(as_object(record.get("correlation_id")).get("internal"))


def _to_number(value: object) -> int | None:
    return as_count(value, MOST_NS)


def _read_handle(record: dict[str, Any], key: str) -> int | None:
    return _to_number(as_object(record.get(key)).get("handle"))


def _thread_name(record: dict[str, Any]) -> str:
    return f"thread {_to_number(record.get('thread_id')) or 0}"


class RocprofReader(ProfilesReader[Profile]):
    """Reads a file or a folder of rocprofv3's JSON."""

    name = "trace of rocprofv3"
    suffixes = (".json", ".json.gz")
    why_no_rank = "rocprofv3 does not write ranks"

    is_format = staticmethod(is_rocprof)
    read_file = staticmethod(read_profile)

    def list_gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield what ranges, kernels and calls do not say."""
        if "step" not in run.kinds:
            yield Gap(
                "no range of ROCTx is called as a step is",
                "where steps begin",
                "Put each step into a range called 'step N', and record with --marker-trace.",
            )
        if not run.kinds.intersection(_COMPUTING_KINDS):
            yield Gap(
                "no range of ROCTx is called as a phase of training is",
                "which phase ranks compute in",
                "Call ranges forward, backward and optimizer, and record with --marker-trace.",
                is_decisive=False,
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
                is_decisive=False,
            )
