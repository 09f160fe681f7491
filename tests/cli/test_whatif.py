"""`tracelens whatif` answers as text, JSON and Markdown, as its page shows, or refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.samples import ROOT, SAMPLES

import tracelens as tl
from tracelens.cli import main

SAMPLE = str(SAMPLES / "ddp-slow-backprop")
PAGE = (ROOT / "docs" / "whatif.md").read_text()
EXAMPLE = re.search(
    r"```console\n\$ tracelens (whatif sample_traces\S+ .*)\n```\n\n```text\n", PAGE
)


def test_page_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worked example is what the command prints."""
    assert EXAMPLE
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(EXAMPLE[1])) == 0
    printed = capsys.readouterr().out
    shown = PAGE[EXAMPLE.end() :].partition("\n```")[0]
    assert [line.rstrip() for line in printed.strip().splitlines()] == shown.splitlines()


def test_json_is_what_python_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON holds the answer of `tl.whatif`, composed in the order of the edits."""
    edits = ["rank:1=median", "bandwidth*2"]
    assert main(["whatif", SAMPLE, "--what", edits[0], "--what", edits[1], "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["format"] == "tracelens.whatif/1"
    assert content == json.loads(json.dumps(tl.whatif(tl.open(SAMPLE), *edits).to_dict()))
    (answer,) = content["answers"]
    assert answer["edits"] == edits
    assert answer["after_interval_ns"][0] <= answer["after_ns"] <= answer["after_interval_ns"][1]


def test_all_in_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    """All single edits are rows of a table, and refused ones are listed with a reason."""
    assert main(["whatif", SAMPLE, "--what", "all", "--format", "markdown"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len({row.count(" | ") for row in rows}) == 1
    assert "| rank:1=median |" in printed
    assert "- No answer to message\\_cost/2: this needs services" in printed


@pytest.mark.parametrize(
    ("edit", "why"),
    [("quicker", "is no edit that is known"), ("rank:7=median", "rank 7 is none of 0 to 1")],
)
def test_an_edit_without_an_answer_is_a_usage_error(
    edit: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid or unanswerable edit is a usage error of one sentence."""
    assert main(["whatif", SAMPLE, "--what", edit]) == 2
    complaint = capsys.readouterr().err
    assert why in complaint
    assert complaint.count("\n") == 1


def test_a_table_of_one_step_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of one span per rank is replayed as one step."""
    table = tmp_path / "two.csv"
    table.write_text("rank,start_ns,end_ns\n0,0,10\n1,0,12\n")
    assert main(["whatif", str(table), "--what", "rank:1=median"]) == 0
    assert re.search(r"rank:1=median +12 ns +10 ns", capsys.readouterr().out)
