"""Tags are the user's: kept in the user's own file, not in folders of runs, by one word or two."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens_dashboard.runs import tags
from tracelens_dashboard.runs.tags import Tags


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tags.json"


def test_they_are_kept_for_the_next_server(tmp_path: Path, file: Path) -> None:
    """Sorted and without duplicates; the trace folder is not written to."""
    run = tmp_path / "run"
    run.mkdir()
    stored_tags = Tags(file)
    stored_tags.add([run], "lr 0.1")
    stored_tags.add([run, tmp_path / "other"], "baseline")
    stored_tags.add([run], "Baseline")
    assert stored_tags.tags_of(run) == Tags(file).tags_of(run) == ("baseline", "lr 0.1")
    assert Tags(file).tags_of(tmp_path / "other") == ("baseline",)
    assert not list(run.iterdir())
    stored_tags.remove(run, "baseline")
    assert Tags(file).tags_of(run) == ("lr 0.1",)
    stored_tags.remove(run, "lr 0.1")
    assert str(run) not in file.read_text()


def test_they_are_in_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may be emptied at any time."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "mine"))
    assert tags.tags_file() == tmp_path / "mine" / "tracelens" / "tags.json"


@pytest.mark.parametrize("given", ["", "  ", ",", None, 5])
def test_what_is_no_word_is_no_tag(given: object, file: Path, tmp_path: Path) -> None:
    """It is refused with an example."""
    assert tags.clean_tag(given) == ""
    with pytest.raises(InvalidArgument, match="baseline"):
        Tags(file).add([tmp_path], given)  # type: ignore[arg-type]


def test_a_tag_cannot_act_and_is_short() -> None:
    """Control characters are made visible; blanks in it are one."""
    assert tags.clean_tag(" a \t b ") == "a b"
    assert "\x1b" not in tags.clean_tag("a\x1b[31m")
    assert len(tags.clean_tag("x" * 1000)) == tags.MAX_TAG_LETTERS


def test_a_run_has_so_many_at_most(file: Path, tmp_path: Path) -> None:
    stored_tags = Tags(file)
    for number in range(tags.MAX_TAGS_PER_RUN):
        stored_tags.add([tmp_path], f"tag {number}")
    with pytest.raises(InvalidArgument, match="12 tags at most"):
        stored_tags.add([tmp_path], "one more")
    assert len(stored_tags.tags_of(tmp_path)) == tags.MAX_TAGS_PER_RUN


@pytest.mark.parametrize("damage", ["{", "[]", '{"runs": 5}', '{"runs": {"x": 5}}', "[" * 9999])
def test_a_damaged_file_is_kept(damage: str, file: Path, tmp_path: Path) -> None:
    """Runs are shown without tags; nothing replaces what the user may still need."""
    file.parent.mkdir()
    file.write_text(damage)
    stored_tags = Tags(file)
    assert stored_tags.tags_of(tmp_path) == ()
    with pytest.raises(UnusableInput, match="move it out of the way"):
        stored_tags.add([tmp_path], "new")
    assert file.read_text() == damage


def test_tags_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableInput, match="Tags cannot be kept"):
        Tags(tmp_path / "file" / "tags.json").add([tmp_path], "new")


def test_servers_beside_each_other_lose_nothing(file: Path, tmp_path: Path) -> None:
    """Each changes the stored tags, not those that it read earlier."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: Tags(file).add([tmp_path / str(n)], "same"), range(40)))
    assert len(json.loads(file.read_text())["runs"]) == 40
