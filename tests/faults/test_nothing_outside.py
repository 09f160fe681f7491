"""Reading a stranger's trace writes, moves and deletes nothing but in folders that TraceLens made."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs.indexes import explained, recorded
from support.runs.segments import PROCESS, Slot, write_folder
from support.tiers import mark_slow

import tracelens as tl
from tracelens.cli import main
from tracelens.conversion.folder import PROGRESS_FILE
from tracelens.distil import places
from tracelens.errors import NotATrace
from tracelens.lod import index, opening
from tracelens.schema.host import clock_domain, host_name, leave_note
from tracelens.schema.ownership import MARKER_FILE, mark
from tracelens.schema.vocabulary import UNFINISHED_FILE

DEAD = replace(
    PROCESS, host=host_name(), clock_domain=clock_domain(), pid=2**22 + 1, incarnation=1, rank=9
)
READING = ("info", "analyze", "validate", "index")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter.txt").write_text("years of work")
    (folder / "letter.txt").write_text("dear")
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return recorded(tmp_path / "stranger")


def describe_folder(folder: Path) -> dict[str, tuple[int, str]]:
    """Describe everything below a folder: when it was changed last, and what it holds."""
    return {
        str(entry): (entry.lstat().st_mtime_ns, "" if entry.is_dir() else entry.read_text("latin1"))
        for entry in [folder, *folder.rglob("*")]
    }


def read_with_all_verbs(trace: Path) -> None:
    for verb in READING:
        main([verb, str(trace)])


@pytest.mark.parametrize("deep", ["", places.INDEX_FOLDER, "x"])
def test_an_index_that_is_a_link(trace: Path, documents: Path, deep: str) -> None:
    """Whether it is the folder of indexes or an index in it: what it leads to stays as it is."""
    if deep == places.INDEX_FOLDER:
        made = trace / places.INDEX_FOLDER
        made.mkdir()
        (made / str(places.compute_fingerprint(trace))).symlink_to(documents)
    else:
        (trace / places.INDEX_FOLDER).symlink_to(documents / deep)
    before = describe_folder(documents)
    read_with_all_verbs(trace)
    assert describe_folder(documents) == before
    assert index.find(trace)


def test_folders_of_others_where_indexes_lie(trace: Path, cache: Path) -> None:
    """What somebody put where indexes would lie is not cleared away; the index is in the cache."""
    theirs = trace / places.INDEX_FOLDER / "notes"
    theirs.mkdir(parents=True)
    (theirs / "ideas.txt").write_text("mine")
    before = describe_folder(trace / places.INDEX_FOLDER)
    read_with_all_verbs(trace)
    assert describe_folder(trace / places.INDEX_FOLDER) == before
    found = index.find(trace)
    assert found
    assert found.is_relative_to(cache)


def test_an_index_that_came_with_the_trace_is_not_believed(trace: Path, tmp_path: Path) -> None:
    """A copy of an index may say anything; its marker is that of another folder."""
    explained(trace)
    made_of = places.compute_fingerprint(trace)
    copied = tmp_path / "copy"
    shutil.copytree(trace, copied)  # with times, so that the copy has the same fingerprint
    assert places.compute_fingerprint(copied) == made_of
    assert (copied / places.INDEX_FOLDER / MARKER_FILE).exists()
    assert index.find(copied) is None
    assert opening.open_indexed(trace)


def dead_segments(trace: Path) -> Path:
    """Leave segments of a process of this host that has been killed."""
    return write_folder(trace, [Slot(1, 2)], process=DEAD, end=False)


def test_own_segments_are_converted_in_place(trace: Path) -> None:
    """A killed run of one's own becomes Arrow when it is read."""
    folder = dead_segments(trace)
    mark(folder, trace)
    tl.open(trace)
    assert not folder.exists()
    assert folder.with_suffix(".arrow").exists()


