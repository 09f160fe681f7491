"""Records that cannot be are left out with their share; steps whose kernels are lost are not judged."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from support.nsight import MS, training

import tracelens as tl
from tracelens.model.result import Report


def analyze_changed(folder: Path, *statements: str, ranks: int = 2) -> Report:
    """Return the report of some ranks after statements on the file of rank 0."""
    for rank in range(ranks):
        file = training(rank).write(folder / f"rank{rank}.sqlite")
        with sqlite3.connect(file) as database:
            for statement in statements if rank == 0 else ():
                database.execute(statement)
    return tl.analyze(tl.open(folder))


def sentences(report: Report) -> str:
    return " ".join(note.sentence for note in report.notes)


KERNEL = "insert into CUPTI_ACTIVITY_KIND_KERNEL values ({}, {}, 0, {}, 9999, {}, 1)"
PROCESS = 100 << 24
CASES = {
    "a kernel that outlasts its successors": (
        KERNEL.format(50 * MS, 900 * MS, 7, PROCESS),
        "kernels that outlast later ones of their stream, or all else, 1 of 121 (",
    ),
    "a kernel that ends before it begins": (
        KERNEL.format(50 * MS, 40 * MS, 7, PROCESS),
        "events that end before they begin, 1 of 241 (0.4 %)",
    ),
    "a kernel of years": (
        KERNEL.format(50 * MS, 10**17, 7, PROCESS),
        "events that begin or end far from all others, 1 of 241 (0.4 %)",
    ),
    "a time at the end of 64 bits": (
        KERNEL.format(2**63 - 5, 2**63 - 1, 7, PROCESS),
        "1 row without a begin or an end",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_left_out(case: str, tmp_path: Path) -> None:
    """And the verdict is that of the file without it."""
    statement, sentence = CASES[case]
    for name in ("whole", "wrong"):
        (tmp_path / name).mkdir()
    sound_report = analyze_changed(tmp_path / "whole")
    wrong = analyze_changed(tmp_path / "wrong", statement)
    assert sentence in sentences(wrong)
    assert wrong.verdict.headline == sound_report.verdict.headline
    assert wrong.efficiency
    assert sound_report.efficiency
    assert wrong.efficiency.devices
    assert sound_report.efficiency.devices
    assert wrong.efficiency.devices.compute == pytest.approx(
        sound_report.efficiency.devices.compute
    )


def test_steps_without_kernels_are_not_judged(tmp_path: Path) -> None:
    """The longest stretch of whole steps is."""
    delete = f"delete from CUPTI_ACTIVITY_KIND_KERNEL where start between {300 * MS} and {359 * MS}"  # noqa: S608 - ours
    report = analyze_changed(tmp_path, delete)
    assert "6 of 120 launches (5.0 %) have no kernel, most in steps 10\N{EN DASH}11" in sentences(
        report
    )
    assert "steps 12\N{EN DASH}39, which all did, are judged" in sentences(report)


def test_nothing_is_judged_where_kernels_are_lost_everywhere(tmp_path: Path) -> None:
    delete = "delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId % 4 = 0"
    report = analyze_changed(tmp_path, delete)
    assert "30 of 120 launches (25 %) have no kernel" in sentences(report)
    assert report.verdict.state == "inconclusive"


def test_a_file_that_repeats_another_counts_once(tmp_path: Path) -> None:
    training(0).write(tmp_path / "a.sqlite")
    training(1).write(tmp_path / "b.sqlite")
    shutil.copy(tmp_path / "a.sqlite", tmp_path / "c.sqlite")
    trace = tl.open(tmp_path)
    assert trace.workers["rank"].to_list() == [0, 1]
    assert "'c.sqlite' repeats 'a.sqlite', all 240 events" in " ".join(
        note.sentence for note in trace.notes
    )


def test_all_processes_of_a_file_are_of_the_rank_that_the_user_says(tmp_path: Path) -> None:
    """As where a rank's workers that load data were profiled with it."""
    export = training(0)
    export.rank = None
    file = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(file) as database:
        database.execute(
            "insert into NVTX_EVENTS select start, end, eventType, 'load', null, globalTid + (1 << 24) "
            "from NVTX_EVENTS"
        )
    assert tl.open(file, rank_of={"a.sqlite": 3}).workers["rank"].to_list() == [3]
