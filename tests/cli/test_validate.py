"""`tracelens validate` says a line for each problem of a trace, a table or a report; exit 0 or 1."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from support.runs.analysed import RUNS, report
from support.runs.damage import VICTIM, rewritten, write_run
from support.samples import SAMPLES

from tracelens.cli import main
from tracelens.reports import to_json
from tracelens.schema.side import METADATA_KEY

if TYPE_CHECKING:
    from pathlib import Path

Output = pytest.CaptureFixture[str]


def validate_file(path: Path, capsys: Output, *options: str) -> tuple[int, list[str]]:
    code = main(["validate", str(path), *options])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["ddp-healthy", "ps-hot-shard", "mpi-late-rank"])
def test_recorded_traces_have_no_problem(name: str, capsys: Output) -> None:
    """Nothing is wrong with what the recorder wrote."""
    code, lines = validate_file(SAMPLES / name, capsys)
    assert (code, len(lines)) == (0, 1)
    assert "no problem" in lines[0]


def test_a_killed_rank_and_its_open_collective_are_problems(capsys: Output) -> None:
    """Who did not end by itself, and the collective that was never completed."""
    code, lines = validate_file(SAMPLES / "mpi-killed-rank", capsys)
    assert code == 1
    assert sum("did not end its recording itself" in line for line in lines) == 3
    assert "not every rank joined: 1 (allreduce 181 of 'MPI_COMM_WORLD')" in lines[-1]


DAMAGE: dict[str, tuple[Any, str]] = {
    "version": (
        lambda table: table.replace_schema_metadata(
            {
                METADATA_KEY: re.sub(
                    rb'"schema":\d+', b'"schema":99', table.schema.metadata[METADATA_KEY]
                )
            }
        ),
        "schema version 99",
    ),
    "column": (lambda table: table.drop_columns(["kind"]), "column 'kind' is there 0 times"),
    "side tables": (
        lambda table: table.replace_schema_metadata({METADATA_KEY: b'{"process": 1}'}),
        "metadata is damaged",
    ),
    "sortedness": (
        lambda table: table.take(list(range(table.num_rows))[::-1]),
        "not sorted by start",
    ),
    "negative times": (
        lambda table: table.set_column(
            table.schema.get_field_index("duration_ns"),
            table.schema.field("duration_ns"),
            pc.negate(pc.add(table["duration_ns"], 1)),
        ),
        "lost events",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_is_a_line_that_names_the_file(
    name: str, tmp_path: Path, capsys: Output
) -> None:
    """Version, columns, side tables, order and times, each in a line that names the file."""
    change, sentence = DAMAGE[name]
    rewritten(write_run(tmp_path), change)
    code, lines = validate_file(tmp_path, capsys)
    assert code == 1
    assert any(sentence in line and VICTIM in line for line in lines), lines


def test_a_file_without_its_end_is_a_problem(tmp_path: Path, capsys: Output) -> None:
    victim = write_run(tmp_path)
    victim.write_bytes(victim.read_bytes()[:-700])
    code, lines = validate_file(tmp_path, capsys)
    assert code == 1
    assert any("damaged or cut off" in line for line in lines)


def test_input_that_is_no_trace_is_a_problem(tmp_path: Path, capsys: Output) -> None:
    """A path that is no trace is one problem; a missing path is unusable input."""
    assert validate_file(tmp_path, capsys)[0] == 1
    (tmp_path / "notes.txt").write_text("hello")
    code, lines = validate_file(tmp_path / "notes.txt", capsys)
    assert (code, len(lines)) == (1, 1)
    assert validate_file(tmp_path / "nowhere", capsys)[0] == 3


def test_problems_of_a_table_are_listed(tmp_path: Path, capsys: Output) -> None:
    """A sound table is sound; cells, rows and collectives that are not are told."""
    file = tmp_path / "events.csv"
    file.write_text("rank,start_ns,end_ns,kind,step,seq\n0,1,2,fwd,0,\n1,1,2,fwd,0,\n")
    assert validate_file(file, capsys) == (0, [f"{file}: no problem in this table of spans."])
    with file.open("a") as out:
        out.write("0,9,3,bwd,0,\n0,4,5,bwd,x,\n0,6,7,allreduce,0,\n0,8,9,allreduce,0,0\n" * 2)
    code, lines = validate_file(file, capsys)
    assert code == 1
    for sentence in (
        "In column 'step' 2 cells hold something else",
        "rows repeat another",
        "2 for negative duration",
        "1 collectives carry no communicator or number",
    ):
        assert any(sentence in line for line in lines), sentence


def test_problems_of_a_report_are_listed_with_their_path(tmp_path: Path, capsys: Output) -> None:
    """What `analyze --format json` printed is sound; what was changed is told with its place."""
    file = tmp_path / "report.json"
    printed = to_json.render(report(RUNS["slow rank"][0]))
    file.write_text(printed)
    assert validate_file(file, capsys) == (0, [f"{file}: no problem in this report."])
    broken = json.loads(printed)
    broken["findings"][0]["kind"] = "slowpoke"
    broken["clock"].pop("method")
    file.write_text(json.dumps(broken))
    code, lines = validate_file(file, capsys)
    assert code == 1
    assert [line.split(":")[0] for line in lines] == ["$.clock", "$.findings[0].kind"]


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_problems_are_printed_as_json_and_markdown(form: str, capsys: Output) -> None:
    """The same for programs and for an issue."""
    path = SAMPLES / "mpi-killed-rank"
    code, lines = validate_file(path, capsys, "--format", form)
    assert code == 1
    if form == "json":
        found = json.loads("\n".join(lines))
        assert (found["what"], len(found["problems"])) == ("trace", 4)
    else:
        assert all(line.startswith("- ") for line in lines)
