"""Collectives of NCCL have device times, whether the program waits for them or PyTorch does."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.device.gpu import Part, gpu, read

pytestmark = gpu

PROGRAM = Path(__file__).parents[1] / "support/launch/programs/nccl_ranks.py"
COLLECTIVES = {
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all_single"),
}
SENT = 1 << 24  # bytes
FASTEST = 1e12  # bytes a second; nothing between two processes is


@pytest.fixture(name="ranks", scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Part]:
    """Record the program; nothing of ours is said but what was recorded."""
    folder = tmp_path_factory.mktemp("nccl")
    tracelens_command = [sys.executable, "-m", "tracelens"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    done = subprocess.run(
        [
            *tracelens_command,
            "record",
            "--no-verdict",
            "--out",
            str(folder),
            "--",
            sys.executable,
            *torchrun,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "TraceLens: " not in done.stderr
    assert done.stdout.count("captured 8") == 2  # by two ranks, three times
    return read(folder)


def test_every_collective_is_timed_on_the_device(ranks: list[Part]) -> None:
    """Both kinds of call, each for as long as its bytes can have taken."""
    assert len(ranks) == 2
    for rank in ranks:
        first = [e for e in rank.events if e["name"] in COLLECTIVES][: 2 * len(COLLECTIVES)]
        assert Counter(e["name"] for e in first) == dict.fromkeys(COLLECTIVES, 2)
        for event in first:
            assert event["device_duration_ns"] is not None, event["name"]
            assert event["device_duration_ns"] > SENT / 2 / FASTEST * 1e9, event["name"]


def test_what_fsdp_gathers_and_scatters_is_timed_on_the_device(ranks: list[Part]) -> None:
    """It calls as if it waited, on streams of its own."""
    for rank in ranks:
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            found = rank.named(name)[2:]
            assert found
            assert all(e["device_duration_ns"] for e in found), name
