"""Runs with a loss of known size, shape and place, written and judged without the detectors.

The jobs, losses and right answers are those of `benchmarks.shapes`. Runs stay in memory: a table's rows
can be changed in ways that must not change the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl
from benchmarks.shapes.answers import is_called_healthy
from benchmarks.shapes.bench import AIM, SEVERITY, Case, measure_share, solve_amount
from benchmarks.shapes.catalog import list_controls, list_shapes
from benchmarks.shapes.noise import FAMILIES
from benchmarks.shapes.simulation import join_adjacent
from hypothesis import strategies as st

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from benchmarks.shapes.answers import Answer
    from benchmarks.shapes.simulation import Job

    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

Row: TypeAlias = dict[str, Any]

SHAPES: Final = list_shapes()
CONTROLS: Final = list_controls()
RANKS: Final = (2, 3, 4, 8, 64)
MOST_RANKS_OF_SLOWEST_JOBS: Final = 8  # messages of a pipeline are simulated one by one
SEEDS: Final = 1000


@dataclass(frozen=True)
class Planted:
    """A job with a loss that takes `share` of its time, and what is right to say about it."""

    case: Case
    job: Job
    share: float
    answer: Answer

    def find_errors(self, report: Report) -> list[str]:
        """Return what is wrong with the report."""
        return self.answer.find_errors(report.to_dict(), self.share)


def plant(case: Case) -> Planted | None:
    """Plant the loss of a case; None if no loss of that shape is as large."""
    shape, setting = SHAPES[case.name], case.draw_setting()
    amount = solve_amount(shape, setting, AIM * case.size / 100)
    if amount is None:
        return None
    share = measure_share(shape, setting, amount)
    return Planted(case, shape.build(setting, amount), share, shape.answer(setting))


def build_control(case: Case) -> Job:
    """Return a job without a loss."""
    return CONTROLS[case.name].build(case.draw_setting())


def list_rows(job: Job) -> list[Row]:
    """Simulate a job and return its table, one row a span."""
    return join_adjacent(job.execute(recorded=True).rows)


def read_rows(rows: Sequence[Row]) -> Trace:
    return tl.Trace.from_table(pl.DataFrame(rows, infer_schema_length=None))


def analyze_job(job: Job) -> Report:
    return tl.analyze(read_rows(list_rows(job)))


def rate_severity(report: Report) -> int:
    """Return the place of the verdict among those from the mildest to the most severe.

    A report that says "nothing to fix" is as mild as a healthy one.
    """
    values = report.to_dict()
    return 0 if is_called_healthy(values) else SEVERITY.index(report.verdict.state)


def draw_cases(
    shapes: Collection[str], sizes: st.SearchStrategy[int], ranks: Collection[int]
) -> st.SearchStrategy[Case]:
    """Draw a shape, a number of ranks that it can have, a size in percent, noise and a seed."""

    def draw_of_shape(name: str) -> st.SearchStrategy[Case]:
        most = MOST_RANKS_OF_SLOWEST_JOBS if "pipeline" in name else max(RANKS)
        counts = [count for count in ranks if SHAPES[name].fewest_ranks <= count <= most]
        return st.builds(
            Case,
            st.just(name),
            st.sampled_from(counts),
            sizes,
            st.sampled_from(FAMILIES),
            st.integers(0, SEEDS - 1),
        )

    return st.sampled_from(sorted(shapes)).flatmap(draw_of_shape)


def rename_ranks(rows: Sequence[Row], names: Sequence[int]) -> list[Row]:
    """Call rank i `names[i]`, also where it is the peer of a message."""
    renamed = []
    for row in rows:
        cells = row | {"rank": names[row["rank"]]}
        if "peer" in row:
            cells["peer"] = names[row["peer"]]
        renamed.append(cells)
    return renamed


def shuffle_rows(rows: Sequence[Row], random: np.random.Generator) -> list[Row]:
    return [rows[index] for index in random.permutation(len(rows))]


def split_spans(rows: Sequence[Row], random: np.random.Generator) -> list[Row]:
    """Split half of the spans of phases in two that touch, each at another share of its length."""
    split_rows: list[Row] = []
    for row in rows:
        length_ns = row["end_ns"] - row["start_ns"]
        is_phase = "op" not in row and row["kind"] not in {"kernel", "step"}
        if not is_phase or length_ns < 2 or random.random() < 0.5:
            split_rows.append(row)
            continue
        middle_ns = row["start_ns"] + int(random.integers(1, length_ns))
        split_rows += [row | {"end_ns": middle_ns}, row | {"start_ns": middle_ns}]
    return split_rows


def shift_clock(rows: Sequence[Row], shift_ns: int) -> list[Row]:
    """Let the clock of all ranks show `shift_ns` more."""
    return [
        row | {"start_ns": row["start_ns"] + shift_ns, "end_ns": row["end_ns"] + shift_ns}
        for row in rows
    ]


def shift_clocks_of_hosts(rows: Sequence[Row], shifts_ns: Sequence[int]) -> list[Row]:
    """Put each rank on a host of its own, whose clock shows `shifts_ns[rank]` more."""
    shifted: list[Row] = []
    for row in rows:
        rank = row["rank"]
        shifted += [row | {"host": f"host{rank}"} for row in shift_clock([row], shifts_ns[rank])]
    return shifted


def count_work(rows: Sequence[Row], name: str, amount: float) -> list[Row]:
    """Let each rank record, as a step ends, the amount of work (samples, tokens) that it did in it."""
    last_rows: dict[tuple[int, int], Row] = {}
    for row in rows:
        if row.get("step") is not None and row.get("thread", "main") == "main":
            last = last_rows.setdefault((row["rank"], row["step"]), row)
            if row["end_ns"] > last["end_ns"]:
                last_rows[row["rank"], row["step"]] = row
    counters = [
        {key: row[key] for key in ("rank", "host", "thread", "step") if key in row}
        | {"type": "counter", "kind": "step", "name": name, "value": amount}
        | {"start_ns": row["end_ns"], "end_ns": row["end_ns"]}
        for row in last_rows.values()
    ]
    return [{"type": "span"} | row for row in rows] + counters
