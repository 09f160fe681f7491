"""Trainings on pretend hosts: their network is really slow, and their clocks really differ."""

import importlib
import sys
from pathlib import Path

import polars as pl
import pytest
from support.launch.examples import EXAMPLES
from support.launch.record import run_record

import tracelens as tl
from tracelens.model.result import Report

pytestmark = [pytest.mark.alone, pytest.mark.end_to_end, pytest.mark.root, pytest.mark.slow]

SHIFTS = (0.0, 25.5, -100.0, 500.0)
MPI = [sys.executable, "-m", "mpi4py"]


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    reason: str | None = importlib.import_module("pretend_network").why_not()
    if reason is not None:
        pytest.skip(reason)


def _record(folder: Path, hosts: list[str], command: list[str]) -> None:
    launch = [sys.executable, str(EXAMPLES / "pretend_hosts.py"), *hosts]
    done = run_record("--out", folder, "--", *launch, "--", *command)
    assert done.returncode == 0, done.stderr


def _exposed(report: Report) -> float:
    assert report.efficiency
    (share,) = (bar.share for bar in report.efficiency.waterfall if bar.cause == "exposed_transfer")
    return share


def test_mpi_on_hosts_with_other_clocks_and_a_slow_link(tmp_path: Path) -> None:
    """The link is named by its messages; the clocks of the hosts are brought together."""
    hosts = ["--hosts=4", "--rate=1gbit", "--slow-link=1:2=40mbit"]
    hosts.append(f"--shift={','.join(map(str, SHIFTS))}")
    train = [str(EXAMPLES / "mpi_allreduce.py"), "--algorithm=ring", "--steps=60", "--hidden=256"]
    _record(tmp_path / "t", hosts, [*MPI, *train])
    trace = tl.open(tmp_path / "t")
    assert sorted(trace.processes["host"].cast(pl.String)) == [f"host{rank}" for rank in range(4)]
    assert trace.alignment.method == "collective_exits"
    ends = trace.spans.filter(name="ring allreduce").group_by("seq").agg(end=pl.col("end_ns"))
    apart = ends.select(pl.col("end").list.max() - pl.col("end").list.min()).collect().to_series()
    assert apart.len() == 60 * 4
    assert apart.to_numpy().max() < 12e9  # half of the least that the clocks differ by
    report = tl.analyze(trace)
    assert _exposed(report) > 0.3
    assert [f.ranks for f in report.findings if f.kind == "slow_link"] == [(1, 2)]


def test_ddp_on_a_slow_network(tmp_path: Path) -> None:
    """The same training spends more of its time in transfers than on a fast network."""
    pytest.importorskip("torch")
    train = [sys.executable, str(EXAMPLES / "ddp_cnn.py"), "--steps=20"]
    shares = []
    for rate in ("100mbit", "10gbit"):
        _record(tmp_path / rate, ["--hosts=2", f"--rate={rate}"], train)
        shares.append(_exposed(tl.analyze(tl.open(tmp_path / rate))))
    assert shares[0] > shares[1]
