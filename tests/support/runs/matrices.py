"""Own times of made-up runs, [step, rank] as shares of a step, to test detectors on."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.accounting.compute_time import WARM_UP, ComputeTime

Floats: TypeAlias = npt.NDArray[np.float64]

STEP_NS = 20_000_000
PHASES = (0.1, 0.3, 0.6)  # of the step: three phases of a run


def healthy(
    seed: int,
    ranks: int,
    steps: int,
    noise: float = 0.03,
    memory: float = 0.6,
    *,
    spiky: bool = False,
) -> list[Floats]:
    """Draw a run of equal ranks, one matrix a phase.

    Neighbouring steps are alike, ranks differ a little for good, and the machine slows all at once.
    Spiky: one step in ten is hit by a lognormal spike of about a fifth of a step.
    """
    draw = np.random.default_rng([seed, ranks, steps])
    return [share * _phase(draw, ranks, steps, noise, memory, spiky=spiky) for share in PHASES]


def _phase(
    draw: np.random.Generator, ranks: int, steps: int, noise: float, memory: float, *, spiky: bool
) -> Floats:
    errors = draw.standard_normal((steps, ranks))
    for step in range(1, steps):
        errors[step] = memory * errors[step - 1] + np.sqrt(1 - memory**2) * errors[step]
    lasting = 0.005 * draw.standard_normal(ranks)
    shared = 0.03 * draw.standard_normal((steps, 1))
    times: Floats = np.exp(noise * errors + lasting + shared)
    if spiky:
        times += (draw.random((steps, ranks)) < 0.1) * draw.lognormal(-1.5, 1.0, (steps, ranks))
    return times


def own_time(matrices: list[Floats]) -> ComputeTime:
    """Present matrices as what `stragglers` judges; ranks wait for the slowest in every step."""
    steps, ranks = matrices[0].shape
    own_ns = np.stack(matrices) * STEP_NS
    total = own_ns.sum(axis=0)
    length = np.broadcast_to(total.max(axis=1, keepdims=True), total.shape)
    settled = np.arange(steps) >= WARM_UP
    return ComputeTime(
        ranks=tuple(range(ranks)),
        host_of_column=("host",) * ranks,
        step_numbers=np.arange(steps),
        phase_names=("data", "forward", "backprop"),
        compute_ns=own_ns,
        step_length_ns=length,
        wait_ns=length - total,
        is_comparable_row=settled,
    )
