"""A fault, recorded now on a rank and step range drawn at random, is found where it is."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.samples import Sample, differences, manifest, record
from support.turns import select_turn

from tracelens.load import open as open_trace
from tracelens.verdicts.report import analyze

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SAMPLE = {sample.name: sample for sample in manifest()}
STEPS = 100
SLOW_MS = 150  # many times what other processes of a busy machine add to a step
SEED = int(os.environ.get("TRACELENS_FAULT_SEED", random.SystemRandom().randrange(2**32)))


def plant_random_fault(sample: Sample, phases: tuple[str, ...]) -> Sample:
    """Return the same training with its fault at a rank, phase and step range drawn by `SEED`."""
    chance = random.Random(f"{SEED} {sample.name}")
    rank, phase = chance.randrange(sample.ranks), chance.choice(phases)
    first_step = chance.randrange(10, 40)
    last_step = first_step + chance.randrange(35, 50)
    arguments = [a for a in sample.arguments if not a.startswith(("--slow", "--steps"))]
    planted = [
        f"--slow-rank={rank}",
        f"--slow-phase={phase}",
        f"--slow-steps={first_step}:{last_step}",
    ]
    return replace(
        sample,
        arguments=[*arguments, f"--steps={STEPS}", *planted, f"--slow-ms={SLOW_MS}"],
        expect={
            "kind": "straggler",
            "ranks": [rank],
            "phase": phase,
            "steps": [first_step, last_step],
        },
    )


@pytest.mark.parametrize(
    ("name", "phases"),
    select_turn(
        [
            ("ddp-slow-backprop", ("data", "forward", "backprop")),
            ("mpi-late-rank", ("data", "forward", "backprop", "update")),
        ]
    ),
)
def test_a_fault_drawn_at_random_is_found(
    name: str, phases: tuple[str, ...], tmp_path: Path
) -> None:
    """Rank, phase and step range of the first finding are the drawn ones.

    A failure prints the seed; TRACELENS_FAULT_SEED=SEED draws the same faults again.
    """
    sample = plant_random_fault(SAMPLE[name], phases)
    print(f"TRACELENS_FAULT_SEED={SEED}: {' '.join(sample.arguments)}")  # noqa: T201
    record(sample, tmp_path / "trace")
    assert differences(analyze(open_trace(tmp_path / "trace")), sample.expect) == []
