"""All shapes of loss, and the controls: jobs without a loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from benchmarks.shapes import jobs, patterns
from benchmarks.shapes.answers import (
    FAULT_OR_BOTTLENECK,
    NOT_HEALTHY,
    WORDS,
    Answer,
    Place,
)
from benchmarks.shapes.jobs import MS, STEP_NS
from benchmarks.shapes.simulation import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.shapes.noise import Grid, Setting
    from benchmarks.shapes.patterns import Pattern, StepPattern
    from benchmarks.shapes.simulation import Job

    Plant = Callable[[Job, Grid], Job]

SMALL_CALLS: Final = 40
SMALL_BYTES: Final = 256


@dataclass(frozen=True)
class Shape:
    """A loss of one shape: into which job, how it is planted, in which ranks and steps."""

    name: str
    job: Callable[[Setting], Job]
    plant: Plant
    pattern: Pattern
    phase: str
    verdicts: frozenset[str] = NOT_HEALTHY
    fewest_ranks: int = 2
    largest_amount: float = 2000.0  # a larger loss is out of reach

    def build(self, setting: Setting, amount: float) -> Job:
        """Return the job with a loss of `amount` steps' time in each step of weight one."""
        weights = self.pattern(setting)
        wobble = 1 + 0.05 * setting.random("loss").standard_normal(weights.shape)
        extra = amount * STEP_NS * weights * np.maximum(wobble, 0.5)
        return self.plant(self.job(setting), extra)

    def build_reference(self, setting: Setting, amount: float) -> Job:
        """Return the job without the loss, drawn from the same random numbers."""
        return self.build(setting, 0 * amount)

    def answer(self, setting: Setting) -> Answer:
        place = Place.from_weights(self.pattern(setting), setting.ranks, WORDS[self.phase])
        return Answer(self.verdicts, place)


@dataclass(frozen=True)
class UnevenLengths(Shape):
    """Work of each rank and step by the length of its batch, whose spread is the amount.

    Without the loss each step's work is spread evenly over the ranks.
    """

    largest_amount: float = 3.0

    def draw_lengths(self, setting: Setting, amount: float) -> Grid:
        lengths = setting.random("lengths").standard_normal((setting.ranks, setting.steps))
        return np.exp(amount * lengths)

    def plant_lengths(self, setting: Setting, lengths: Grid) -> Job:
        job = self.job(setting)
        for kind in ("forward", "backward"):
            part = job.parts[kind]
            assert isinstance(part, Work)
            job = job.change(kind, ns=part.ns * lengths)
        return job

    def build(self, setting: Setting, amount: float) -> Job:
        return self.plant_lengths(setting, self.draw_lengths(setting, amount))

    def build_reference(self, setting: Setting, amount: float) -> Job:
        lengths = self.draw_lengths(setting, amount)
        return self.plant_lengths(setting, np.tile(lengths.mean(axis=0), (setting.ranks, 1)))


@dataclass(frozen=True)
class SlowLink(Shape):
    """Messages of one rank to the next one are slow. Either end of the link may be named."""

    def answer(self, setting: Setting) -> Answer:
        answer = super().answer(setting)
        sender = next(iter(answer.place.ranks))
        ends = frozenset({sender, (sender + 1) % setting.ranks})
        return replace(answer, place=replace(answer.place, ranks=ends, is_link=True))


def lengthen(part: str, grid: str = "ns") -> Plant:
    """Add the loss to the times of one part of the job."""
    return lambda job, extra: job.lengthen(part, extra, grid)


def lengthen_each(*parts: str) -> Plant:
    """Divide the loss evenly among several parts."""

    def plant(job: Job, extra: Grid) -> Job:
        for part in parts:
            job = job.lengthen(part, extra / len(parts))
        return job

    return plant


def split_into_small_calls(job: Job, extra: Grid) -> Job:
    """Reduce many small tensors, one call each; the loss is what the calls take."""
    job = job.lengthen("reduction", extra / SMALL_CALLS - jobs.REDUCTION_NS)
    least = np.maximum(job.parts["reduction"].ns, 2_000)  # type: ignore[attr-defined]
    return job.change("reduction", ns=least, calls=SMALL_CALLS, size=SMALL_BYTES)


def reduce_every_micro_step(job: Job, extra: Grid) -> Job:
    """Reduce gradients after each micro-step instead of once; the loss is in the needless calls."""
    needless = [f"reduction {micro}" for micro in range(jobs.MICRO_STEPS - 1)]
    for name in needless if extra.any() else ():
        job = job.change(name, ns=np.maximum(extra / len(needless), 1), calls=1)
    return job


