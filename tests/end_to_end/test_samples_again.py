"""Samples can be recorded again: what the cheap ones record, and the verdict, is as committed."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from support.samples import Sample, departures, manifest, record
from support.turns import select_turn

from tracelens.load import open as open_trace
from tracelens.model.trace import Trace
from tracelens.verdicts.report import analyze

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

FEW: Final = 6  # steps, where structure is all that is compared
# What a busy machine cannot do to a run: such a fault is one of ours.
NEVER: Final = {
    *("missing_rank", "truncated_trace", "dropped_events", "desync", "hang"),
    *("world_change", "uneven_inputs", "clock_jump"),
}
SLOW: Final = "--slow-ms=100"
# Others are recorded again in test_random_faults, with faults drawn at random.
PLANTED: Final = ("ddp-slow-loader", "ps-hot-shard", "mpi-killed-rank", "mpi-sampled")
CHEAP: Final = [sample for sample in manifest() if sample.cheap]


def structure(trace: Trace) -> dict[str, set[tuple[object, ...]]]:
    """Return the processes and the kinds of spans per role, without garbage collections."""
    roles = trace.processes.select("process", "role", "rank", "world", "shard")
    spans = trace.spans.filter(pl.col("kind") != "gc").join(roles.lazy(), on="process")
    # The samples were recorded before calls said that they pickle.
    spans = spans.with_columns(
        algorithm=pl.col("algorithm").cast(pl.String).replace("pickle", None)
    )
    named_spans = spans.select(
        "role",
        *(pl.col(name).cast(pl.String) for name in ("kind", "op", "name", "algorithm")),
        *(pl.col(name).is_not_null().alias(name) for name in ("request", "peer", "bytes")),
    )
    groups = trace.communicators.select("name", "ranks")
    return {
        "processes": set(roles.drop("process").rows()),
        "spans": set(named_spans.unique().collect().rows()),
        "communicators": {(name, tuple(ranks)) for name, ranks in groups.rows()},
    }


def slower(sample: Sample) -> Sample:
    """Return the same with a delay that shows on a busy machine, too."""
    delayed = [SLOW if word.startswith("--slow-ms") else word for word in sample.arguments]
    return replace(sample, arguments=delayed)


@pytest.mark.parametrize("sample", select_turn(CHEAP), ids=lambda sample: sample.name)
def test_it_records_the_same_things(sample: Sample, tmp_path: Path) -> None:
    """In a few steps, or in all where a fault must be found that takes them."""
    planted = sample.name in PLANTED
    record(slower(sample) if planted else sample.shortened(FEW), tmp_path / "trace")
    again, committed = open_trace(tmp_path / "trace"), open_trace(sample.folder)
    assert structure(again) == structure(committed)
    report = analyze(again)
    if planted:
        told = [departures(finding, sample.expect) for finding in report.findings]
        assert [] in told, told  # beside it may stand what a busy machine has done
    else:
        assert not {finding.kind for finding in report.findings} & NEVER
