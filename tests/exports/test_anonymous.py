"""An anonymous export contains no name of a host, user, job or path in any byte."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs.traces import call, span, trace_of
from support.samples import SAMPLES, sample_report, sample_trace
from support.tiers import mark_slow

import tracelens
from tracelens.cli import main
from tracelens.exports.anonymous import Replacements
from tracelens.exports.content import select_content
from tracelens.exports.native import save
from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.model.trace import SAMPLE_COLUMNS
from tracelens.verdicts.report import analyze

HOSTS: Final = ("trn-node7.cluster.example", "trn-node8.cluster.example")
# What must not be found again, in any case of letters.
SECRETS: Final = (
    *("trn-node7", "trn-node8", "cluster.example"),
    *("aliceb", "zed", "secret-project", "corpus", "my scripts", "train_llm", "10.1.2.3"),
)
FRAMES: Final = (
    "<module> (/home/aliceb/secret-project/train_llm.py:90)",
    "load (/home/aliceb/my scripts/loader.py:7)",
    "forward (secret-project/train_llm.py:12)",
    "_run_code (<frozen runpy>:88)",
)
NAMES: Final = (
    "read /scratch/corpus/shard-1.bin",
    "copy C:\\Users\\aliceb\\corpus",
    "fetch from trn-node8",
    "of aliceb",
    "zed's step",
    "send to 10.1.2.3",
    "encoder/layer.0",
)


@pytest.fixture
def named_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace folder with names wherever the format has room for them, converted by user zed."""
    monkeypatch.setenv("LOGNAME", "zed")
    rows = []
    for rank in range(2):
        for step in range(6):
            begin_ns = 1_000_000 * step
            rows.append(span(rank, "step", begin_ns, begin_ns + 900_000, step=step))
            for number, name in enumerate(NAMES):
                start = begin_ns + 100_000 * number
                rows.append(span(rank, "user", start, start + 90_000, name, depth=1, step=step))
            rows.append(call(rank, step, begin_ns + 800_000, begin_ns + 890_000, step=step))
    trace = prepare(
        trace_of(rows, ranks=2, host=list(HOSTS), clock_domain=list(HOSTS), job=["aliceb-llm"] * 2)
    )
    samples = pl.DataFrame(
        [(0, 0, 100, "aliceb's worker of /scratch/corpus", 5, 900, list(FRAMES))],
        schema=SAMPLE_COLUMNS,
        orient="row",
    )
    threads = trace.threads.with_columns(name=pl.lit("loader of /home/aliceb/corpus"))
    groups = trace.communicators.with_columns(name=pl.lit("tcp://trn-node7.cluster.example:29500"))
    folder = tmp_path / "secret-project"
    save(
        select_content(trace.with_(samples=samples, threads=threads, communicators=groups)),
        folder,
    )
    return folder


def _bytes_of(folder: Path) -> Iterator[bytes]:
    """Yield every file as it is, and every Arrow and Parquet file once more without compression."""
    for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if file.is_file():
            yield file.name.encode()
            yield file.read_bytes()
            table = _table(file)
            if table is not None:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_file(sink, table.schema) as out:
                    out.write_table(table.unify_dictionaries())
                yield sink.getvalue().to_pybytes()


def _table(file: Path) -> pa.Table | None:
    if file.suffix == ".parquet":
        metadata = pq.read_metadata(file).metadata or {}
        return pq.read_table(file).replace_schema_metadata(metadata)
    if file.suffix != ".arrow":
        return None
    content = pa.py_buffer(file.read_bytes())
    if file.parent.name == "samples":
        return pa.ipc.open_stream(content).read_all()
    return pa.ipc.open_file(content).read_all()


def _secrets_in(folder: Path) -> set[str]:
    content = b"\n".join(_bytes_of(folder)).lower()
    return {secret for secret in SECRETS if secret.encode() in content}