def communicate(steps: StepPattern) -> Pattern:
    """Weigh the steps of collectives, which take as long for all ranks."""
    return lambda setting: steps(setting)[None, :]


def list_one_rank() -> Iterator[Shape]:
    """One rank is slow: in each phase and in uncovered code, in each pattern of steps."""
    names = {
        "data": "data",
        "forward": "forward",
        "backward": "backward",
        "optimizer": "optimizer",
        "gap": "gap_after_optimizer",
    }
    for phase, name_of_part in names.items():
        for name, steps in patterns.STEP_PATTERNS.items():
            pattern = patterns.in_one_rank(steps)
            plant = lengthen(name_of_part)
            yield Shape(f"one_rank_{phase}_{name}", jobs.blocking_job, plant, pattern, phase)


def list_ranks_in_turns() -> Iterator[Shape]:
    """Ranks lose time at different times, or a part of the ranks does."""
    block = jobs.blocking_job
    halves, always = patterns.in_half_of_the_ranks, patterns.in_every_step
    for name, target, phase, pattern in (
        ("turns_data_rare", "data", "data", patterns.rare_turns),
        ("turns_forward_round_robin", "forward", "forward", patterns.round_robin),
        ("turns_forward_rare", "forward", "forward", patterns.rare_turns),
        ("turns_backward_blocks", "backward", "backward", patterns.blocks_in_turns),
        ("turns_backward_random", "backward", "backward", patterns.random_rank),
        ("turns_gc", "gc", "gc", patterns.regular_turns),
        ("turns_gap_rare", "gap_before_reduction", "gap", patterns.rare_turns),
        ("turns_gap_round_robin", "gap_after_optimizer", "gap", patterns.round_robin),
        ("two_ranks_forward", "forward", "forward", patterns.two_ranks_at_two_times),
        ("two_ranks_data", "data", "data", patterns.two_ranks_at_two_times),
    ):
        yield Shape(name, block, lengthen(target), pattern, phase)
    for name, steps in (("every_step", always), ("from_a_step_on", patterns.from_a_step_on)):
        for phase in ("forward", "backward"):
            shape = Shape(f"half_{phase}_{name}", block, lengthen(phase), halves(steps), phase)
            yield replace(shape, fewest_ranks=4)  # half of two or three is one rank


def list_all_ranks() -> Iterator[Shape]:
    """All ranks lose time in the same steps."""
    for name, target, phase, steps in (
        ("all_forward_one_pause", "forward", "forward", patterns.in_one_step),
        ("all_gap_one_pause", "gap_before_reduction", "gap", patterns.in_one_step),
        ("all_gc_one_pause", "gc", "gc", patterns.in_one_step),
        ("all_data_at_epochs", "data", "data", patterns.at_epoch_borders),
        ("all_gap_at_epochs", "gap_after_optimizer", "gap", patterns.at_epoch_borders),
        ("all_gc_every_tenth_step", "gc", "gc", patterns.in_every_tenth_step),
        ("all_checkpoint_at_epochs", "checkpoint", "checkpoint", patterns.at_epoch_borders),
        ("all_backward_from_a_step_on", "backward", "backward", patterns.from_a_step_on),
        ("all_optimizer_from_a_step_on", "optimizer", "optimizer", patterns.from_a_step_on),
        ("all_forward_for_some_time", "forward", "forward", patterns.in_the_middle),
        ("all_forward_growing", "forward", "forward", patterns.growing),
        ("all_gap_growing", "gap_after_optimizer", "gap", patterns.growing),
        ("all_forward_scattered", "forward", "forward", patterns.in_scattered_steps),
        ("all_backward_scattered", "backward", "backward", patterns.in_scattered_steps),
        ("all_gap_after_optimizer", "gap_after_optimizer", "gap", patterns.in_every_step),
        ("all_gap_before_reduction", "gap_before_reduction", "gap", patterns.in_every_step),
        ("all_gap_before_forward", "gap_before_forward", "gap", patterns.in_every_step),
        ("all_gap_from_a_step_on", "gap_before_forward", "gap", patterns.from_a_step_on),
    ):
        pattern = patterns.in_all_ranks(steps)
        yield Shape(name, jobs.blocking_job, lengthen(target), pattern, phase)
    for name, steps in (
        ("all_data_every_step", patterns.in_every_step),
        ("all_data_every_tenth_step", patterns.in_every_tenth_step),
        ("all_data_from_a_step_on", patterns.from_a_step_on),
    ):
        pattern, plant = patterns.in_all_ranks(steps), lengthen("data")
        yield Shape(name, jobs.blocking_job, plant, pattern, "data", FAULT_OR_BOTTLENECK)
    pattern = patterns.in_rank_0(patterns.at_epoch_borders)
    plant = lengthen("checkpoint")
    yield Shape("rank_0_checkpoint", jobs.blocking_job, plant, pattern, "checkpoint")


