"""Files of strangers whose right answer is known: damage costs records, and no verdict."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import tracelens as tl
from tracelens.errors import UnusableInput

PLACES: Final = [up / "shared" / "cases" / "reports" for up in Path(__file__).resolve().parents]
CASES: Final = next((place for place in PLACES if place.is_dir()), PLACES[0])
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is not there")

# Kinds of profile that are healthy but for one thing that is wrong in the file.
HEALTHY: Final = (
    *("healthy", "same_pid", "clock_3s", "clock_drift", "long_kernel", "lost_kernels", "merged"),
    *("trailing_comma", "trailing_comma_events", "bom", "shifted", "shifted_noseq", "cuda_sync"),
    *("negative", "rank_as_text", "no_world", "ts_text", "begin_end", "unsorted", "control_char"),
    *("bad_quote", "nan", "cut", "windows", "bad_utf8", "no_profiler_step", "same_stream"),
)
LATE: Final = ("late_rank", "merged_late", "shifted_late", "shifted_late_noseq")


def run_case(case: str, kind: str, target: Path) -> Path:
    """Return a file or folder that the case's own program wrote."""
    program = CASES / case / "make.py"
    subprocess.run([sys.executable, str(program), kind, str(target)], check=True, timeout=120)
    return target


def faults(path: Path) -> list[tuple[str, tuple[int, ...], str | None]]:
    """Return kind, ranks and phase of each fault, but for files that were cut off."""
    findings = tl.analyze(tl.open(path)).findings
    return [
        (finding.kind, finding.ranks, finding.phase)
        for finding in findings
        if finding.category == "fault" and finding.kind != "truncated_trace"
    ]


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_profile_with_one_thing_wrong_has_no_fault(kind: str, tmp_path: Path) -> None:
    assert not faults(run_case("kineto_doctored", kind, tmp_path / "profiles"))


@pytest.mark.parametrize("kind", LATE)
def test_a_late_rank_is_named_whatever_is_wrong(kind: str, tmp_path: Path) -> None:
    folder = run_case("kineto_doctored", kind, tmp_path / "profiles")
    assert ("straggler", (1,), "forward") in faults(folder)


def test_text_of_two_bytes_a_character_is_refused(tmp_path: Path) -> None:
    folder = run_case("kineto_doctored", "utf16", tmp_path / "profiles")
    with pytest.raises(UnusableInput):
        tl.open(folder)


@pytest.mark.parametrize("kind", ["late", "closed", "newline_in_name", "torn_line", "cut"])
def test_a_timeline_names_the_late_rank(kind: str, tmp_path: Path) -> None:
    file = run_case("horovod_timeline", kind, tmp_path / "timeline.json")
    assert [(kind, ranks) for kind, ranks, _ in faults(file)] == [("straggler", (2,))]


def test_a_healthy_timeline_names_no_rank(tmp_path: Path) -> None:
    assert not faults(run_case("horovod_timeline", "healthy", tmp_path / "timeline.json"))


def test_ranks_with_unequal_numbers_of_batches_are_a_mismatch(tmp_path: Path) -> None:
    program, table = CASES / "uneven_inputs_hang" / "make_table.py", tmp_path / "run.csv"
    subprocess.run([sys.executable, str(program), str(table)], check=True, timeout=120)
    report = tl.analyze(tl.open(table))
    assert "MISMATCH" in report.verdict.headline
    assert "links" not in report.verdict.action
