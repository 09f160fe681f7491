"""One rank opened up: its recorded spans, and a row for each thread and each depth of nesting.

Single recorded spans with all their columns are read, a process at a time, when they are asked for.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.lod import pyramid
from tracelens.lod.lanes import BLANK, CODES, STACKS, Lane, Lanes, in_rows
from tracelens.lod.query import Scene
from tracelens.model.fmt import shown_name
from tracelens.schema.vocabulary import OWN_KINDS, SAMPLES_FOLDER

if TYPE_CHECKING:
    from tracelens.lod.run_data import Run
    from tracelens.lod.viewport import Window
    from tracelens.model.trace import Trace


KEPT_PROCESSES: Final = 4  # processes whose spans stay in memory
MOST_SAMPLED: Final = 16  # and those whose samples do: a rank's, and its peers'
MOST_ROWS: Final = 16
FOLDERS: Final = r" \(.*[/\\]"  # of the file that a frame names
_DRAWN: Final = ("process", "part", "start_ns", "end_ns", "code", "step", "name")
# What spans that are no work of the rank's own look like.
_LOOKS: Final = {"wait": "wait", "reduction": "transfer", "ps": "transfer", "step": "idle"}


class RecordedSpans:
    """The spans of a run's main processes, from their files or from a trace in memory."""

    def __init__(self, run: Run, source: Path | Trace) -> None:
        self._source = source
        self._run = run
        both = [part.select("process", "file") for part in (run.workers, run.shards)]
        self._files = dict(pl.concat(both).iter_rows())
        self.of = lru_cache(KEPT_PROCESSES)(self._of)
        self.samples_of = lru_cache(MOST_SAMPLED)(self._samples_of)

    @property
    def sampled(self) -> frozenset[int]:
        """The processes whose stacks were sampled."""
        if not isinstance(self._source, Path):
            return frozenset(self._source.samples["process"])
        there = {shown_name(file.name) for file in (self._source / SAMPLES_FOLDER).glob("*")}
        return frozenset(process for process, file in self._files.items() if file in there)

    def _of(self, process: int) -> pl.DataFrame:
        """Return the spans of one process as in `Trace.spans`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        from tracelens.load import spans_of  # noqa: PLC0415 - an index opens without readers

        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return spans_of(file, process, self._run.moved.get(process))
        return self._source.events_of(process).filter(pl.col("type") == "span")

    def _samples_of(self, process: int) -> pl.DataFrame:
        """Return the samples of one process's stacks as in `Trace.samples`, in order of their begins.

        Raises:
            UnusableInput: its file cannot be read (any more).
        """
        from tracelens.load import samples_of  # noqa: PLC0415 - an index opens without readers

        if isinstance(self._source, Path):
            file = self._file(self._source, process)
            return samples_of(file, process, self._run.moved.get(process)).sort("start_ns")
        return self._source.samples.filter(pl.col("process") == process).sort("start_ns")

    def _file(self, folder: Path, process: int) -> Path:
        """Return the file of a process: tables hold its name as it is shown."""
        name: str = self._files[process]
        if (folder / name).exists():
            return folder / name
        known = (entry for entry in folder.glob("*") if shown_name(entry.name) == name)
        return next(known, folder / name)


def rank_scene(
    spans: pl.DataFrame,
    names: dict[int, str],
    rank: int,
    whole: Window,
    samples: pl.DataFrame | None = None,
) -> Scene:
    """Make the scene of a rank's recorded spans; `names` are those of its threads.

    Rows beyond the first `MOST_ROWS` are left out. Below them are the stacks that were sampled
    (`samples` as in `Trace.samples`), by the innermost call.
    """
    kind = pl.col("kind").cast(pl.String)
    other = kind.replace_strict(_LOOKS, default="uninstrumented")
    looks = pl.when(kind.is_in(OWN_KINDS)).then(kind).otherwise(other)
    table = spans.drop_nulls("end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    table = table.with_columns(
        part=pl.format("{}/{}", "thread", "depth"),
        code=looks.replace_strict(CODES, return_dtype=pl.UInt8),
    )
    rows = table.select("thread", "depth", "part").unique().sort("thread", "depth").head(MOST_ROWS)
    process = int(spans["process"][0]) if spans.height else 0
    owners = [
        Lane(process, "worker", rank, _label(names, thread, depth, part))
        for thread, depth, part in rows.iter_rows()
    ]
    known = dict(zip(rows["part"], (owner.part for owner in owners), strict=True))
    kept = table.filter(pl.col("part").is_in(list(known)))
    drawn = kept.with_columns(pl.col("part").replace_strict(known)).select(_DRAWN)
    if samples is not None and samples.height:
        seen = _stacks(samples, spans)
        drawn = pl.concat([drawn.cast({"name": pl.String}), seen])
        owners += [Lane(process, "worker", rank, part) for part in seen["part"].unique().sort()]
    lanes = in_rows(drawn, owners)
    return Scene(
        lanes=lanes,
        steps=_one_each(lanes, whole),
        whole=whole,
        step_ns=max(whole.width_ns, 1),
        pyramid=pyramid.colours(lanes, whole),
    )


def _stacks(samples: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return a rank's sampled stacks as rows to be drawn, neighbours distinguished by their code."""
    innermost = pl.col("frames").list.last().str.replace(FOLDERS, " (")
    part = pl.format("code of {}", "thread_name")
    steps = spans.filter(pl.col("kind") == "step").select("start_ns", "step").sort("start_ns")
    seen = samples.filter(pl.col("frames").list.len() > 0).sort("start_ns")
    joined = seen.with_columns(name=innermost, part=part).join_asof(steps, on="start_ns")
    run = pl.col("name").rle_id().over("part")
    this, other = (pl.lit(CODES[label], pl.UInt8) for label in STACKS)
    code = pl.when(run % 2 == 0).then(this).otherwise(other)
    return joined.with_columns(code=code, step=pl.col("step").fill_null(-1)).select(_DRAWN)


def _label(names: dict[int, str], thread: int, depth: int, part: str) -> str:
    """Name a row by its thread, where that begins; the rows below it are labelled by their depth."""
    return f"{names.get(thread, part)}" if not depth else f"{names.get(thread, part)} · {depth}"


def _one_each(lanes: Lanes, whole: Window) -> Lanes:
    """Return one item, the run, for each lane: steps are not drawn."""
    count = len(lanes)
    numbers = np.zeros(count, np.int32)
    return Lanes(
        lanes=lanes.lanes,
        offsets=np.arange(count + 1),
        starts=np.full(count, whole.start_ns),
        ends=np.full(count, whole.end_ns),
        codes=np.full(count, BLANK, np.uint8),
        steps=numbers,
        names=numbers,
        words=("",),
    )
