"""A real training that is killed and started again: its time is used as it says itself."""

import json
import random
import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from support.launch.recording import run_command
from support.launch.torchrun import torchrun_command
from support.samples import EXAMPLES

import tracelens as tl
from tracelens.accounting.life.ledger import measure_life

pytest.importorskip("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS = 60
SLOW_STEPS = ("step 18", "step 38")
TOLERANCE = 0.01  # of the wall time


def read_truth(state: Path) -> Counter[str]:
    """Sum up what rank 0 wrote down: ns by use, without what the ends of processes take."""
    uses: Counter[str] = Counter()
    attempts = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(state.glob("truth-*.jsonl"))
    ]
    begins = [int(attempt_steps(attempt)[0].split()[1]) for attempt in attempts]
    for number, attempt in enumerate(attempts):
        later_step = min(begins[number + 1 :], default=STEPS)
        lengths_ns = {
            one["what"]: next_one["at_ns"] - one["at_ns"]
            for one, next_one in pairwise(attempt)
            if one["what"].startswith("step") and next_one["what"] != "failure"
        }
        usual_ns = round(statistics.median(lengths_ns.values()))
        first = attempt_steps(attempt)[0]
        for one, next_one in pairwise(attempt):
            what, ns = one["what"], next_one["at_ns"] - one["at_ns"]
            if not what.startswith("step"):
                uses[what] += ns
                continue
            if what in {first, *SLOW_STEPS}:
                uses["first_step" if what == first else "slow_steps"] += ns - usual_ns
                ns = usual_ns
            is_kept = int(what.split()[1]) < later_step
            use = (
                "failed_step"
                if next_one["what"] == "failure"
                else "kept"
                if is_kept
                else "repeated"
            )
            uses[use] += ns
        if number:
            failed_ns = next(
                one["at_ns"] for one in attempts[number - 1] if one["what"] == "failure"
            )
            uses["dead"] += attempt[0]["at_ns"] - failed_ns
    return uses


def attempt_steps(attempt: list[dict[str, str]]) -> list[str]:
    return [one["what"] for one in attempt if one["what"].startswith("step")]


def test_each_use_of_the_wall_time_is_that_of_the_jobs_own_diary(tmp_path: Path) -> None:
    draw = random.Random(7)
    first_failure, second_failure = draw.randrange(12, 30), draw.randrange(33, 55)
    state, trace = tmp_path / "state", tmp_path / "trace"
    state.mkdir()
    arguments = ["--state", state, "--fail", f"{first_failure}:1:kill", f"{second_failure}:0:raise"]
    launch = torchrun_command(EXAMPLES / "ddp_restarts.py", 2, arguments)
    launch[1:1] = ["--max-restarts", "3"]
    record = [sys.executable, "-m", "tracelens", "record", "--no-verdict", "--out", str(trace)]
    run_command([*record, "--", *launch], {"OMP_NUM_THREADS": "1"})
    life = measure_life(tl.open(trace))
    assert life is not None
    assert life.attempts["first_step"].to_list()[0] == 0
    assert life.attempts.height == 3
    assert life.is_kept_known
    measured = dict(life.uses.group_by("use").agg(pl.col("ns").sum()).iter_rows())
    assert sum(measured.values()) == life.wall_ns
    truth = read_truth(state)
    for use in {*truth, *measured} - {"shut_down", "start_up"}:
        difference = (measured.get(use, 0) - truth[use]) / life.wall_ns
        assert abs(difference) < TOLERANCE, (use, measured, truth)
    # Beside the diary: the launcher before the first rank, and its end after the last step.
    rest = measured["start_up"] + measured["shut_down"] - truth["start_up"]
    assert rest >= 0
