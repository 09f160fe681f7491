"""A clean copy of a damaged trace: whole files as they are, of the others every row that can be used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tracelens.conversion import segments
from tracelens.conversion.arrow_file import read_samples, write_events
from tracelens.errors import InvalidArgument
from tracelens.exports.output import make_new_folder
from tracelens.model.fmt import count, shown_name
from tracelens.readers.links import check_inside, check_no_links
from tracelens.readers.native.arrow_file import Recording, read_arrow
from tracelens.readers.native.checks import find_sound_rows
from tracelens.readers.native.recordings import (
    DAMAGE,
    build_refusal,
    describe_left_out,
    list_recordings,
)
from tracelens.readers.native.side_checks import check_side
from tracelens.schema.arrow import WRITE_OPTIONS
from tracelens.schema.gate import read_contents
from tracelens.schema.ownership import belongs_to
from tracelens.schema.rules import add_counts
from tracelens.schema.vocabulary import SAMPLES_FOLDER, TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.arrays import Ints
    from tracelens.schema.side import SideTables

_REFUSED: Final = (*DAMAGE, pl.exceptions.PolarsError, pl.exceptions.PanicException)


@dataclass
class Repaired:
    """Numbers of files copied whole and in part, and of their events; `sentences` describe the rest."""

    whole_file_count: int = 0
    partial_file_count: int = 0
    event_count: int = 0
    sentences: tuple[str, ...] = ()

    def report(self, sentence: str) -> None:
        """Add a sentence on what is not in the copy, or may not be all."""
        self.sentences += (sentence,)


def repair(trace: Path, target: Path) -> Repaired:
    """Copy what is whole of a trace folder to a new place. Times stay on the clocks that recorded them.

    The checksum of every batch is verified: of a file, the batches before the first with a wrong one are
    used, of a segment all that has a right one.

    Raises:
        InvalidArgument: there is something at `target`, it is inside of the trace, or cannot be written.
        NotATrace: not one recording can be used.
    """
    files = list_recordings(trace)
    trace_folder = trace if trace.is_dir() else trace.parent
    if target.resolve().is_relative_to(trace_folder.resolve()):
        raise InvalidArgument(
            f"'{shown_name(target)}' is inside of the trace, of which nothing is changed: name another "
            "folder with --repair."
        )
    repaired = Repaired()
    refused_files: list[tuple[Path, Exception]] = []
    with make_new_folder(target, "--repair") as folder:
        for file in files:
            try:
                if file != trace:
                    check_inside(file, trace)
                recording, rows_and_losses = _read(file)
            except _REFUSED as error:
                refused_files.append((file, error))
                repaired.report(describe_left_out(file, error))
            else:
                _copy(file, recording, rows_and_losses, folder, repaired)
        if not repaired.whole_file_count + repaired.partial_file_count:
            raise build_refusal(trace, refused_files)
    return repaired


def _is_live(file: Path) -> bool:
    return not file.name.endswith(TRACE_SUFFIX)


def _read(file: Path) -> tuple[Recording, tuple[Ints, dict[str, int]]]:
    """Read a recording, the indices of its usable rows, and the number of others by reason."""
    recording = _read_segments(file) if _is_live(file) else read_arrow(file)
    check_side(recording.side_tables)
    return recording, find_sound_rows(recording.table)


def _copy(
    file: Path,
    recording: Recording,
    rows_and_losses: tuple[Ints, dict[str, int]],
    folder: Path,
    repaired: Repaired,
) -> None:
    """Copy a recording's kept rows and its samples; the file as it is, if nothing is wrong with it.

    `rows_and_losses` are the numbers of rows to keep, and how many rows are lost, by reason.
    """
    table, (kept_rows, losses_by_reason) = recording.table, rows_and_losses
    lost_count = table.num_rows - len(kept_rows)
    target = folder / file.with_suffix(TRACE_SUFFIX).name
    if _is_live(file) or recording.is_cut or lost_count or not _is_sorted(table):
        write_events(target, table.take(kept_rows), _count_losses(recording, losses_by_reason))
        repaired.partial_file_count += 1
        repaired.report(_describe_copy(file, recording, len(kept_rows), lost_count))
    else:
        target.write_bytes(read_contents(file))
        repaired.whole_file_count += 1
    repaired.event_count += len(kept_rows)
    _copy_samples(file, folder, repaired)


def _read_segments(recording: Path) -> Recording:
    folder = segments.find_folder(recording)
    if folder != recording and not belongs_to(folder, recording.parent):
        raise InvalidArgument(f"it names {shown_name(folder)}, which does not belong to this trace")
    check_no_links(folder)
    return Recording(*segments.decode(recording))


def _is_sorted(table: pa.Table) -> bool:
    begins = table["start_ns"].to_numpy()
    return bool(np.all(begins[1:] >= begins[:-1]))


def _count_losses(recording: Recording, losses_by_reason: dict[str, int]) -> SideTables:
    """Return side tables that count the rows which were left out; what they define is in the columns."""
    side = recording.side_tables
    dropped = add_counts(side.dropped, losses_by_reason)
    complete = side.complete and not recording.is_cut
    return replace(side, definitions=(), dropped=dropped, complete=complete, sorted=True)


def _describe_copy(file: Path, recording: Recording, kept_count: int, lost_count: int) -> str:
    """Return a sentence on a file that is not copied as it is."""
    name = shown_name(file.name)
    if recording.is_cut:
        change = f"it is damaged or cut off; the first {count(kept_count, 'event')} are copied"
    elif _is_live(file):
        change = f"its segments became an Arrow file of {count(kept_count, 'event')}"
    elif lost_count:
        change = f"{count(kept_count, 'event')} are copied"
    else:
        change = "its rows are sorted by start_ns now"
    lost_phrase = (
        f", {count(lost_count, 'row')} that no reader can use are left out" if lost_count else ""
    )
    return f"'{name}': {change}{lost_phrase}."


def _copy_samples(file: Path, folder: Path, repaired: Repaired) -> None:
    """Copy the sampled stacks of a process into `folder`: the batches before any damage."""
    name = file.with_suffix(TRACE_SUFFIX).name
    samples_path = file.parent / SAMPLES_FOLDER / name
    try:
        check_inside(samples_path, file.parent)
        batches = read_samples(samples_path)
    except FileNotFoundError:
        return
    except _REFUSED as error:
        if samples_path.exists():
            repaired.report(f"Samples of {describe_left_out(samples_path, error)}")
        return
    if batches:
        (folder / SAMPLES_FOLDER).mkdir(exist_ok=True)
        target, schema = folder / SAMPLES_FOLDER / name, batches[0].schema
        with pa.ipc.new_stream(str(target), schema, options=WRITE_OPTIONS) as stream:
            for batch in batches:
                stream.write_batch(batch)
