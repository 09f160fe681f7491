"""The reader for spans of OpenTelemetry: a file or a folder, of other programs or of our own export."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.readers.exported import add_run_facts
from tracelens.readers.files import FileSet, FilesReader
from tracelens.readers.otlp.requests import is_otlp, read_requests
from tracelens.readers.otlp.rows import SpanFile, SpanRows
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.model.trace import Trace


class OtlpReader(FilesReader[SpanFile]):
    """Reads a file or a folder of OpenTelemetry's spans."""

    name = "trace of OpenTelemetry"
    suffixes = tuple(
        f"{suffix}{packed}"
        for suffix in (".jsonl", ".json", ".otlp", ".pb", ".binpb")
        for packed in ("", ".gz", ".zst")
    )
    why_no_rank = (
        "Resources do not say ranks ('nv.dl.rank' or 'tracelens.rank'), and there are several"
    )
    advice_if_cut = "Shut the exporter down before the program ends."
    is_format = staticmethod(is_otlp)

    def read_file(self, file: Path) -> SpanFile:
        """Read the spans of a file, as `FilesReader.read_file` says."""
        rows = SpanRows(SpanFile())
        for scope_spans in read_requests(file, rows.span_file):
            rows.add_scope(scope_spans)
            refuse_beyond("rows", len(rows))
        return rows.complete_file()

    def complete_trace(self, trace: Trace, run: FileSet[SpanFile]) -> Trace:
        """Add what our own export says of the run, if all spans are from one."""
        is_foreign = any(file.foreign_row_count for file in run.file_by_name.values())
        return trace if is_foreign else add_run_facts(trace, run.file_by_name.values())

    def list_gaps(self, run: FileSet[SpanFile]) -> Iterator[Gap]:
        """Yield what spans are not called, or do not say."""
        count_by_kind = sum(
            (file.event_counts for file in run.file_by_name.values()), Counter[str]()
        )
        if not any(_has_operations(file.rows) for file in run.file_by_name.values()):
            missing = "spans of communication do not say which call they are"
            yield Gap(
                missing if count_by_kind["reduction"] else "no span is called as communication is",
                "which rank others wait for",
                "Set tracelens.op, tracelens.communicator and tracelens.seq on spans of collectives, "
                "or record the run with 'tracelens record'.",
                hides_waits=not count_by_kind["reduction"],
            )
        yield Gap(
            "it is not recorded whether the program sampled its spans, or which of its ranks export any",
            "what happened where no span was exported",
            "Export all ranks and all spans (Megatron-LM: MEGATRON_OTEL_RANK_STRATEGY=all_ranks).",
        )
        if not count_by_kind["step"]:
            yield Gap(
                "no span is called as a step is",
                "where steps begin, but by the updates or collectives that come back",
                "Put each step into a span called 'step N' (Megatron-LM: "
                "MEGATRON_OTEL_SPAN_GROUPS=all).",
            )
        if not count_by_kind["forward"] + count_by_kind["backprop"] + count_by_kind["update"]:
            yield Gap(
                "no span is called as a phase of training is",
                "which phase ranks compute in",
                "Call spans forward, backward and optimizer (Megatron-LM: "
                "MEGATRON_OTEL_SPAN_GROUPS=all).",
                is_decisive=False,
            )


def _has_operations(rows: pl.DataFrame) -> bool:
    """Return True if a span says which operation it is, by which ranks can be matched."""
    ops = rows["op"].cast(pl.String) if "op" in rows.columns else pl.Series([], dtype=pl.String)
    return bool(ops.is_in(COLLECTIVES).any())
