"""Every benchmark works: it runs with its smallest sizes and prints its table.

What a run of these sizes measures says nothing, so a missed bound (exit code 1) is no failure here.
"""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.launch.patience import PATIENCE_S
from support.launch.recording import run_command
from support.tiers import mark_slow
from support.turns import select_turn

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ROOT / "tests" / "benchmarks"
IMPORT_PATH: Final = os.pathsep.join(str(ROOT / path) for path in (".", "instrument", "tests"))
TRACE: Final = "TRACE"  # stands for a trace with an index


class Smoke(NamedTuple):
    """A benchmark, its arguments after `--quick`, and the texts that it must print."""

    script: str
    arguments: str
    expected: tuple[str, ...]
    slow: bool = True  # only `make test-all` runs it
    exit_codes: tuple[int, ...] = (0,)


MISSED: Final = (0, 1)
SMOKES: Final = (
    Smoke("accuracy", "--part kinds", ("| healthy | none |", "| TraceLens |")),
    Smoke("agreement", "", ("3 runs: ", "0 of them are not in the report.")),
    Smoke("amortised", "", ("### Amortised, ", "`with SPAN:`"), slow=False),
    # HTA is not installed beside the tests: nothing is claimed without it.
    Smoke(
        "analysis",
        f"--hta {os.devnull}/python",
        ("### HTA beside ours, 8 ranks", "**not measured**"),
        exit_codes=(1,),
    ),
    Smoke("calibrate", "", ("| `stats.robust.MIN_STEPS_OF_BLOCK` | steps |",)),
    Smoke("clients", "", ("### 2 clients for 2 s", "| errors | 0 |")),
    Smoke("cold_open", TRACE, ("the timeline is drawn: ",)),
    Smoke("conversion", "", ("### A DDP training of 2 ranks", "| as it is |")),
    Smoke("dashboard", "", ("### Measured on ", "| first paint of the timeline, median |")),
    Smoke("ddp_overhead", "", ("### 2 ranks, batches of 32, 1 rounds", "| recorded / plain |")),
    Smoke(
        "ddp_starts", "", ("### 1 rounds of starts", "| TraceLens |", "| TraceML | not installed")
    ),
    Smoke("device", "", ("recorder: ", "asking later"), slow=False),
    Smoke("easgd", "", ("### Share of the workers' steps", "| original |"), exit_codes=MISSED),
    Smoke("failures", "", ("failures of three gloo ranks", "| exception | 3 | 3 |")),
    Smoke("flight_hangs", "", ("### 11 hangs of a mixture of experts", "| all | 11 | 11 | 0 |")),
    Smoke("forecasts", "", ("### Forecasts from 2 to 8 workers", "| tree, weak | 16 |")),
    Smoke("formats", "", ("### What reading takes", "| DFTracer | 2,000 |")),
    Smoke("gate", "", ("### Simulated runs", "of 1 |")),
    Smoke("interventions", "", ("### Predicted savings", "| MPI: 40 ms removed |")),
    Smoke("kineto", "", ("### Reading a file", "| memory of the process |")),
    Smoke("live", "", ("### From disk to screen", "| 3 |"), exit_codes=MISSED),
    Smoke("real_runs", "", ("### Real trainings", "| MPI, late in backprop |")),
    Smoke("recorder", "", ("### ", "| TraceLens | this one |")),
    Smoke("replaying", "", ("| replay |", "| moments |")),
    Smoke("savings", "", ("### Savings beside runs", "| MPI, work 2.5 times as long |")),
    Smoke("simulate", "", ("events of 72 processes",)),
    Smoke(
        "soak",
        "",
        ("| folder, last steps | files |", " 0 were lost or occur twice"),
        exit_codes=MISSED,
    ),
    Smoke("start", "", ("### Import and start, 1 processes each", "| `import tracelens` |")),
    Smoke("stragglers", "", ("ranks steps noise   alarms", "    3   100 spiky")),
    Smoke("verdicts", "", ("### Rank and place", "| loader 30 ms longer |")),
    Smoke(
        "watching", "", ("| false alarms | 2 hours ", "| uses add up exactly |", "64 ranks that")
    ),
)
QUICK: Final = [smoke for smoke in SMOKES if not smoke.slow]
SLOW: Final = [smoke for smoke in SMOKES if smoke.slow]
# Tested elsewhere, and why.
NOT_HERE: Final = {
    "scale": "test_scale.py has a test for each of its arms",
}


def run_script(smoke: Smoke, trace: Path) -> subprocess.CompletedProcess[str]:
    """Run a benchmark with its smallest sizes, and wait for it."""
    words = [str(trace) if word == TRACE else word for word in smoke.arguments.split()]
    return run_command(
        [sys.executable, str(BENCHMARKS / f"{smoke.script}.py"), "--quick", *words],
        {"PYTHONPATH": IMPORT_PATH},
        exit_code=None,
    )


def with_index(trace: Path) -> Path:
    """Copy a sample to `trace`, and write its index."""
    shutil.copytree(ROOT / "sample_traces" / "mpi-late-rank", trace)
    command = [sys.executable, "-m", "tracelens", "index", str(trace)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return trace


def require_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "smoke",
    mark_slow([*QUICK, *select_turn(SLOW)], quick=QUICK),
    ids=lambda smoke: smoke.script,
)
def test_benchmark_prints_its_table(smoke: Smoke, tmp_path: Path) -> None:
    if smoke.script == "device":
        require_cuda()
    trace = tmp_path / "run"
    if TRACE in smoke.arguments:
        with_index(trace)
    done = run_script(smoke, trace)
    assert done.returncode in smoke.exit_codes, done.stderr
    assert [text for text in smoke.expected if text not in done.stdout] == [], done.stdout


def scripts_with_main() -> set[str]:
    """Return the names of the scripts that are benchmarks, not parts of one."""
    return {
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }


def test_every_benchmark_stands_in_the_table() -> None:
    in_table = [smoke.script for smoke in SMOKES]
    assert sorted([*in_table, *NOT_HERE]) == sorted(scripts_with_main())


def test_no_test_stands_among_the_benchmarks() -> None:
    """Whoever adds one there expects it to run; tests of benchmarks stand here."""
    assert [*BENCHMARKS.rglob("test_*.py")] == []


@pytest.mark.parametrize("script", ["start", "scale"])
def test_a_quick_run_is_not_published(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = importlib.import_module(f"benchmarks.{script}").main
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--publish"])
    with pytest.raises(SystemExit):
        main()
