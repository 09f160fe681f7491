"""Dumps of PyTorch's Flight Recorder: which call hangs, who never came, what differs; none is run."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from support.flight_dumps import OPEN, call, dump
from support.flight_dumps import write_dumps as written

import tracelens as tl
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.flight_recorder import FlightRecorderReader

MUTATIONS: Final = int(os.environ.get("TRACELENS_MUTATIONS", "500"))


def facts_of(trace: tl.Trace) -> dict[str, str]:
    assert trace.recognition
    return dict(trace.recognition.facts)


def test_who_never_came_is_named(tmp_path: Path) -> None:
    ranks = [[call(1), call(2), call(3, **OPEN)] for _ in range(3)]
    trace = tl.open(written(tmp_path, [*ranks, [call(1), call(2)]]))
    assert facts_of(trace)["group default_pg"] == (
        "last completed by all: call 2; first missing: call 3 (nccl:all_reduce at /home/me/train.py:12)"
        ", entered by ranks 0, 1 and 2, never by rank 3"
    )
    assert [f.ranks for f in tl.analyze(trace).findings if f.kind == "hang"] == [(3,)]


def test_a_rank_without_a_dump_is_missing_too(tmp_path: Path) -> None:
    """The group's ranks are known from the other dumps."""
    written(tmp_path, [[call(1), call(2, **OPEN)] for _ in range(3)])
    (tmp_path / "nccl_trace_rank_1").unlink()
    trace = FlightRecorderReader().read(tmp_path)
    assert facts_of(trace)["group default_pg"] == (
        "last completed by all: call 1; entered by all and not completed on ranks 0 and 2; "
        "no dump of rank 1"
    )


def test_all_in_one_call_hang_together(tmp_path: Path) -> None:
    trace = FlightRecorderReader().read(written(tmp_path, [[call(1), call(2, **OPEN)]] * 2))
    assert facts_of(trace)["group default_pg"] == (
        "last completed by all: call 1; entered by all and not completed on ranks 0 and 1"
    )


def test_without_a_hang_nothing_is_healthy(tmp_path: Path) -> None:
    """Only calls are known, not what ranks did."""
    ranks = [[call(seq) for seq in range(1, 41)] for _ in range(3)]
    report = tl.analyze(tl.open(written(tmp_path, ranks)))
    assert report.verdict.state == "inconclusive"
    assert not [finding for finding in report.findings if finding.category == "fault"]


def test_bytes_and_operations(tmp_path: Path) -> None:
    """Of every operation of c10d; a type that is not known has no bytes."""
    names = {
        "nccl:_all_gather_base": "all_gather",
        "nccl:_reduce_scatter_base": "reduce_scatter",
        "gloo:all_reduce": "allreduce",
        "nccl:all_to_all": "all_to_all",
        "nccl:broadcast": "broadcast",
        "nccl:all_reduce_barrier": "barrier",
    }
    entries = [call(seq, name) for seq, name in enumerate(names, 1)]
    entries.append(call(9, input_dtypes=["Odd"]))
    events = FlightRecorderReader().read(written(tmp_path, [entries])).events.collect()
    events = events.sort("start_ns")
    assert events["op"].cast(str).to_list() == [*names.values(), "allreduce"]
    assert events["bytes"].to_list() == [4096] * len(names) + [None]


def test_the_rank_is_that_of_the_name_or_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "dump.pkl"
    file.write_bytes(pickle.dumps(dump([call(1)])))
    with pytest.raises(UnusableInput, match=r"--rank-of dump\.pkl=RANK"):
        FlightRecorderReader().read(file)
    trace = FlightRecorderReader().read(file, Reading(rank_of={"dump.pkl": 3}))
    assert trace.processes["rank"].to_list() == [3]
    assert next(r.name for r in READERS if r.sniff(file)) == FlightRecorderReader().name


