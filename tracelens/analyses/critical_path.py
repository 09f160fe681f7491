"""The critical path: the one chain of work and waiting across ranks that is as long as the job.

Shortening anything else changes nothing. It is walked backwards (`_path.py`) over the exact partition of
every rank's time, so its parts, by rank and category, sum to the job; what each rank can spare is told
beside it (`_slack.py`). Where clocks are uncertain by more than a wait, either rank may have been last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.analyses import _along, _path, _slack, _stays
from tracelens.analyses._job import job_ns
from tracelens.analyses._partition import CATEGORIES

if TYPE_CHECKING:
    from tracelens.analyses._path import Lanes
    from tracelens.analyses.phases import Phases
    from tracelens.analyses.result import Finding
    from tracelens.trace import Trace

__all__ = ["SHARE_COLUMNS", "CriticalPath", "run"]

MOST_ROWS: Final = 64  # in a report: the largest
MOST_SEGMENTS: Final = 256
SHARE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "category": pl.String(),  # of the partition, or outside: before a rank's first step
    "ns": pl.Int64(),
    "share": pl.Float64(),  # of the path
}


@dataclass(frozen=True)
class CriticalPath:
    """`path` holds its intervals, the last first; `shares` sums to 1; `slack` has a row a rank.

    `cells` adds it up by step, rank and category, `longest` holds its longest pieces (`_along.py`);
    `stays` are its intervals as a line to be drawn, of a bounded number (`_stays.py`).
    """

    path: pl.DataFrame
    shares: pl.DataFrame
    slack: pl.DataFrame
    cells: pl.DataFrame
    longest: pl.DataFrame
    stays: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows: of ranks those that can spare least."""
        return {
            "critical_path": self.shares.head(MOST_ROWS),
            "slack": self.slack.sort("slack_ns", "rank").head(MOST_ROWS),
        }


def run(trace: Trace, phases: Phases) -> CriticalPath:
    """Walk the path and measure what ranks can spare."""
    lanes = _path.Lanes(trace, phases)
    path = _path.walk(lanes)
    ranks = dict(trace.workers.select("process", "rank").iter_rows())
    along = _along.segments(path, phases)
    lasted = pl.col("end_ns") - pl.col("start_ns")
    return CriticalPath(
        path=path,
        shares=_shares(path, lanes, ranks, job_ns(trace)),
        slack=_slack.measure(trace),
        cells=_along.cells(along),
        longest=along.top_k(MOST_SEGMENTS, by=lasted).sort(lasted, descending=True),
        stays=_stays.all_of(path),
    )


def _shares(path: pl.DataFrame, lanes: Lanes, ranks: dict[int, int], job: int) -> pl.DataFrame:
    """Add the path up by rank and category."""
    rows = []
    for (process,), part in path.partition_by("process", as_dict=True).items():
        lane = lanes.of(int(process))
        spent = lane.spent(part["end_ns"].to_numpy()) - lane.spent(part["start_ns"].to_numpy())
        total = spent.sum(axis=0)
        rows += [
            (ranks.get(int(process)), CATEGORIES[code], int(total[code]), 0.0)
            for code in np.flatnonzero(total)
        ]
    outside = job - sum(ns for _, _, ns, _ in rows)
    if outside > 0 and not path.is_empty():
        rows.append((ranks.get(path["process"][-1]), "outside", outside, 0.0))
    table = pl.DataFrame(rows, schema=SHARE_COLUMNS, orient="row")
    share = pl.col("ns") / pl.lit(max(job, 1))
    return table.with_columns(share=share).sort(
        "ns", "rank", "category", descending=[True, False, False]
    )
