"""Files and listings of web servers: read like local ones, and trusted with nothing."""

import json
import shutil
from pathlib import Path

import pytest
from support.runs.tables import table_of
from support.web.file_server import Behaviour

import tracelens
from tracelens.cli import main
from tracelens.errors import UnusableInput
from tracelens.remote import mirror
from tracelens.simulator.synthetic import Scenario, write

Web = tuple[str, "Path", "Behaviour"]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one sentence with which a command ends."""
    assert main([*arguments]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    return said


@pytest.mark.slow
def test_a_folder_that_the_server_lists(
    web: Web, slow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without a slash, and by a pattern; asked again, no file is sent."""
    address, folder, behaviour = web
    shutil.copytree(slow_run, folder / "run")
    local = output_of(capsys, "analyze", slow_run, "--format", "json")
    assert output_of(capsys, "analyze", f"{address}/run", "--format", "json") == local
    behaviour.bodies.clear()
    assert output_of(capsys, "analyze", f"{address}/run", "--again", "--format", "json") == local
    assert behaviour.sent() == 0
    assert output_of(capsys, "analyze", f"{address}/ru*/", "--format", "json") == local


def test_a_signed_address_is_read_and_its_signature_never_printed(
    web: Web, slow_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A signature belongs to the request, not to the name of the file, and is never printed."""
    address, folder, _ = web
    table_of(tracelens.open(slow_run)).write_parquet(tmp_path / "events.parquet")
    shutil.copy(tmp_path / "events.parquet", folder)
    signed = f"{address}/events.parquet?signature=hidden-words"
    assert output_of(capsys, "info", signed).startswith(f"{address}/events.parquet: 4 processes")
    local = output_of(capsys, "analyze", tmp_path / "events.parquet", "--format", "json")
    assert output_of(capsys, "analyze", signed, "--format", "json") == local


@pytest.mark.parametrize("ranges", [True, False])
def test_info_reads_the_ends_of_files(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, ranges: bool
) -> None:
    """Where the server sends parts of files; else it sends them whole, and the answer is the same."""
    address, folder, behaviour = web
    behaviour.ranges = ranges
    write(Scenario(ranks=2, steps=3000), tmp_path / "long")
    shutil.copytree(tmp_path / "long", folder / "long")
    remote = json.loads(output_of(capsys, "info", f"{address}/long", "--format", "json"))
    local = json.loads(output_of(capsys, "info", tmp_path / "long", "--format", "json"))
    assert remote["processes"] == local["processes"]
    size = sum(file.stat().st_size for file in (folder / "long").glob("*.arrow"))
    assert (behaviour.sent() < size / 2) is ranges


def test_a_server_that_goes_away_in_the_middle(
    web: Web, slow_run: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent in part is no file; what was whole is kept, and is not asked for again."""
    address, folder, behaviour = web
    shutil.copytree(slow_run, folder / "run")
    behaviour.cuts = "worker-00003"
    assert "went away" in refusal_of(capsys, "analyze", f"{address}/run")
    assert not [*cache.rglob("worker-00003*"), *cache.rglob(".part-*")]
    behaviour.cuts = None
    cached_names = {file.name for file in cache.rglob("worker-*")}
    behaviour.bodies.clear()
    output_of(capsys, "analyze", f"{address}/run")
    assert not [name for name in cached_names if behaviour.sent(name)]
    assert len([*cache.rglob("worker-*")]) == 4


def test_names_that_lead_elsewhere(web: Web, slow_run: Path, cache: Path, tmp_path: Path) -> None:
    """Whatever a listing names, nothing is written outside of the copy's own folder."""
    address, folder, behaviour = web
    sound_file = min(slow_run.glob("*.arrow"))
    (folder / "run").mkdir()
    for name in (sound_file.name, "evil.arrow", "..evil.arrow", "a:evil.arrow"):
        shutil.copy(sound_file, folder / "run" / name)
    links = [
        sound_file.name,
        "../../evil.arrow",
        "..%2f..%2fevil.arrow",
        "%2e%2e/",
        "..evil.arrow",
        "a:evil.arrow",
        "a%5cevil.arrow",
        "/etc/passwd",
        "http://127.0.0.1:1/run/evil.arrow",
        "samples/../../evil.arrow",
        "notes.txt",
    ]
    behaviour.page = "".join(f'<a href="{link}">x</a>' for link in links)
    files_before = {file for file in tmp_path.rglob("*") if not file.is_relative_to(cache)}
    copy = mirror.fetch_copy(f"{address}/run")
    assert [file.name for file in copy.iterdir()] == [sound_file.name]
    files_after = {file for file in tmp_path.rglob("*") if not file.is_relative_to(cache)}
    assert files_after - files_before <= {*cache.parents}


def test_a_server_that_refuses(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a password nor a token is in the sentence."""
    address, _, behaviour = web
    behaviour.refuses = True
    with_password = address.replace("://", "://me:hidden-words@")
    said = refusal_of(capsys, "analyze", f"{with_password}/run?token=hidden-words")
    assert f"refuses access to '{address}/run'" in said
    assert "hidden" not in said


def test_a_server_that_does_not_answer_is_reported(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal_of(capsys, "info", "http://me:hidden-words@127.0.0.1:1/run?token=hidden-words")
    assert "'http://127.0.0.1:1/run' cannot be reached" in said
    assert "hidden" not in said
    assert not cache.exists()


def test_a_missing_page_is_reported(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    address, folder, _ = web
    assert f"There is no '{address}/run'" in refusal_of(capsys, "info", f"{address}/run")
    (folder / "empty").mkdir()
    assert "expected files such as worker-" in refusal_of(capsys, "info", f"{address}/empty/")


def test_a_disk_that_is_too_small(
    web: Web, slow_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is fetched, with what to do."""
    address, folder, _ = web
    shutil.copytree(slow_run, folder / "run")
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(UnusableInput, match="XDG_CACHE_HOME"):
        mirror.fetch_copy(f"{address}/run")
