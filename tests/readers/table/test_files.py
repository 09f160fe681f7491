"""Every kind of file is read by the command line, and a damaged one is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from support.runs.analysed import RUNS
from support.runs.analysed import trace as simulated
from support.runs.tables import table_of
from support.tiers import mark_slow

from tracelens import load
from tracelens.cli import main
from tracelens.errors import InvalidArgument, TraceLensError
from tracelens.readers import READERS
from tracelens.readers.table import reader
from tracelens.simulator.synthetic import Scenario, write

SLOW = RUNS["slow rank"][0]
SMALL = "rank,start_us,end_us,kind,step\n" + "".join(
    f"{rank},{10 * step},{10 * step + 6},fwd,{step}\n" for rank in (0, 1) for step in range(3)
)


def _stream(frame: pl.DataFrame, path: Path) -> None:
    table = frame.to_arrow()
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "events.arrow": lambda frame, path: frame.write_ipc(path),
    "events.feather": lambda frame, path: frame.write_ipc(path, compression="lz4"),
    "events.parquet": lambda frame, path: frame.write_parquet(path),
    "events.csv": lambda frame, path: frame.write_csv(path),
    "semicolons.csv": lambda frame, path: frame.write_csv(path, separator=";"),
    "events.tsv": lambda frame, path: frame.write_csv(path, separator="\t"),
    "marked.csv": lambda frame, path: frame.write_csv(path, include_bom=True),
    "no-suffix": lambda frame, path: frame.write_parquet(path),
}


@pytest.mark.parametrize(
    "name", mark_slow(WRITERS, ("events.arrow", "semicolons.csv", "no-suffix"))
)
def test_every_kind_of_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict on the command line is that of the native trace."""
    WRITERS[name](table_of(simulated(SLOW)), tmp_path / name)
    assert main(["analyze", str(tmp_path / name), "--one-clock", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (fault,) = report["findings"]
    assert (fault["kind"], fault["ranks"], fault["steps"]) == ("straggler", [2], [20, 49])
    assert main(["info", str(tmp_path / name), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["steps"] for row in facts["processes"]] == [80] * 4
    assert {row["file"] for row in facts["processes"]} == {name}


def test_information_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is unknown is a dash, and notes name the table."""
    file = tmp_path / "events.csv"
    file.write_text(SMALL)
    assert main(["info", str(file)]) == 0
    out = capsys.readouterr().out
    assert "worker 1" in out
    assert "None" not in out


def test_renaming_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--map` for columns and words, as `--help` shows it."""
    file = tmp_path / "events.csv"
    file.write_text("who,t0,t1,what\n0,1,2,predict\n0,2,3,bwd\n")
    renamed = ["who=rank", "t0=start_us", "t1=end_us", "what=kind", "kind:predict=forward"]
    options = [word for pair in renamed for word in ("--map", pair)]
    assert main(["info", str(file), *options]) == 0
    capsys.readouterr()
    pairs = dict(pair.split("=") for pair in renamed)
    kinds = load.open(file, map=pairs).events.collect()["kind"].to_list()
    assert kinds == ["forward", "backprop"]
    with pytest.raises(SystemExit):
        main(["analyze", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--map THEIRS=OURS" in text
    assert "kind:predict=forward" in text


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--map", "rank"], 2, "expected THEIRS=OURS"),
        (["--map", "=rank"], 2, "expected THEIRS=OURS"),
        (["--map", "nothing=rank"], 2, "has no column 'nothing'"),
        (["--map", "rank=nothing"], 2, "'nothing' is no column of TraceLens"),
    ],
)
def test_a_wrong_renaming_is_a_usage_error(
    options: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "events.csv"
    file.write_text(SMALL)
    assert main(["analyze", str(file), *options]) == code
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_renaming_a_native_trace(tmp_path: Path) -> None:
    """There is nothing to rename in a trace folder."""
    write(Scenario(ranks=2, steps=3), tmp_path)
    with pytest.raises(InvalidArgument, match="no table of spans"):
        load.open(tmp_path, map={"a": "rank"})
    with pytest.raises(InvalidArgument, match="no table of spans"):
        load.open(tmp_path, one_clock=True)


def test_native_files_are_no_tables(tmp_path: Path) -> None:
    """One process's own Arrow file is read as such."""
    write(Scenario(ranks=2, steps=3), tmp_path)
    (file, _) = sorted(tmp_path.iterdir())
    assert not reader.is_table(file)
    assert load.open(file).processes["pid"].to_list() == [1000]


DAMAGE: dict[str, bytes] = {
    "empty.csv": b"",
    "blank.csv": b"\n\n",
    "header.csv": b"rank,start_ns,end_ns\n",
    "other.csv": b"a,b\n1,2\n",
    "latin.csv": "rank,start_ns,end_ns,näme\n0,1,2,x\n".encode("latin-1"),
    "utf16.csv": SMALL.encode("utf-16"),
    "binary.csv": bytes(range(256)) * 4,
    "late.csv": SMALL.encode() * 100 + b"\xff\xfe,1,2,fwd,0\n",
    "quote.csv": b'rank,start_ns,end_ns,name\n0,1,2,"never closed\n' * 3,
    "text.parquet": b"hello",
    "cut.parquet": b"PAR1" + bytes(100),
    "empty.feather": b"",
    "old.feather": b"FEA1" + bytes(60),
    "cut.feather": b"ARROW1\0\0" + bytes(60),
    "cut.arrow": b"ARROW1\0\0" + bytes(60),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_tables_are_refused(name: str, tmp_path: Path) -> None:
    """A file that cannot be read, wholly or in part, is refused in one sentence."""
    file = tmp_path / name
    file.write_bytes(DAMAGE[name])
    with pytest.raises(TraceLensError) as error:
        load.open(file)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["events.parquet", "events.feather"])
def test_tables_cut_short_are_refused(name: str, share: float, tmp_path: Path) -> None:
    file = tmp_path / name
    WRITERS[name](table_of(simulated(SLOW)), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TraceLensError) as error:
        load.open(file)
    assert name in str(error.value)


def test_arrow_streams_are_refused(tmp_path: Path) -> None:
    """Arrow's stream form is not its file form: it is refused with what was expected."""
    file = tmp_path / "events.feather"
    _stream(table_of(simulated(Scenario(ranks=2, steps=3))), file)
    with pytest.raises(TraceLensError, match="neither an Arrow nor a Parquet file"):
        load.open(file)


def test_ragged_rows_are_left_out_alone(tmp_path: Path) -> None:
    """Rows with more or fewer cells than the header lose nothing of the others."""
    file = tmp_path / "events.csv"
    file.write_text("rank,start_ns,end_ns,kind\n0,1,2,fwd,extra\n0,3,4\n0,5\n1,1,2,fwd\n")
    trace = load.open(file)
    assert trace.events.collect().select("rank", "start_ns", "end_ns").rows() == [
        (0, 1, 2),
        (0, 3, 4),
        (0, 5, None),
        (1, 1, 2),
    ]


def test_readers_agree_on_whose_a_file_is(tmp_path: Path) -> None:
    """No path is claimed by two readers."""
    write(Scenario(ranks=1, steps=3), tmp_path / "native")
    (tmp_path / "events.csv").write_text(SMALL)
    table_of(simulated(SLOW)).write_ipc(tmp_path / "events.arrow")
    paths = [tmp_path / "native", *(tmp_path / "native").iterdir(), tmp_path / "events.csv"]
    for path in paths:
        assert [reader.sniff(path) for reader in READERS].count(True) == 1
    first = next(reader for reader in READERS if reader.sniff(tmp_path / "events.arrow"))
    assert first.name == "table of spans"


@pytest.mark.parametrize("name", ["events.parquet", "events.csv", "no-suffix"])
@pytest.mark.parametrize("one_clock", [False, True])
def test_a_folder_with_one_table_is_that_table(
    name: str, tmp_path: Path, *, one_clock: bool
) -> None:
    """Other files and hidden ones are ignored."""
    WRITERS[name](table_of(simulated(SLOW)), tmp_path / name)
    (tmp_path / "README.txt").write_text("a training")
    (tmp_path / ".hidden.csv").write_text(SMALL)
    trace = load.open(tmp_path, one_clock=one_clock)
    assert trace.workers.height == load.open(tmp_path / name).workers.height


def test_of_several_tables_in_a_folder_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(SMALL)
    with pytest.raises(TraceLensError, match="it holds 2 tables of spans, name one of them"):
        load.open(tmp_path)
