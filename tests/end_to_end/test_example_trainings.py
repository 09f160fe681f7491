"""The examples really train: the loss falls, and ranks that train together agree on the weights.

What was attached is said once for all ranks.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.launch.examples import record_example, run_example
from support.launch.recording import read_all
from support.turns import select_turn

if TYPE_CHECKING:
    Trained = Callable[[tuple[str, ...], int, int], tuple[Path, subprocess.CompletedProcess[str]]]

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS = 20
LIBRARY, OVERLAPPED = ("library",), ("library", "--overlap")
WRITTEN_OUT = ("ring", "recursive-doubling", "tree")
WRITTEN_OUT_IN_TURN = select_turn(WRITTEN_OUT)
LOSS = re.compile(r"loss (\d+\.\d+) -> (\d+\.\d+)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train with reductions over MPI, once for all tests that look at it: where, and how it went."""

    @functools.cache
    def train(
        algorithm: tuple[str, ...], fuse: int, ranks: int
    ) -> tuple[Path, subprocess.CompletedProcess[str]]:
        folder = tmp_path_factory.mktemp("mpi") / "t"
        settings = [f"--steps={STEPS}", "--hidden=128", f"--fuse={fuse}", "--algorithm", *algorithm]
        done = run_example("mpi_allreduce.py", ranks, folder, *settings)
        assert done.returncode == 0, done.stderr
        return folder, done

    return train


def _falls(output: str) -> None:
    found = LOSS.findall(output)
    assert found
    for first, last in found:
        assert float(last) < 0.9 * float(first), output


@pytest.mark.parametrize(
    ("algorithm", "fuse", "ranks"),
    [
        *((algorithm, 0, 3) for algorithm in (LIBRARY, OVERLAPPED)),
        *(((algorithm,), 0, 3) for algorithm in WRITTEN_OUT_IN_TURN),
        *((algorithm, 10**5, 3) for algorithm in select_turn((LIBRARY, OVERLAPPED, ("ring",)))),
        *((algorithm, 0, 1) for algorithm in select_turn((LIBRARY, OVERLAPPED, ("tree",)))),
    ],
)
def test_mpi_ranks_record_each_allreduce(
    algorithm: tuple[str, ...], fuse: int, ranks: int, trained: Trained
) -> None:
    """Whatever the algorithm, the number of ranks, and whether gradients are fused."""
    _, done = trained(algorithm, fuse, ranks)
    _falls(done.stdout)
    assert "same weights on all ranks: True" in done.stdout
    assert done.stderr.count(f"(MPI_COMM_WORLD with {ranks} ranks)") == 1


@pytest.mark.parametrize("shards", select_turn([1, 2]))
def test_workers_and_servers_record_pushes_and_pulls(shards: int, tmp_path: Path) -> None:
    arguments = ["--steps=30", "--hidden=128", f"--shards={shards}"]
    done = run_example("mpi_parameter_server.py", shards + 2, tmp_path / "t", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(LOSS.findall(done.stdout)) == 2
    _falls(done.stdout)


def test_ddp_ranks_record_each_phase(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run_example("ddp_cnn.py", 2, tmp_path / "t", "--steps=60")
    assert done.returncode == 0, done.stderr
    _falls(done.stdout)
    assert done.stderr.count("DistributedDataParallel with 8 parameters") == 1


@pytest.mark.parametrize("overlap", select_turn([[], ["--overlap"]]), ids="".join)
def test_fused_gradients_go_together(overlap: list[str], tmp_path: Path) -> None:
    """As many bytes, in fewer reductions."""
    calls_and_bytes = []
    for fuse in (0, 1 << 16):
        arguments = ["--steps=2", "--hidden=64", f"--fuse={fuse}", *overlap]
        first = record_example("mpi_allreduce.py", 2, tmp_path / str(fuse), *arguments)[0]
        events = [e for e in first.events if e["op"] == "allreduce" and e["step"] == 1]
        calls_and_bytes.append((len(events), sum(event["bytes"] for event in events)))
    (alone, total), (fused, same) = calls_and_bytes
    assert (alone, fused) == (4, 1)
    assert same == total


def test_sweep_of_message_sizes(tmp_path: Path) -> None:
    """Every size of every algorithm is measured, and so often in the trace; all end with the sum."""
    arguments = ["--most=1024", "--repeats=3"]
    done = run_example("mpi_sweep.py", 3, tmp_path / "t", *arguments)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0] for row in rows} == {"library", *WRITTEN_OUT}
    assert all(float(row[2]) > 0 for row in rows)
    for process in read_all(tmp_path / "t"):
        calls = Counter(e["bytes"] for e in process.events if e["name"] == "ring allreduce")
        assert calls == dict.fromkeys((4, 16, 64, 256, 1024), 5)


@pytest.mark.parametrize("algorithm", WRITTEN_OUT_IN_TURN)
def test_hops_lie_inside_the_reduction_that_they_make_up(algorithm: str, trained: Trained) -> None:
    """A reduction that is written out names its algorithm, and holds its messages."""
    folder, _ = trained((algorithm,), 0, 3)
    for process in read_all(folder):
        reductions = process.named(f"{algorithm} allreduce")
        assert {event["algorithm"] for event in reductions} == {algorithm}
        hops = [e for e in process.events if e["op"] in ("send", "recv") and e["step"] >= 0]
        assert hops
        for hop in hops:
            end = hop["start_ns"] + hop["duration_ns"]
            assert any(
                reduction["start_ns"] <= hop["start_ns"]
                and end <= reduction["start_ns"] + reduction["duration_ns"]
                for reduction in reductions
            )


def test_overlapped_reductions_fly_while_backprop_goes_on(trained: Trained) -> None:
    """The reduction of a layer is issued before the backprop of the next begins, and ends after."""
    folder, _ = trained(OVERLAPPED, 0, 3)
    for process in read_all(folder):
        flights = {thread.index: thread.in_flight for thread in process.side.threads}
        reductions = process.named("Iallreduce")
        assert len(reductions) == STEPS * 4
        assert all(flights[event["thread"]] for event in reductions)
        for step in range(STEPS):
            flying = [event for event in reductions if event["step"] == step]
            ends = [
                e["start_ns"] + e["duration_ns"]
                for e in process.named("backprop")
                if e["step"] == step
            ]
            issued = sorted(event["start_ns"] for event in flying)
            completed = min(event["start_ns"] + event["duration_ns"] for event in flying)
            assert all(issue < end for issue, end in zip(issued, sorted(ends)[1:], strict=False))
            assert completed >= max(ends)