def test_segments_that_were_unpacked_here_stay(trace: Path) -> None:
    """They are read all the same, each time anew."""
    dead_segments(trace)
    state_before = describe_folder(trace)
    for _ in range(2):
        assert tl.open(trace).processes.filter(rank=9)["events"].to_list() == [1]
    assert describe_folder(trace) == state_before


def test_a_copied_recording_stays(trace: Path, tmp_path: Path) -> None:
    """Its markers are those of other folders."""
    mark(dead_segments(trace), trace)
    copied = tmp_path / "copy"
    shutil.copytree(trace, copied)
    before = describe_folder(copied)
    tl.open(copied)
    assert describe_folder(copied) == before


@pytest.mark.parametrize(
    "name",
    mark_slow(
        [UNFINISHED_FILE, PROGRESS_FILE, f".{PROGRESS_FILE}", "side.jsonl"], quick=[PROGRESS_FILE]
    ),
)
def test_links_among_segments(trace: Path, documents: Path, name: str) -> None:
    """They are refused in a sentence, also in a folder with a good marker."""
    folder = dead_segments(trace)
    mark(folder, trace)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(documents / "letter.txt")
    state_before = describe_folder(documents)
    read_with_all_verbs(trace)
    (note,) = (note for note in tl.open(trace).notes if note.kind == "unreadable")
    assert "holds a link" in note.sentence
    assert describe_folder(documents) == state_before


@pytest.mark.parametrize("known", [True, False])
def test_a_note_that_names_segments_of_another_run(
    trace: Path, tmp_path: Path, *, known: bool
) -> None:
    """Neither moved nor read: only segments that say so belong to a trace."""
    other_run = tmp_path / "mine"
    folder = dead_segments(other_run)
    if known:
        mark(folder, other_run)
    leave_note(trace / f"{folder.stem}.elsewhere", folder)
    state_before = describe_folder(other_run)
    read_with_all_verbs(trace)
    (note,) = (note for note in tl.open(trace).notes if note.kind == "unreadable")
    assert "does not say that it belongs to this trace" in note.sentence
    assert describe_folder(other_run) == state_before


def test_a_finished_run_does_not_clear_another(trace: Path, tmp_path: Path) -> None:
    """A foreign Arrow file next to such a note does not allow the segments to be removed."""
    other_run = tmp_path / "mine"
    folder = dead_segments(other_run)
    mark(folder, other_run)
    leave_note(trace / "worker-00000-1.elsewhere", folder)
    state_before = describe_folder(other_run)
    tl.open(trace)
    with pytest.raises(NotATrace, match="belongs to this trace"):
        tl.open(trace / "worker-00000-1.elsewhere")
    assert describe_folder(other_run) == state_before


@pytest.mark.parametrize("name", ["worker-00007-7.arrow", "worker-00007-7.segments"])
def test_links_out_of_the_trace(trace: Path, tmp_path: Path, name: str) -> None:
    """Their targets are not read; a link within the trace is, and one that the user names."""
    file_outside = tmp_path / "outside" / name
    if name.endswith(".arrow"):
        file_outside.parent.mkdir()
        shutil.copy(next(trace.glob("*.arrow")), file_outside)
    else:
        dead_segments(file_outside.parent).rename(file_outside)
    (trace / name).symlink_to(file_outside)
    (note,) = (note for note in tl.open(trace).notes if note.kind == "unreadable")
    assert "link out of the trace" in note.sentence
    (tmp_path / "named").symlink_to(file_outside.parent)
    assert tl.open(tmp_path / "named").processes.height == 1


def test_samples_behind_a_link(trace: Path, documents: Path) -> None:
    """They are left out, and a note says so."""
    (trace / "samples").mkdir()
    name = next(trace.glob("*.arrow")).name
    (trace / "samples" / name).symlink_to(documents / "letter.txt")
    (note,) = (note for note in tl.open(trace).notes if "samples" in note.sentence)
    assert "left out" in note.sentence
