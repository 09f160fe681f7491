"""What is an address, what a path; and what of an address may be printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.remote import address
from tracelens.remote.listing import make_local_name


@pytest.mark.parametrize("text", ["runs/today", "/runs/today", "c:\\runs", "s3:/bucket", "://x"])
def test_paths_are_not_remote(text: str) -> None:
    assert address.parse_place(text) == Path(text)


@pytest.mark.parametrize("text", ["s3://bucket/run", "https://host/x.csv", "GS://bucket/run"])
def test_addresses_stay_as_they_are(text: str) -> None:
    """They stay as they are: as a path, one would lose a slash."""
    assert address.parse_place(text) == text


@pytest.mark.parametrize(
    ("given", "public"),
    [
        ("s3://key:secret@bucket/run", "s3://bucket/run"),
        ("sftp://me:p%40ss@host/a@b", "sftp://host/a@b"),
        ("https://me:p@ss@host/x.csv?X-Amz-Signature=secret&a=b", "https://host/x.csv"),
        ("404, url='http://me:secret@host/x?t=secret' again", "404, url='http://host/x' again"),
        ("s3://bucket/run-?", "s3://bucket/run-?"),
    ],
)
def test_secrets_are_not_shown(given: str, public: str) -> None:
    assert address.hide_secrets(given) == public


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ("s3://bucket/run-?", True),
        ("s3://bucket/run-[0-3]/", True),
        ("https://host/x.csv?token=abc", False),
        ("https://host/run-*/", True),
    ],
)
def test_a_question_mark_in_a_web_address_is_no_pattern(given: str, *, pattern: bool) -> None:
    """What follows a ``?`` in the address of a web page is a query."""
    assert address.is_pattern(given) is pattern


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("s3://bucket/runs/today/", "today"),
        ("s3://bucket", "bucket"),
        ("https://host/run%2012:30.csv?token=1", "run 12_30.csv"),
        ("https://host/..%2f..%2fevil.csv", "__.._evil.csv"),
        ("s3://bucket/..", "_"),
        ("https://host/", "trace"),
    ],
)
def test_copies_are_named_after_their_originals(given: str, name: str) -> None:
    """A copy is called as what it is a copy of, as far as a file may be called so."""
    assert make_local_name(given) == name


def test_an_unknown_protocol_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "nothing://me:hidden-words@host/run"]) == 2
    said = capsys.readouterr().err
    assert "'nothing'" in said
    assert "hidden" not in said


def test_a_missing_library_is_named_with_its_install_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["analyze", "s3://bucket/run"]) == 4
    assert "'.[remote]'" in capsys.readouterr().err


def test_a_protocol_of_another_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error repeats the advice of fsspec on the library to install."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert main(["analyze", "gs://bucket/run"]) == 4
    assert "gcsfs" in capsys.readouterr().err


def test_local_traces_import_nothing_of_it() -> None:
    """Neither fsspec nor a client of any protocol."""
    run = Path(__file__).parents[2] / "sample_traces" / "mpi-late-rank"
    program = (
        "import json, sys; from tracelens.cli import main; main(['info', sys.argv[1]]);"
        "sys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(run)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    imported = {*json.loads(done.stderr)}
    assert not imported & {"fsspec", "s3fs", "aiohttp", "tracelens.remote.listing"}