def test_text_that_cannot_be_encoded_is_replaced(tmp_path: Path) -> None:
    """Pickles may hold half a surrogate pair, which no output can."""
    content = dump([call(1, process_group=("\udcff", "\udcff"))])
    content["pg_config"] = {"\udcff": {"ranks": "[0]"}}
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps(content))
    groups = FlightRecorderReader().read(tmp_path).communicators
    assert all("?" in name and name.encode() for name in groups["communicator"].cast(str))


class Hostile:
    """Runs a command when it is unpickled, if anything lets it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.place}",)


def test_a_pickle_that_calls_is_refused(tmp_path: Path) -> None:
    """What it names is in the sentence, and was not run."""
    bait = tmp_path / "bait"
    file = tmp_path / "trace_rank_0"
    file.write_bytes(pickle.dumps(dump([call(1), Hostile(bait)])))
    with pytest.raises(NotATrace, match=r"it asks for posix\.system"):
        FlightRecorderReader().read(file)
    assert not bait.exists()


@pytest.mark.slow  # the reader stops it after all the CPU time that a dump may take
def test_a_pickle_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    """Lists of lists that share their parts would be 2^60 numbers as JSON."""
    nested: list[Any] = [0]
    for _ in range(60):
        nested = [nested, nested]
    file = tmp_path / "trace_rank_0"
    file.write_bytes(pickle.dumps(dump([call(1), nested])))
    with pytest.raises(NotATrace, match="no whole dump"):
        FlightRecorderReader().read(file)


def test_an_empty_dump_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(EmptyTrace, match="TORCH_FR_BUFFER_SIZE"):
        FlightRecorderReader().read(written(tmp_path, [[], []]))


def test_of_a_folder_the_others_are_read(tmp_path: Path) -> None:
    written(tmp_path, [[call(1)], [call(1)]])
    content = (tmp_path / "nccl_trace_rank_1").read_bytes()
    (tmp_path / "nccl_trace_rank_1").write_bytes(content[: len(content) // 2])
    trace = FlightRecorderReader().read(tmp_path)
    assert trace.processes["rank"].to_list() == [0]
    assert [note.file for note in trace.notes if note.kind == "unreadable"] == ["nccl_trace_rank_1"]


MUTATE: Final = """
import io, json, pickle, random, resource, sys
from pathlib import Path
from tracelens.errors import TraceLensError
from tracelens.readers.flight_recorder.dump import translate_dump
from tracelens.readers.flight_recorder.unpickle import PlainUnpickler

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
whole, outcomes = Path(sys.argv[1]).read_bytes(), {"read": 0, "not loaded": 0, "refused": 0}
for seed in range(int(sys.argv[2])):
    luck, changed = random.Random(seed), bytearray(whole)
    for _ in range(luck.choice((1, 2, 8))):
        changed[luck.randrange(len(changed))] = luck.choice((0, 255, luck.randrange(256)))
    if luck.random() < 0.1:
        del changed[luck.randrange(len(changed)):]
    try:
        value = json.loads(json.dumps(PlainUnpickler(io.BytesIO(changed)).load(), allow_nan=False))
    except Exception:
        outcomes["not loaded"] += 1
        continue
    try:
        found = translate_dump(value, Path("dump"))
        assert found.call_rows.height + found.unusable_count == len(value["entries"])
        outcomes["read"] += 1
    except TraceLensError:
        outcomes["refused"] += 1
print(json.dumps(outcomes))
"""


def test_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """A dump that loads is translated, each entry counted; `TRACELENS_MUTATIONS` sets the number."""
    place = tmp_path / "trace_rank_0"
    place.write_bytes(pickle.dumps(dump([call(seq) for seq in range(1, 9)])))
    command = [sys.executable, "-c", MUTATE, str(place), str(MUTATIONS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == MUTATIONS
    assert outcomes["read"] > MUTATIONS // 50
    assert outcomes["not loaded"] > MUTATIONS // 50
