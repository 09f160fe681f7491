"""Profiles become a trace: a file a rank, whole or cut off, and what is missing is said."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import NotATrace, UnusableInput
from tracelens.readers.event_stream import EventStream, looks_like_events
from tracelens.readers.kineto import collectives, columns
from tracelens.readers.kineto.collectives import read_groups
from tracelens.readers.kineto.columns import read_events

TWO_RANKS: Final = Path(__file__).parents[2] / "data/kineto/two_ranks"


def profile(rank: int = 0) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        gzip.decompress((TWO_RANKS / f"rank{rank}.pt.trace.json.gz").read_bytes())
    )
    return content


def write_profile(file: Path, content: object) -> Path:
    text = json.dumps(content).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


def test_a_folder_of_ranks_is_a_run() -> None:
    """Steps as the profiler numbers them, collectives with their bytes, one clock by their exits."""
    trace = tl.open(TWO_RANKS)
    assert trace.alignment.method == "collective_exits"
    assert trace.steps.group_by("rank").agg(pl.col("step").sort()).sort("rank").rows() == [
        (0, [2, 3, 4, 5, 6, 7]),
        (1, [2, 3, 4, 5, 6, 7]),
    ]
    (grid,) = trace.calls
    assert (grid.start_ns >= 0).sum() == 12
    events = trace.events.collect()
    assert events.filter(pl.col("kind") == "reduction")["bytes"].unique().to_list() == [19_240]
    assert set(events["kind"].cast(pl.String).unique()) == {
        *("step", "data", "forward", "backprop", "update", "reduction", "user")
    }
    assert trace.processes["file"].to_list() == [f"rank{r}.pt.trace.json.gz" for r in (0, 1)]


def test_phases_nest_in_their_steps() -> None:
    """Each step: data, forward, backprop, update, in this order, on the thread that trains."""
    trace = tl.open(TWO_RANKS)
    phases = ["data", "forward", "backprop", "update"]
    outer = trace.spans.filter(
        pl.col("kind").is_in(phases), pl.col("rank") == 0, pl.col("depth") <= 1
    ).collect()
    order = outer.sort("start_ns").select(
        pl.col("kind").cast(pl.String).rle().struct.field("value")
    )
    runs = order["value"].to_list()
    assert [kind for kind in runs if kind != "data"][:9] == phases[1:] * 3


def test_info_says_what_is_known_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "rank0.json.gz", profile())
    assert main(["info", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for line in (
        "Recognised, as profile by torch.profiler:",
        "ranks        1 of 2 (rank 0), 1 host",
        "groups       default_pg 0 (ranks 0-1): 2 ranks",
        "6 allreduce; 112.7 KiB",
        "phases       data loading, forward, backprop, optimizer update",
        "which rank others wait for, as only rank 0 of 2 is here.",
    ):
        assert line in printed
    assert main(["info", "--format", "json", str(tmp_path)]) == 0
    facts = json.loads(capsys.readouterr().out)["recognised"]
    assert not facts["not_known"][0]["decisive"]
    assert main(["analyze", str(tmp_path)]) == 0
    assert "Scope    1 of 2 ranks" in capsys.readouterr().out


def test_files_may_be_named_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", *(str(TWO_RANKS / f"rank{r}.pt.trace.json.gz") for r in (0, 1))]) == 0
    printed = capsys.readouterr().out
    assert "2 ranks, 6 steps" in printed
    assert "is here" not in printed


def test_a_rank_that_no_file_says_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        content = profile(rank)
        del content["distributedInfo"]
        write_profile(tmp_path / f"{rank}.json", content)
    assert main(["analyze", str(tmp_path)]) == 3
    assert "--rank-of 0.json=0, once for each." in capsys.readouterr().err
    assert main(["analyze", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) == 3
    assert (
        "0.json and 1.json do not say the rank: say it with --rank-of 0.json=0"
        in capsys.readouterr().err
    )
    told = ["--rank-of", "0.json=4", "--rank-of", "1.json=5"]
    assert main(["info", *told, str(tmp_path)]) == 0
    assert "worker 4" in capsys.readouterr().out
    assert main(["info", "--rank-of", "0.json=-1", str(tmp_path)]) == 2


def spoil_profile(rank: int, kind: str) -> bytes:
    """Return a profile as editors and scripts of users leave it behind."""
    content = profile(rank)
    if kind == "rank as text":
        content["distributedInfo"] |= {"rank": str(rank), "world_size": "2"}
    text = json.dumps({"list": [{"a": 1}], **content, "more": {"a": "},]"}})
    if kind == "comma in front":
        text = text.replace('{"a": 1}]', '{"a": 1},]', 1)
    elif kind == "comma in an event":
        text = text.replace('"ph": "X",', '"ph": "X",,', 1)
    elif kind == "stray comma behind":
        text = text.removesuffix("}") + ",}"
    return text.encode("utf-8-sig" if kind == "byte order mark" else "utf-8")


@pytest.mark.parametrize(
    "kind",
    ["byte order mark", "rank as text", "comma in front", "comma in an event", "comma behind"],
)
def test_what_others_can_read_is_read(kind: str, tmp_path: Path) -> None:
    """A byte order mark, a comma too many, a number as a text: nothing of the profile is lost."""
    for rank in (0, 1):
        (tmp_path / f"{rank}.json").write_bytes(spoil_profile(rank, kind))
    trace = tl.open(tmp_path)
    sound_trace = tl.open(TWO_RANKS)
    assert [note.kind for note in trace.notes if note.kind in {"dropped", "truncated"}] == []
    assert trace.processes["rank"].to_list() == [0, 1]
    assert trace.events.collect().height == sound_trace.events.collect().height
    stream = EventStream(tmp_path / "0.json")
    assert sum(map(len, stream.read_pieces())) > 0
    assert stream.metadata["more"] == {"a": "},]"}


def reason_for_rank_0(file: Path) -> str:
    """Return why a file is shown as rank 0."""
    trace = tl.open(file)
    assert trace.processes["rank"].to_list() == [0]
    return next(note.sentence for note in trace.notes if note.kind == "assumed")


def test_why_a_rank_is_not_known_is_what_stands_in_the_file(tmp_path: Path) -> None:
    """A profile damaged before its events is told apart from one without distributedInfo or rank."""
    text = json.dumps(profile())
    file = tmp_path / "a.json"
    file.write_text(text.replace('"distributedInfo": {', '"distributedInfo": {oops', 1))
    assert "what stands beside its events is not JSON" in reason_for_rank_0(file)
    file.write_text(text.replace('"rank": 0', '"rank": -1', 1))
    assert "its distributedInfo has no valid rank" in reason_for_rank_0(file)


def test_rank_1_alone_is_not_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank 1 implies a rank 0, although the file does not state the number of ranks."""
    content = profile(1)
    content["distributedInfo"] = {"backend": "gloo", "rank": 1}
    write_profile(tmp_path / "rank1.json", content)
    assert main(["info", str(tmp_path)]) == 0
    assert "ranks        1 of 2 (rank 1)" in capsys.readouterr().out


