"""Spans of OpenTelemetry as rows in our words.

A resource says whose spans are in it; a span says its kind by its name and its attributes. Attributes
that begin with `tracelens.` are those of `tracelens.exports.otlp`, and are believed of any program.

Sources: `docs/user-guide/observability` of Megatron-LM and `docs/user-guide/resources.mdx` of NeMo Lens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.model.trace import EVENT_COLUMNS
from tracelens.readers.exported import ExportedFile, as_ranks
from tracelens.readers.gathered import RowBuffer
from tracelens.readers.json_values import MOST_NS, as_text
from tracelens.readers.otlp.requests import as_whole
from tracelens.readers.words import USER_CODE, find_meaning_of_names, parse_step_number
from tracelens.schema.vocabulary import EVENT_TYPES, KINDS, MOST_RANKS, OPS, ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.readers.otlp.requests import ScopeSpans, Span, SpanEvent
    from tracelens.readers.words import Meaning

MAX_SPANS_AROUND_STEP: Final = 64  # spans: what is further out is not looked for [policy]
_PREFIX: Final = "tracelens."
_COMMUNICATOR_PREFIX: Final = "tracelens.communicator."
_RANK_KEYS: Final = ("tracelens.rank", "nv.dl.rank", "dl.rank", "megatron.rank", "rank")
_WORLD_KEYS: Final = (
    *("tracelens.world", "nv.dl.world_size", "dl.world_size", "megatron.world_size", "world_size"),
)
_HOST_KEYS: Final = ("host.name", "k8s.node.name", "host.id")
_THREAD_KEYS: Final = ("thread.name", "thread.id")
_STEP_KEYS: Final = ("tracelens.step", "megatron.iteration", "dl.iteration", "iteration", "step")
_MICRO_STEP_KEYS: Final = ("tracelens.micro_step", "megatron.microbatch_id", "dl.microbatch_id")
_INSTANCE: Final = re.compile(r"(?i)(?:^|[ ._-])(?:rank|worker)[ #:._-]*(\d{1,7})$")
_LAST_WORD: Final = re.compile(r"[./:\s]")
# Kind and operation of Megatron-LM's spans, by their names without `megatron.` in front.
_MEGATRON: Final[dict[str, Meaning]] = {
    **dict.fromkeys(("train_step", "train.iteration"), ("step", None)),
    **dict.fromkeys(("optimizer_step", "train.iteration.optimizer"), ("update", None)),
    **dict.fromkeys(("microbatch.forward", "layer.forward"), ("forward", None)),
    "microbatch.backward": ("backprop", None),
    **dict.fromkeys(("p2p.send_forward", "p2p.send_backward"), ("reduction", "send")),
    **dict.fromkeys(("p2p.recv_forward", "p2p.recv_backward"), ("reduction", "recv")),
    **dict.fromkeys(("grad_sync.start", "grad_sync.finish"), ("reduction", None)),
    **dict.fromkeys(("train.gc_collect", "checkpoint.gc_collect"), ("gc", None)),
    "startup.dataloader": ("data", None),
}
_MEGATRON_PREFIX: Final = "megatron."
_CHECKPOINT: Final = re.compile(r"^megatron\.(?:(?:save_|load_)?checkpoint)\b")
_TEXT, _INT = pl.String(), pl.Int64()
_WORDS: Final = ("kind", "op", "name", "thread", "type", "status", "communicator", "algorithm")
# Numbers of our export beside `step` and `micro_step`.
_NUMBERS: Final = (
    *("seq", "bytes", "bucket", "peer", "shard", "key", "queue_depth", "request"),
    *("device_start_ns", "device_duration_ns", "stream"),
)
_ROW: Final[dict[str, pl.DataType]] = {
    "process": pl.UInt32(),
    **dict.fromkeys(("start_ns", "end_ns", "step", "micro_step", *_NUMBERS), _INT),
    "value": pl.Float64(),
    **dict.fromkeys(_WORDS, _TEXT),
}
_PROCESS_ROW: Final = {
    "rank": pl.Int32(), "role": _TEXT, "host": _TEXT, "clock": _TEXT, "world": pl.Int32(),
    "pid": _INT, "own_shard": pl.Int32(),
}  # fmt: skip


class Process(NamedTuple):
    """The process that recorded the spans of a resource; `is_export`: our own export describes it."""

    rank: int | None
    role: str
    host: str | None
    clock: str | None
    world: int | None
    pid: int | None
    shard: int | None
    is_export: bool


@dataclass(eq=False)
class SpanFile(ExportedFile):
    """What one file holds."""

    hosts_and_pids: set[tuple[str | None, int | None]] = field(default_factory=set)  # of processes
    foreign_row_count: int = 0  # rows that are not of our own export

    @property
    def process_count(self) -> int:
        """Number of processes whose spans it holds."""
        return len(self.hosts_and_pids)


class SpanRows(RowBuffer):
    """Rows of spans, and the processes that they are of, numbered in order of appearance."""

    def __init__(self, span_file: SpanFile) -> None:
        super().__init__(_ROW)
        self.span_file = span_file
        self.number_by_process: dict[Process, int] = {}
        self.row_by_span_id: dict[Any, int] = {}  # of spans of other programs
        self.parent_id_by_row: dict[int, Any] = {}  # id of the span around it

    def add_scope(self, scope_spans: ScopeSpans) -> None:
        """Add the spans of a scope."""
        process = _to_process(scope_spans.resource_attributes)
        self.number_by_process.setdefault(process, len(self.number_by_process))
        self.span_file.hosts_and_pids.add((process.host, process.pid))
        if process.is_export:
            _take_facts(scope_spans, process, self.span_file)
        for span in scope_spans.spans:
            self._add_span(span, process, scope_spans.scope_attributes)

    def _add_span(self, span: Span, process: Process, scope_attributes: Mapping[str, Any]) -> None:
        """Add a span as a row, if its name and its times (ns) are usable, and its events.

        In our own export the thread is in the attributes of its scope, elsewhere in those of the span.
        """
        start_ns, end_ns, attributes = span.start_ns, span.end_ns, span.attributes
        is_timed = start_ns is not None and end_ns is not None and start_ns <= end_ns < 2 * MOST_NS
        if not span.name or not is_timed:
            self.span_file.unusable_count += 1
            return
        kind, op = _find_meaning(span.name, attributes)
        status = as_text(attributes.get("tracelens.status"))
        is_open = status == "open" or attributes.get("nemo.span.truncated") is True
        self.span_file.event_counts[kind] += 1
        if span.link_count:
            self.span_file.left_out_counts["links between spans"] += span.link_count
        thread = scope_attributes.get("tracelens.thread")
        thread = thread if process.is_export else _first_value(attributes, _THREAD_KEYS)
        row = {
            **self._common_cells(attributes, process, span.name, kind),
            "start_ns": start_ns,
            "end_ns": None if is_open else end_ns,
            "kind": kind,
            "op": op,
            "name": span.name,
            "thread": _to_label(thread),
            "type": _select_word(attributes.get("tracelens.type"), EVENT_TYPES) or "span",
            "status": "open" if is_open else status or ("exception" if span.is_error else None),
        }
        self.add(row)
        if not process.is_export:
            self.span_file.foreign_row_count += 1
            self.row_by_span_id[span.span_id] = len(self) - 1
            self.parent_id_by_row[len(self) - 1] = span.parent_id
        for event in span.events:
            self._add_event(event, process, row["thread"])

    def _add_event(self, event: SpanEvent, process: Process, thread: str | None) -> None:
        """Add the reading of a counter of ours; other events are counted."""
        value = event.attributes.get("tracelens.value")
        if not process.is_export or event.time_ns is None or not isinstance(value, int | float):
            self.span_file.left_out_counts["events of spans"] += 1
            return
        self.add(
            {
                **self._common_cells(event.attributes, process, event.name, kind=""),
                "start_ns": event.time_ns,
                "end_ns": event.time_ns,
                "value": float(value),
                "kind": _select_word(event.attributes.get("tracelens.kind"), KINDS) or "user",
                "name": event.name,
                "thread": thread,
                "type": "counter",
            }
        )

    def _common_cells(
        self, attributes: Mapping[str, Any], process: Process, name: str, kind: str
    ) -> dict[str, Any]:
        """Return the cells that spans and readings of counters have in common, by column.

        A span that is a step says its number in one of several ways, others only as our export does.
        """
        is_step = kind == "step"
        step = _read_number(attributes, _STEP_KEYS if is_step else _STEP_KEYS[:1])
        return {
            "process": self.number_by_process[process],
            "step": parse_step_number(name) if step is None and is_step else step,
            "micro_step": _read_number(attributes, _MICRO_STEP_KEYS),
            **{column: _read_number(attributes, (_PREFIX + column,)) for column in _NUMBERS},
            "communicator": _to_label(attributes.get("tracelens.communicator")),
            "algorithm": _to_label(attributes.get("tracelens.algorithm")),
        }

    def complete_file(self) -> SpanFile:
        """Return the file with its rows in words of `spans.build`, without columns that are empty."""
        span_file, spans = self.span_file, self._add_processes(self.to_frame())
        rows_around_steps = self._find_rows_around_steps()
        if rows_around_steps:
            span_file.left_out_counts["spans around steps"] += len(rows_around_steps)
            is_around_steps = pl.col("row").is_in(rows_around_steps)
            spans = spans.with_row_index("row").filter(~is_around_steps).drop("row")
        if not span_file.foreign_row_count:  # our export added the offset, so that times are dates
            time_columns = ("start_ns", "end_ns", "device_start_ns")
            spans = spans.with_columns(pl.col(time_columns) - span_file.date_offset_ns)
        span_file.has_rank_column = any(
            process.rank is not None for process in self.number_by_process
        )
        unranked_count = spans["rank"].null_count() if span_file.has_rank_column else 0
        if unranked_count:
            span_file.left_out_counts["spans of processes without a rank"] += unranked_count
            spans = spans.drop_nulls("rank")
        span_file.rows = spans.select(
            name for name in spans.columns if spans[name].null_count() < max(1, spans.height)
        )
        return span_file

    def _add_processes(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of processes, by number; if a rank has several, threads have their names."""
        rows = [process[:-1] for process in self.number_by_process]  # without `is_export`
        processes = pl.DataFrame(rows, schema=_PROCESS_ROW, orient="row", strict=False)
        has_several_pids = pl.col("pid").n_unique().over("role", "rank") > 1
        pid_text = pl.col("pid").cast(pl.String).fill_null("None")
        processes = processes.with_columns(process_label=pl.when(has_several_pids).then(pid_text))
        thread = pl.col("thread").fill_null("main")
        qualified_thread = pl.format("{} of {}", thread, "process_label")  # null without a label
        number_columns = [
            pl.col(name).cast(EVENT_COLUMNS[name], strict=False)
            for name in ("step", "micro_step", *_NUMBERS)
        ]
        return (
            pl.concat([spans, processes[spans["process"]]], how="horizontal")
            .with_columns(*number_columns, thread=pl.coalesce(qualified_thread, "thread"))
            .with_columns(shard=pl.coalesce("shard", "own_shard"))
            .with_columns(pl.col(*_WORDS, "role", "host", "clock").cast(pl.Categorical()))
            .drop("process", "own_shard", "process_label")
        )

    def _find_rows_around_steps(self) -> list[int]:
        """Return the rows of spans that have steps inside: they are no work of their own."""
        rows_around_steps: set[int] = set()
        kinds = self.cells["kind"]  # by row
        for row, parent_id in self.parent_id_by_row.items():
            ancestor_id = parent_id if kinds[row] == "step" else None
            for _ in range(MAX_SPANS_AROUND_STEP):
                ancestor_row = self.row_by_span_id.get(ancestor_id)
                if ancestor_row is None or ancestor_row in rows_around_steps:
                    break
                if kinds[ancestor_row] == "user":
                    rows_around_steps.add(ancestor_row)
                ancestor_id = self.parent_id_by_row[ancestor_row]
        return [*rows_around_steps]


