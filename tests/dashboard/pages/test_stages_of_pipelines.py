"""A rank of a pipeline is compared with those of its stage, on pages as in findings."""

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from benchmarks.labelled import kinds_of_pipelines
from benchmarks.labelled.label import Case
from benchmarks.labelled.setting import Setting
from support.runs.cached import load_or_make

from tracelens import load
from tracelens.lod import opening
from tracelens.model.result import Report
from tracelens.model.trace import SAMPLE_COLUMNS, Trace
from tracelens.verdicts.report import analyze
from tracelens_dashboard.components.timeline import inspector
from tracelens_dashboard.figures import stragglers
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view import peer_stacks

FIRST, LAST = range(4), range(4, 8)  # the ranks of both stages; the last one has 1.4 times the work


@cache
def case() -> Case:
    """Return a run in which a rank of the stage with less work is slow."""
    make = kinds_of_pipelines.staged(kinds_of_pipelines.straggler, kinds_of_pipelines.uneven)
    cases = (make(Setting(8, 60, 2, "mild", "lognormal", seed)) for seed in itertools.count())
    return next(case for case in cases if case.label.ranks[0] in FIRST)


@cache
def read() -> tuple[Trace, Report]:
    recording = case().recording

    def make() -> tuple[Trace, Report]:
        trace = load.prepare(recording.trace())
        return trace, analyze(trace)

    return load_or_make(f"uneven stages {recording.events.hash_rows().sum()}", make)


@cache
def store() -> Store:
    return Store.from_trace(*read())


def slow() -> int:
    return case().label.ranks[0]


@pytest.mark.slow
def test_the_map_shows_whom_the_report_accuses() -> None:
    """It is the stage's straggler, although all ranks of the other stage take longer."""
    (accused,) = [found for found in read()[1].findings if found.category == "fault"]
    assert accused.ranks == (slow(),)
    residuals = store().residuals
    usual = np.median(residuals.residual_ns, axis=1) / np.median(residuals.compute_ns)
    assert np.flatnonzero(usual > 0.1).tolist() == [slow()]
    assert int(residuals.total_delay_ns.argmax()) == slow()
    drawing = stragglers.by_rank(residuals, LIGHT)
    assert drawing.summary.startswith(f"Largest residual over the run: rank {slow()}, ")
    assert drawing.summary.endswith("Ranks are compared with those of the same stage (of 2).")
    assert [row["stage"] for row in sorted(drawing.rows, key=lambda row: row["rank"])] == [
        *(0 for _ in FIRST),
        *(1 for _ in LAST),
    ]


@pytest.mark.slow
def test_so_do_phases() -> None:
    """A single phase is compared within the stage, too."""
    bars = stragglers.by_category(store().residuals, store().residuals_of_category, LIGHT)
    assert bars.summary.startswith(f"Rank {slow()} takes ")
    usual = np.median(store().residuals_of_category("backprop").residual_ns, axis=1)
    assert usual.argmax() == slow()
    assert (usual[list(LAST)] < usual[slow()] / 3).all()


def test_a_span_is_held_against_its_stage() -> None:
    """The details of a clicked span name the median of the rank's peers."""
    spent = store().category_times.time_ns_by_rank("backprop", 30)
    peers = sorted(spent[rank] for rank in LAST if rank != 7)
    details = inspector._compare_with_peers(store(), 7, 30, "backprop")
    assert details.endswith(f"(peers' median: {peers[1] / 1e6:.1f} ms)")


def add_samples(*ranks: int) -> Store:
    """Return the run with a sample of some ranks' stacks."""
    trace, report = read()
    seen = [(rank, 0, 100 + rank, "Main", 0, 10, ["train (a.py:1)"]) for rank in ranks]
    table = pl.DataFrame(seen, schema=SAMPLE_COLUMNS, orient="row")
    return Store.from_trace(trace.with_(samples=table), report)


def test_stacks_are_held_against_those_of_the_stage() -> None:
    """Other stages run other code; they serve where no other rank of the stage was sampled."""
    whole = add_samples(*FIRST, *LAST)
    assert peer_stacks.read(whole, slow(), None, None).peer_ranks == tuple(
        rank for rank in FIRST if rank != slow()
    )
    assert peer_stacks.read(add_samples(slow(), *LAST), slow(), None, None).peer_ranks == tuple(
        LAST
    )


def test_an_index_knows_the_stages(tmp_path: Path) -> None:
    """Of a run that is opened again, the map is the same."""
    case().recording.write(tmp_path)
    read_run = opening.explain_trace(load.open(tmp_path))
    indexed_run = opening.open_indexed(tmp_path)
    assert indexed_run
    assert indexed_run.residuals.stage_numbers.tolist() == [0] * 4 + [1] * 4
    assert np.array_equal(
        indexed_run.residuals.residual_ns, read_run.residuals.residual_ns, equal_nan=True
    )


def test_a_stage_of_one_rank_is_compared_with_its_own_steps() -> None:
    """Nothing else does its work; the sentence says so."""
    residuals = replace(store().residuals, peers_ns=np.zeros((8, 60)), stage_numbers=np.arange(8))
    assert stragglers.summary(residuals).endswith("(of 8); one alone with its own other steps.")


@pytest.mark.slow
def test_code_is_held_against_the_stages_in_a_report(monkeypatch: Any) -> None:
    """What the analyses look for in stacks is what peers of the stage do not do."""
    trace, compared = read()[0], []
    monkeypatch.setattr(
        "tracelens.accounting.sampled_code.find_in_ranks",
        lambda *values, **_: compared.append(values[2:4]),
    )
    analyze(trace)
    assert compared == [((slow(),), tuple(rank for rank in FIRST if rank != slow()))]