def advice_of(content: dict[str, Any], file: Path) -> dict[str, str]:
    """Return the missing content of a profile, with the advice."""
    recognition = tl.open(write_profile(file, content), rank_of={file.name: 0}).recognition
    assert recognition
    return {gap.missing: gap.advice for gap in recognition.gaps}


def test_advice_is_checked_against_the_file(tmp_path: Path) -> None:
    """Present CPU activities are not asked for, nor is prof.step() without a schedule."""
    about = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5}
    operators = [about | {"name": "aten::mul", "ts": 10 * n} for n in range(50)]
    advice = advice_of({"schemaVersion": 1, "traceEvents": operators}, tmp_path / "a.json")
    phases = advice["none of 50 operators and annotations says a phase of training"]
    assert "record_function" in phases
    assert "Activit" not in phases
    assert "schedule=" in advice["no step is marked (ProfilerStep#)"]
    kernels = [about | {"cat": "kernel", "name": "gemm", "ts": 10 * n} for n in range(50)]
    advice = advice_of({"schemaVersion": 1, "traceEvents": kernels}, tmp_path / "b.json")
    assert "ProfilerActivity.CPU" in advice["no operator and no annotation is recorded"]


def test_steps_of_old_profilers_are_steps(tmp_path: Path) -> None:
    """They wrote ranges as operators; nobody is told to mark what is marked."""
    content = on_a_device(8, 900)
    for event in content["traceEvents"]:
        if event["cat"] == "user_annotation":
            event["cat"] = "Operator"
    advice = advice_of(content, tmp_path / "a.json")
    assert not any("step" in missing for missing in advice)
    assert tl.open(tmp_path / "a.json").steps["step"].to_list() == list(range(8))