def list_communication() -> Iterator[Shape]:
    """Communication takes long, of one call, of many, in all steps or in some."""
    always = patterns.in_every_step
    last_bucket = f"bucket {jobs.BUCKETS - 1}"
    buckets = [f"bucket {bucket}" for bucket in range(jobs.BUCKETS)]
    for name, job, plant, steps in (
        ("comm_one_large_call", jobs.blocking_job, lengthen("reduction"), always),
        ("comm_many_small_calls", jobs.blocking_job, split_into_small_calls, always),
        ("comm_congestion", jobs.blocking_job, lengthen("reduction"), patterns.in_the_middle),
        ("comm_from_a_step_on", jobs.blocking_job, lengthen("reduction"), patterns.from_a_step_on),
        ("comm_one_long_call", jobs.blocking_job, lengthen("reduction"), patterns.in_one_step),
        ("comm_buckets", jobs.stream_job, lengthen_each(*buckets), always),
        ("comm_last_bucket", jobs.stream_job, lengthen(last_bucket), always),
        ("comm_no_wait_span", jobs.stream_job_without_waits, lengthen_each(*buckets), always),
        ("comm_stream_congestion", jobs.stream_job, lengthen(last_bucket), patterns.in_the_middle),
        ("comm_every_micro_step", jobs.accumulating_job, reduce_every_micro_step, always),
        ("comm_sharded", jobs.sharded_job, lengthen_each("gather", "scatter"), always),
        ("comm_mpi", jobs.mpi_job, lengthen("reduction"), always),
        ("comm_mpi_without_steps", jobs.mpi_job_without_steps, lengthen("reduction"), always),
        ("comm_devices", jobs.device_job, lengthen("reduction"), always),
    ):
        pattern = communicate(steps)
        yield Shape(name, job, plant, pattern, "communication", FAULT_OR_BOTTLENECK)
    for name, steps in (("every_step", always), ("for_some_time", patterns.in_the_middle)):
        pattern, plant = patterns.in_one_rank(steps), lengthen("exchange")
        shape = SlowLink(f"slow_link_{name}", jobs.ring_job, plant, pattern, "communication")
        yield replace(shape, verdicts=FAULT_OR_BOTTLENECK)


def list_other_programs() -> Iterator[Shape]:
    """Losses in programs that are recorded otherwise: MPI, streams, messages, devices."""
    single, all_ranks = patterns.in_one_rank, patterns.in_all_ranks
    always, onset = patterns.in_every_step, patterns.from_a_step_on
    pause = patterns.in_one_step
    forward = lengthen("stages", "forward")
    launches = lengthen("forward", "launch")
    for name, job, plant, pattern, phase in (
        ("mpi_one_rank", jobs.mpi_job, lengthen("compute"), single(always), "any"),
        ("mpi_one_rank_from_a_step_on", jobs.mpi_job, lengthen("compute"), single(onset), "any"),
        ("mpi_turns", jobs.mpi_job, lengthen("compute"), patterns.random_rank, "any"),
        ("mpi_one_pause", jobs.mpi_job, lengthen("compute"), all_ranks(pause), "any"),
        (
            "mpi_no_steps_rank",
            jobs.mpi_job_without_steps,
            lengthen("compute"),
            single(always),
            "any",
        ),
        ("stream_one_rank", jobs.stream_job, lengthen("backward"), single(always), "backward"),
        ("stream_gap", jobs.stream_job, lengthen("gap_before_reduction"), single(always), "gap"),
        ("stream_turns", jobs.stream_job, lengthen("forward"), patterns.rare_turns, "forward"),
        (
            *("stream_all_gap", jobs.stream_job, lengthen("gap_after_optimizer")),
            *(all_ranks(always), "gap"),
        ),
        (
            *("stream_no_wait_span_rank", jobs.stream_job_without_waits, lengthen("forward")),
            *(single(always), "forward"),
        ),
        ("ring_one_rank", jobs.ring_job, lengthen("forward"), single(always), "forward"),
        ("pipeline_slow_stage", jobs.pipeline_job, forward, single(always), "stage"),
        ("pipeline_from_a_step_on", jobs.pipeline_job, forward, single(onset), "stage"),
        ("pipeline_one_pause", jobs.pipeline_job, lengthen("data"), all_ranks(pause), "data"),
        ("device_one_rank", jobs.device_job, lengthen("backward"), single(always), "device"),
        ("device_data", jobs.device_job, lengthen("data"), all_ranks(always), "data"),
        ("device_idle_launches", jobs.device_job, launches, all_ranks(always), "idle"),
    ):
        yield Shape(name, job, plant, pattern, phase)
    every_rank = all_ranks(always)
    plant = lengthen("forward")
    yield UnevenLengths("uneven_lengths", jobs.blocking_job, plant, every_rank, "imbalance")
    yield UnevenLengths("uneven_lengths_stream", jobs.stream_job, plant, every_rank, "imbalance")


