"""A fault planted in an example takes its time in its rank, phase and steps, and nowhere else.

Nowhere else is told by times below the planted one, so on a machine so slow that ordinary steps take as
long, a longer fault is planted.
"""

from pathlib import Path
from statistics import median

import pytest
from support.launch.examples import record_example, run_example
from support.launch.recording import Recorded
from support.turns import select_turn

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS = 6
RANKS = {"ddp_cnn.py": 2, "mpi_allreduce.py": 2, "mpi_parameter_server.py": 3}
SLOW = 1  # rank
SLOW_MS = (150, 3000)
PLANTED = range(2, 4)
PHASES = ("data", "forward", "backprop", "update")


def _phase_ns(recorded: Recorded, kind: str) -> dict[int, int]:
    """Sum up a phase for each step, without the spans inside its spans."""
    total = dict.fromkeys(range(STEPS), 0)
    ends: dict[int, int] = {}
    for event in recorded.events:
        if event["kind"] != kind or event["type"] != "span" or event["step"] not in total:
            continue
        if event["start_ns"] >= ends.get(event["thread"], 0):
            ends[event["thread"]] = event["start_ns"] + event["duration_ns"]
            total[event["step"]] += event["duration_ns"]
    return total


def _check(
    folder: Path, script: str, phase: str, switches: list[str], planted: range = PLANTED
) -> None:
    """Record the example with a slow worker, longer if need be, and check where the time went."""
    for slow_ms in SLOW_MS:
        arguments = [f"--steps={STEPS}", f"--slow-ms={slow_ms}", *switches]
        recorded = record_example(script, RANKS[script], folder / str(slow_ms), *arguments)
        workers = [one for one in recorded if one.side.process.role == "worker"]
        assert len(workers) == 2
        slow_times, other_times = (_phase_ns(workers[rank], phase) for rank in (SLOW, 1 - SLOW))
        inside = [slow_times.pop(step) for step in planted]
        assert min(inside) >= slow_ms * 10**6
        if all(
            median(times.values()) < slow_ms * 10**6 for times in (slow_times, other_times) if times
        ):
            return
    pytest.fail(f"{phase} took as long where nothing was planted: {slow_times}, {other_times}")


def _switches(phase: str) -> list[str]:
    steps = f"{PLANTED.start}:{PLANTED.stop - 1}"
    return [f"--slow-rank={SLOW}", f"--slow-phase={phase}", f"--slow-steps={steps}"]


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        *(("ddp_cnn.py", phase) for phase in select_turn(("data", "backprop"))),
        *(("mpi_allreduce.py", phase) for phase in select_turn(PHASES)),
    ],
)
def test_a_planted_delay_is_found_in_its_phase(script: str, phase: str, tmp_path: Path) -> None:
    if script == "ddp_cnn.py":
        pytest.importorskip("torch")
    _check(tmp_path, script, phase, _switches(phase))


@pytest.mark.parametrize("phase", select_turn(["data", "forward", "backprop"]))
def test_a_slow_worker_of_a_parameter_server(phase: str, tmp_path: Path) -> None:
    _check(tmp_path, "mpi_parameter_server.py", phase, ["--shards=1", *_switches(phase)])


def test_a_slow_update_is_a_shards(tmp_path: Path) -> None:
    arguments = [f"--steps={STEPS}", f"--slow-ms={SLOW_MS[0]}", *_switches("update")]
    recorded = record_example("mpi_parameter_server.py", 3, tmp_path / "t", *arguments)
    for process in recorded:
        for event in process.named("apply"):
            slow = process.side.process.shard == 1 and event["step"] in PLANTED
            if slow:
                assert event["duration_ns"] >= SLOW_MS[0] * 10**6
    applied = [len(process.named("apply")) for process in recorded]
    assert applied == [STEPS, STEPS, 0]


def test_a_slow_loader_is_slow_at_every_step(tmp_path: Path) -> None:
    _check(tmp_path, "mpi_allreduce.py", "data", [f"--slow-loader={SLOW}"], range(STEPS))


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("mpi_allreduce.py", ["--slow-rank=2"], "--slow-rank is 2"),
        ("mpi_allreduce.py", ["--kill-rank=5"], "--kill-rank is 5"),
        ("mpi_allreduce.py", ["--overlap", "--algorithm=ring"], "--overlap needs"),
        ("mpi_parameter_server.py", ["--shards=1", "--slow-rank=1"], "--slow-rank is 1"),
        ("mpi_parameter_server.py", ["--shards=1", "--hot-shard=1"], "--hot-shard"),
    ],
)
def test_what_cannot_be_planted_is_refused(
    script: str, arguments: list[str], words: str, tmp_path: Path
) -> None:
    """A truth that is not planted would be worse than none."""
    done = run_example(script, 2, tmp_path / "t", *arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