@pytest.mark.parametrize("to", ["native", "parquet", "perfetto", "csv"])
def test_no_name_is_left(
    to: str, named_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In no byte, compressed or not; without the option nearly all names are in the file."""
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--anonymize"]):
        assert main(["convert", str(named_trace), "--to", to, *options]) == 0
    plain, anonymous = sorted(
        (entry for entry in tmp_path.iterdir() if entry != named_trace),
        key=lambda entry: entry.name.startswith("run"),
    )
    assert anonymous.name.startswith("run")
    assert _secrets_in(anonymous) == set()
    expected = {"trn-node7", "aliceb", "corpus", "zed", "10.1.2.3"}
    assert expected <= _secrets_in(plain)


def test_the_same_name_is_replaced_alike(named_trace: Path, tmp_path: Path) -> None:
    """Hosts, files and users keep apart what was apart, and kinds and other names stay."""
    out = tmp_path / "out"
    assert (
        main(["convert", str(named_trace), "--to", "native", "--anonymize", "--out", str(out)]) == 0
    )
    trace = tracelens.open(out)
    assert trace.processes["host"].to_list() == ["host-0", "host-1"]
    assert trace.processes["job"].unique().to_list() == ["job-0"]
    names = set(trace.events.select(pl.col("name").cast(pl.String)).collect()["name"])
    assert {"fetch from host-1", "of user-0", "user-1's step", "encoder/layer.0"} <= names
    (frames,) = trace.samples["frames"].to_list()
    files = [re.search(r"\((path-\d+):\d+\)", frame) for frame in frames[:3]]
    assert len({match[1] for match in files if match}) == 3
    assert frames[3] == FRAMES[3]
    assert [frame.partition(" ")[0] for frame in frames] == [
        "<module>",
        "load",
        "forward",
        "_run_code",
    ]
    (group,) = trace.communicators["name"].unique()
    (thread,) = trace.threads["name"].unique()
    assert group.startswith("path-")
    assert thread.startswith("loader of path-")


@pytest.mark.parametrize(
    "name",
    mark_slow(
        ["mpi-sampled", "mpi-slow-link", "ddp-slow-network"], ("mpi-sampled", "ddp-slow-network")
    ),
)
def test_an_anonymous_export_has_the_same_findings(name: str, tmp_path: Path) -> None:
    """Names are all that changes: the same findings about the same ranks, with other hosts."""
    out = tmp_path / "out"
    trace = sample_trace(name)
    command = ["convert", str(SAMPLES / name), "--to", "native", "--anonymize"]
    assert main([*command, "--out", str(out)]) == 0
    found = tracelens.open(out)

    findings = analyze(found).findings

    def summarise(findings: tuple[Finding, ...]) -> list[object]:
        return [(f.kind, f.ranks, f.steps, f.saving, len(f.hosts)) for f in findings]

    assert summarise(findings) == summarise(sample_report(name).findings)
    hosts = set(trace.processes["host"])
    text = json.dumps([list(f.hosts) for f in findings])
    assert all(f'"{host}"' not in text for host in hosts)
    files = {f.rpartition("(")[2].rpartition(":")[0] for f in trace.samples["frames"].explode()}
    content = b"\n".join(_bytes_of(out))
    assert [file for file in files if file.endswith(".py") and file.encode() in content] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step", "step"),
        ("all_reduce/bucket 3", "all_reduce/bucket 3"),
        ("1.5 GB/s", "1.5 GB/s"),
        ("a / b", "a / b"),
        ("module.encoder.0", "module.encoder.0"),
        ("open /data/x.", "open path-0."),
        ("open '/data/x', /data/y and /data/x", "open 'path-0', path-1 and path-0"),
        ("~/run and ../x/y", "path-0 and path-1"),
        ("runs/today/train.py:7", "path-0:7"),
        ("train.py", "path-0"),
        ("\\\\server\\share\\x", "path-0"),
        ("http://gpu-1.example:80/x?y", "path-0"),
        ("on gpu-1.example", "on host-0"),
        ("on gpu-1:", "on host-0:"),
        ("vm2 in vm", "vm2 in host-1"),
    ],
)
def test_paths_hosts_and_words_are_told_apart(text: str, expected: str) -> None:
    """What is a path, a host or neither; the hosts are gpu-1.example and vm."""
    assert Replacements(["gpu-1.example", "vm"], []).replace_text(text) == expected