def list_shapes() -> dict[str, Shape]:
    """Return all shapes by name."""
    lists = (
        list_one_rank(),
        list_ranks_in_turns(),
        list_all_ranks(),
        list_communication(),
        list_other_programs(),
    )
    return {shape.name: shape for shapes in lists for shape in shapes}


@dataclass(frozen=True)
class Control:
    """A job without a loss. A report must not find a fault, and should call most jobs healthy."""

    name: str
    job: Callable[[Setting], Job]
    is_healthy: bool = True  # otherwise another verdict than HEALTHY is right, too

    def build(self, setting: Setting) -> Job:
        return self.job(setting)


def change_job(job: Callable[[Setting], Job], plant: Plant, extra: Callable[[Setting], Any]) -> Any:
    """Return a job with a harmless feature."""
    return lambda setting: plant(job(setting), extra(setting))


def list_controls() -> dict[str, Control]:
    """Return all controls by name: each job as it is, and with features that do no harm."""
    block, stream = jobs.blocking_job, jobs.stream_job
    change_block = partial(change_job, block)
    always, single = patterns.in_every_step, patterns.in_one_rank
    all_ranks = patterns.in_all_ranks
    controls = [
        Control("control_blocking", block),
        Control("control_stream", stream),
        Control("control_stream_without_waits", jobs.stream_job_without_waits),
        Control("control_accumulating", jobs.accumulating_job),
        Control("control_sharded", jobs.sharded_job),
        Control("control_mpi", jobs.mpi_job),
        Control("control_mpi_without_steps", jobs.mpi_job_without_steps),
        Control("control_ring", jobs.ring_job),
        Control("control_pipeline", jobs.pipeline_job, is_healthy=False),  # the bubble
        Control("control_devices", jobs.device_job),
        Control(
            "control_hidden_communication",
            change_job(stream, lengthen("bucket 0"), lambda s: np.full((1, s.steps), 2.5 * MS)),
        ),
        Control(
            "control_little_communication",
            change_block(lengthen("reduction"), lambda s: np.full((1, s.steps), 0.15 * MS)),
        ),
        Control(
            "control_small_gap",
            change_block(
                lengthen("gap_after_optimizer"), lambda s: 0.3 * MS * all_ranks(always)(s)
            ),
        ),
        Control(
            "control_rare_gc",
            change_block(lengthen("gc"), lambda s: 1 * MS * patterns.regular_turns(s)),
        ),
        Control(
            "control_short_checkpoints",
            change_block(
                lengthen("checkpoint"), lambda s: 5 * MS * all_ranks(patterns.at_epoch_borders)(s)
            ),
        ),
        Control(
            "control_slightly_slow_rank",
            change_block(lengthen("forward"), lambda s: 0.06 * MS * single(always)(s)),
        ),
        Control("control_first_steps", change_block(lengthen("forward"), lengthen_first_steps)),
        Control("control_same_lengths", vary_lengths_of_all_ranks),
    ]
    return {control.name: control for control in controls}


def lengthen_first_steps(setting: Setting) -> Grid:
    """Return the warm-up of all ranks: two steps take twice as long."""
    extra = np.zeros((setting.ranks, setting.steps))
    extra[:, :2] = STEP_NS
    return extra


def vary_lengths_of_all_ranks(setting: Setting) -> Job:
    """Steps have unequal work, alike for all ranks, so that no rank waits."""
    lengths = np.exp(0.3 * setting.random("lengths").standard_normal((1, setting.steps)))
    job = jobs.blocking_job(setting)
    for kind in ("forward", "backward"):
        part = job.parts[kind]
        assert isinstance(part, Work)
        job = job.change(kind, ns=part.ns * lengths)
    return job
