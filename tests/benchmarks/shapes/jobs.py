"""The jobs that losses are planted into. A step takes about 10 ms, and 4 % of that is communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.shapes.simulation import (
    Collective,
    Job,
    Join,
    Kernels,
    Launch,
    Part,
    Pipeline,
    RingExchange,
    Synchronize,
    Work,
)

if TYPE_CHECKING:
    from benchmarks.shapes.noise import Grid, Setting

MS: Final = 1_000_000
STEP_NS: Final = 10 * MS
MEAN_NS: Final = {"data": 0.3 * MS, "forward": 3 * MS, "backward": 6 * MS, "optimizer": 0.4 * MS}
REDUCTION_NS: Final = 0.3 * MS
BUCKETS: Final = 3
MICRO_STEPS: Final = 4


def draw_phase(setting: Setting, kind: str, share: float = 1.0, purpose: str = "") -> Work:
    """Return the work of a phase, or a share of it."""
    return Work(setting.draw_work(purpose or kind, share * MEAN_NS[kind]), kind)


def draw_transfer(setting: Setting, purpose: str, mean_ns: float = REDUCTION_NS) -> Grid:
    """Return transfer times by step, which vary by 5 %."""
    factors = 1 + 0.05 * setting.random(purpose).standard_normal((1, setting.steps))
    return mean_ns * np.maximum(factors, 0.5)


def leave_out(setting: Setting, kind: str = "") -> Work:
    """Return work of no length: a place for losses."""
    return Work(np.zeros((setting.ranks, setting.steps)), kind)


def blocking_job(setting: Setting) -> Job:
    """Data, forward, backward, one blocking reduction, optimizer; all on the main thread."""
    step_parts: dict[str, Part] = {
        "data": draw_phase(setting, "data"),
        "gap_before_forward": leave_out(setting),
        "forward": draw_phase(setting, "forward"),
        "gc": leave_out(setting, "gc"),
        "backward": draw_phase(setting, "backward"),
        "gap_before_reduction": leave_out(setting),
        "reduction": Collective(draw_transfer(setting, "reduction")),
        "optimizer": draw_phase(setting, "optimizer"),
        "checkpoint": leave_out(setting, "checkpoint"),
        "gap_after_optimizer": Work(np.full((setting.ranks, setting.steps), 20_000.0)),
    }
    return Job(setting.ranks, setting.steps, step_parts)


def stream_job(setting: Setting, *, records_waits: bool = True) -> Job:
    """The same with buckets that a communication thread reduces beside the backward pass."""
    blocking = blocking_job(setting).parts
    step_parts = {name: blocking[name] for name in ("data", "gap_before_forward", "forward")}
    for bucket in range(BUCKETS):
        purpose = f"backward {bucket}"
        step_parts[purpose] = draw_phase(setting, "backward", 1 / BUCKETS, purpose)
        step_parts[f"bucket {bucket}"] = Launch(draw_transfer(setting, f"bucket {bucket}"))
    step_parts["backward"] = step_parts.pop(f"backward {BUCKETS - 1}")
    step_parts[f"bucket {BUCKETS - 1}"] = step_parts.pop(f"bucket {BUCKETS - 1}")
    step_parts["gap_before_reduction"] = leave_out(setting)
    step_parts["join"] = Join(records_waits)
    step_parts["optimizer"] = blocking["optimizer"]
    step_parts["gap_after_optimizer"] = blocking["gap_after_optimizer"]
    return Job(setting.ranks, setting.steps, step_parts, names_threads=True)


def stream_job_without_waits(setting: Setting) -> Job:
    """Buckets on a communication thread, and no span of the main thread where it waits for them."""
    return stream_job(setting, records_waits=False)


def accumulating_job(setting: Setting) -> Job:
    """Gradient accumulation: micro-steps of forward and backward, the last one is reduced."""
    step_parts: dict[str, Part] = {"data": draw_phase(setting, "data")}
    for micro in range(MICRO_STEPS):
        for kind in ("forward", "backward"):
            name = f"{kind} {micro}"
            step_parts[name] = draw_phase(setting, kind, 1 / MICRO_STEPS, name)
        is_last = micro == MICRO_STEPS - 1
        calls = int(is_last)
        step_parts[f"reduction {micro}"] = Collective(
            draw_transfer(setting, f"micro {micro}"), calls
        )
    step_parts["optimizer"] = draw_phase(setting, "optimizer")
    return Job(setting.ranks, setting.steps, step_parts)


def sharded_job(setting: Setting) -> Job:
    """Weights are gathered before forward, gradients are scattered after backward (FSDP)."""
    half_ns = draw_transfer(setting, "gather", REDUCTION_NS / 2)
    step_parts: dict[str, Part] = {
        "data": draw_phase(setting, "data"),
        "gather": Collective(half_ns, op="all_gather"),
        "forward": draw_phase(setting, "forward"),
        "backward": draw_phase(setting, "backward"),
        "scatter": Collective(half_ns.copy(), op="reduce_scatter"),
        "optimizer": draw_phase(setting, "optimizer"),
    }
    return Job(setting.ranks, setting.steps, step_parts)


def mpi_job(setting: Setting) -> Job:
    """Plain MPI: only collectives are recorded. Steps are numbered."""
    step_parts: dict[str, Part] = {
        "compute": Work(setting.draw_work("compute", 9.6 * MS)),
        "reduction": Collective(draw_transfer(setting, "reduction")),
    }
    return Job(setting.ranks, setting.steps, step_parts, records_phases=False)


def mpi_job_without_steps(setting: Setting) -> Job:
    """Plain MPI without steps: an allreduce and a barrier come again and again."""
    job = mpi_job(setting)
    brief = Collective(np.full((1, setting.steps), 20_000.0), size=8, op="barrier")
    parts = job.parts | {"barrier": brief}
    return Job(setting.ranks, setting.steps, parts, records_phases=False, numbers_steps=False)


def ring_job(setting: Setting) -> Job:
    """Neighbours exchange messages after the backward pass."""
    transfer = np.repeat(draw_transfer(setting, "ring"), setting.ranks, axis=0)
    step_parts: dict[str, Part] = {
        "data": draw_phase(setting, "data"),
        "forward": draw_phase(setting, "forward"),
        "backward": draw_phase(setting, "backward"),
        "exchange": RingExchange(transfer),
        "optimizer": draw_phase(setting, "optimizer"),
    }
    return Job(setting.ranks, setting.steps, step_parts)


def pipeline_job(setting: Setting) -> Job:
    """Stages of a pipeline that hand on micro-batches by messages; the bubble is 20 % to 30 %."""
    transfer = np.full((setting.ranks, setting.steps), 0.05 * MS)
    step_parts: dict[str, Part] = {
        "data": draw_phase(setting, "data"),
        "stages": Pipeline(
            setting.draw_work("forward", MEAN_NS["forward"]),
            setting.draw_work("backward", MEAN_NS["backward"]),
            transfer,
            micro_batches=2 * setting.ranks,
        ),
        "optimizer": draw_phase(setting, "optimizer"),
    }
    return Job(setting.ranks, setting.steps, step_parts)


def device_job(setting: Setting) -> Job:
    """A device executes kernels that the main thread launches well ahead of it."""

    def launch_kernels(kind: str) -> Kernels:
        launch = setting.draw_work(f"launch {kind}", 0.3 * MEAN_NS[kind])
        return Kernels(launch, setting.draw_work(kind, MEAN_NS[kind]), kind)

    step_parts: dict[str, Part] = {
        "data": draw_phase(setting, "data", 0.2),
        "forward": launch_kernels("forward"),
        "backward": launch_kernels("backward"),
        "synchronize": Synchronize(),
        "reduction": Collective(draw_transfer(setting, "reduction")),
        "optimizer": launch_kernels("optimizer"),
    }
    return Job(setting.ranks, setting.steps, step_parts, names_threads=True)
