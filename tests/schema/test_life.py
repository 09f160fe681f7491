"""The journal of a job's life: what is written is read, and nothing else is believed."""

from pathlib import Path

from tracelens.schema.life import Exited, Journal, Launched, Resumed, Stalled, read_journals


def test_entries_are_read_by_time(tmp_path: Path) -> None:
    launched = Launched(at_ns=5, host="node", pid=3)
    stalled = Stalled(
        at_ns=7,
        since_ns=6,
        culprits=[1],
        waiting=[0, 2],
        op="allreduce",
        seq=66,
        states={"1": "stopped"},
        stacks={"0": ["wait (torch.py:3)"]},
    )
    exited = Exited(at_ns=9, rank=1, code=-9, is_out_of_memory=True)
    journal = Journal(tmp_path)
    for entry in (exited, launched, stalled, Resumed(at_ns=8, since_ns=6)):
        journal.append(entry)
    assert read_journals(tmp_path) == [launched, stalled, Resumed(at_ns=8, since_ns=6), exited]


def test_lines_that_are_no_entries_are_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(Exited(at_ns=1))
    (file,) = tmp_path.glob("life-*.jsonl")
    with file.open("ab") as stream:
        stream.write(b'{"entry":"exited","at_ns":"2"}\n{"entry":"exited","at_ns":3,"code":"x"}\n')
        stream.write(b'{"entry":"of a newer version","at_ns":4}\n[1]\n\xff\n{"entry":"exited","at_')
    assert read_journals(tmp_path) == [Exited(at_ns=1)]


def test_fields_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "life-node-1.jsonl").write_text('{"entry":"ended","at_ns":1,"code":2,"new":3}\n')
    (ended,) = read_journals(tmp_path)
    assert (ended.at_ns, getattr(ended, "code", None)) == (1, 2)


def test_folder_without_journal_has_no_entries(tmp_path: Path) -> None:
    assert read_journals(tmp_path / "missing") == []