def test_two_files_of_one_rank_at_once_are_refused(tmp_path: Path) -> None:
    """Two windows of one rank are not: they are one rank."""
    write_profile(tmp_path / "a.json", profile())
    write_profile(
        tmp_path / "b.json", profile(1) | {"distributedInfo": profile()["distributedInfo"]}
    )
    with pytest.raises(UnusableInput, match="are both of rank 0, at the same time"):
        tl.open(tmp_path)
    later_profile = profile()
    for event in later_profile["traceEvents"]:
        if isinstance(event.get("ts"), float):
            event["ts"] += 60e6
    write_profile(tmp_path / "b.json", later_profile)
    assert tl.open(tmp_path).processes["rank"].to_list() == [0]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_what_was_cut_off_is_read_to_the_last_whole_event(
    share: float, suffix: str, tmp_path: Path
) -> None:
    """And the verdict says that the file was cut off."""
    text = json.dumps(profile(), indent=1).encode()
    whole = text if suffix == ".json" else gzip.compress(text)
    file = tmp_path / f"rank0{suffix}"
    file.write_bytes(whole[: int(share * len(whole))])
    table = read_events(file)
    assert table.is_cut
    if suffix == ".json":
        begun = file.read_bytes().count(b'"ph"')
        assert begun - 1 <= table.event_count <= begun
    report = tl.analyze(tl.open(tmp_path))
    assert any("was cut off" in note.sentence for note in report.notes)
    assert "cut off" in report.verdict.why or "cut off" in report.verdict.headline


def test_events_of_other_tools_are_no_profile(tmp_path: Path) -> None:
    """Their names are believed, and the verdict is open; begins and ends are paired."""
    events = [
        {"ph": ph, "name": "forward", "pid": 1, "tid": 1, "ts": 100 * n + late}
        for n in range(40)
        for ph, late in (("B", 0), ("E", 50))
    ]
    file = write_profile(tmp_path / "trace.json", events)
    trace = tl.open(file, rank_of={"trace.json": 0})
    assert trace.recognition
    assert trace.recognition.format == "trace in Chrome's event format"
    assert trace.spans.filter(pl.col("kind") == "forward").collect().height >= 40
    verdict = tl.analyze(trace).verdict
    assert verdict.state == "inconclusive"
    assert "no kind that torch.profiler writes" in verdict.headline


def test_what_stands_behind_the_events_is_learned(tmp_path: Path) -> None:
    """Rank and base of times may be there, in files that another program wrote again."""
    content = profile()
    ordered = {"traceEvents": content.pop("traceEvents"), **content, "more": [{"a": 1}, {"b": 2}]}
    stream = EventStream(write_profile(tmp_path / "x.json", ordered))
    assert sum(map(len, stream.read_pieces())) == len(ordered["traceEvents"])
    assert stream.metadata == content | {"more": [{"a": 1}, {"b": 2}]}
    assert (stream.lost_count, stream.is_cut) == (0, False)


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    """Also as microseconds since 1970, which doubles hold to a quarter of one only."""
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1712195495519695.801, "dur": 2}'
    text = f'{{"traceEvents": [{event}]}}'
    file = tmp_path / "x.json"
    file.write_text(text)
    assert read_events(file).rows["start_ns"].to_list() == [1_712_195_495_519_695_801]


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"a": 1}', "no"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert not looks_like_events(file)
    with pytest.raises(NotATrace):
        tl.open(file)