def _take_facts(scope_spans: ScopeSpans, process: Process, span_file: SpanFile) -> None:
    """Take the facts of a run that our export writes into resources, and into scopes, one a thread."""
    resource_attributes = scope_spans.resource_attributes
    thread = scope_spans.scope_attributes.get("tracelens.thread")
    if isinstance(thread, int) and process.rank is not None:
        span_file.name_by_thread[process.role, process.rank, thread] = scope_spans.scope_name
    window_ns = _read_number(resource_attributes, ("tracelens.window_ns",)) or 0
    span_file.clock_window_ns = max(span_file.clock_window_ns, window_ns)
    span_file.date_offset_ns = _read_number(resource_attributes, ("tracelens.offset_ns",)) or 0
    for key, ranks in resource_attributes.items():
        if key.startswith(_COMMUNICATOR_PREFIX):
            communicator = key.removeprefix(_COMMUNICATOR_PREFIX)
            span_file.ranks_by_communicator[communicator] = as_ranks(ranks)
    sentences = resource_attributes.get("tracelens.notes")
    if isinstance(sentences, list) and not span_file.note_sentences:
        span_file.note_sentences = [*filter(None, map(as_text, sentences))]


def _to_process(resource_attributes: Mapping[str, Any]) -> Process:
    """Return the process that a resource describes; what it does not say is None."""
    rank = _read_number(resource_attributes, _RANK_KEYS)
    world = _read_number(resource_attributes, _WORLD_KEYS)
    if rank is None:
        match = _INSTANCE.search(as_text(resource_attributes.get("service.instance.id")))
        rank = int(match[1]) if match else None
    return Process(
        rank=rank if rank is not None and rank < MOST_RANKS else None,
        role=_select_word(resource_attributes.get("tracelens.role"), ROLES) or "worker",
        host=_to_label(_first_value(resource_attributes, _HOST_KEYS)),
        clock=_to_label(resource_attributes.get("tracelens.clock")),
        world=world if world is not None and world <= MOST_RANKS else None,
        pid=_read_number(resource_attributes, ("process.pid",)),
        shard=_read_number(resource_attributes, ("tracelens.shard",)),
        is_export=_read_number(resource_attributes, ("tracelens.rank",)) is not None,
    )


def _find_meaning(name: str, attributes: Mapping[str, Any]) -> Meaning:
    """Return kind and operation of a span: as its attributes say, else as its name does."""
    kind = _select_word(attributes.get("tracelens.kind"), KINDS)
    if kind is not None:
        return kind, _select_word(_to_label(attributes.get("tracelens.op")), OPS.get(kind, ()))
    if parse_step_number(name) is not None:
        return "step", None
    if _CHECKPOINT.match(name) and not name.endswith("gc_collect"):
        return "checkpoint", None
    if name.startswith(_MEGATRON_PREFIX):
        return _MEGATRON.get(name.removeprefix(_MEGATRON_PREFIX), USER_CODE)
    return find_meaning_of_names(name, _LAST_WORD.split(name)[-1])


def _first_value(attributes: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _read_number(attributes: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    return as_whole(_first_value(attributes, keys))


def _select_word(value: object, words: Sequence[str]) -> str | None:
    return value if isinstance(value, str) and value in words else None


def _to_label(value: object) -> str | None:
    return as_text(str(value)) or None if isinstance(value, str | int) else None