def test_a_report_is_no_folder_of_events(tmp_path: Path) -> None:
    """Other JSON in a folder is left out, with a note."""
    write_profile(tmp_path / "rank0.json", profile())
    write_profile(tmp_path / "rank1.json", profile(1))
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    trace = tl.open(tmp_path)
    assert trace.processes.height == 2
    assert [note.file for note in trace.notes if note.kind == "unreadable"] == ["settings.json"]


def on_a_device(steps: int, kernel_us: int) -> dict[str, Any]:
    """Steps of 1 ms that each launch a kernel of this length in microseconds."""
    about = {"ph": "X", "pid": 1, "tid": 1}
    return {
        "distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl"},
        "traceEvents": [
            event
            for n in range(steps)
            for event in (
                about | {"cat": "user_annotation", "name": f"ProfilerStep#{n}"}
                | {"ts": 1000 * n, "dur": 990},
                about | {"cat": "user_annotation", "name": "forward", "ts": 1000 * n + 5, "dur": 980},
                about | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
                | {"ts": 1000 * n + 10, "dur": 5, "args": {"correlation": n + 1}},
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
                | {"ts": 1000 * n + 20, "dur": kernel_us}
                | {"args": {"device": 0, "stream": 7, "correlation": n + 1}},
            )
        ],
    }  # fmt: skip


@pytest.mark.parametrize(("kernel_us", "idle"), [(20, True), (950, False)])
def test_a_device_that_is_idle_is_not_bound_by_compute(
    kernel_us: int, tmp_path: Path, *, idle: bool
) -> None:
    """What the host does meanwhile is launching: only what the device computes is useful."""
    file = write_profile(tmp_path / "x.pt.trace.json", on_a_device(40, kernel_us))
    report = tl.analyze(tl.open(file))
    assert report.efficiency
    assert report.efficiency.devices
    computing_us = 40 * kernel_us / (39 * 1000 + kernel_us)  # from the first to the last kernel
    assert report.efficiency.devices.compute == pytest.approx(computing_us)
    assert report.efficiency.achieved == pytest.approx(computing_us)
    assert report.efficiency.devices.host_before == {"forward": 1.0}
    limit = "BOUND BY devices that wait for the host" if idle else "INCONCLUSIVE: one rank alone"
    assert report.verdict.headline.startswith(limit)


@pytest.mark.parametrize("ranks", ["[1000000000000001]", "[-1]", "[1.5]", "[" * 100_000, "{}"])
def test_a_group_of_what_are_no_ranks_is_not_known(ranks: str) -> None:
    listed = [{"pg_name": "0", "ranks": ranks}, {"pg_name": "1", "ranks": "[0, 1]"}]
    assert read_groups({"distributedInfo": {"pg_config": listed}}) == {"1": ("", (0, 1))}


@pytest.mark.parametrize(
    ("element_count", "nbytes"), [(1 << 20, 4 << 20), (10**19, None)], ids=["usual", "damaged"]
)
def test_a_payload_beyond_all_bounds_is_unknown(element_count: int, nbytes: int | None) -> None:
    call = {"Collective name": "allreduce", "In msg nelems": element_count, "dtype": "Float"}
    assert collectives._payload_bytes(call) == nbytes


def test_words_may_be_numbers_or_anything() -> None:
    nested: list[object] = [5]
    assert columns._text_column("tid", [1, nested, "x"]).to_list() == ["1", None, "x"]
