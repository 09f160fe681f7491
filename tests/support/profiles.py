"""Profiles as torch.profiler writes them, small and regular: of ranks on GPUs, or with gloo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN_US: Final = 1_750_000_000_000_000.0
KERNELS_US: Final = (4000.0, 4000.0, 1500.0, 400.0)  # forward, backprop, allreduce, update
SIZES: Final = (1_000_000, 250_000)  # elements of the buckets of gloo


def write_ranks(folder: Path, make: Callable[[int], dict[str, Any]], ranks: int = 2) -> Path:
    """Write a file a rank."""
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_text(json.dumps(make(rank)))
    return folder


def about_job(rank: int, backend: str, world: int = 2) -> dict[str, Any]:
    """Return what stands beside the events of a rank."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world))}
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": backend, "rank": rank, "world_size": world, "pg_config": [group],
        },
    }  # fmt: skip


def event(
    category: str, name: str, at_us: float, lasts_us: float, tid: int, **args: Any
) -> dict[str, Any]:
    """Return a complete event."""
    on_device = category in {"kernel", "gpu_memcpy"}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0 if on_device else 100, "tid": tid,
        "ts": at_us, "dur": lasts_us, "args": args,
    }  # fmt: skip


def step_us(step: int, *, varies: bool) -> float:
    """Return how long a step of `gpu_profile` lasts."""
    return sum(KERNELS_US) + 2000.0 + (1000.0 * (step * step % 101 % 7) if varies else 0.0)


def gpu_profile(
    rank: int,
    steps: int = 20,
    *,
    skipped: int = 0,
    numbered: bool = True,
    varies: bool = True,
    clock_us: float = 0.0,
) -> dict[str, Any]:
    """Return the profile of a rank on a GPU, that begins `skipped` steps late and counts from there.

    Collectives have numbers if `numbered`; steps are of different lengths if it `varies`.
    """
    at_us = BEGIN_US + clock_us
    events: list[dict[str, Any]] = []
    for step in range(skipped + steps):
        if step >= skipped:
            lasts_us = step_us(step, varies=varies)
            events += _gpu_step(step, (step - skipped, lasts_us), at_us, numbered=numbered)
        at_us += step_us(step, varies=varies)
    return about_job(rank, "nccl") | {"traceEvents": events}


def _gpu_step(
    step: int, mark: tuple[int, float], at_us: float, *, numbered: bool
) -> Iterator[dict[str, Any]]:
    host, (number, lasts_us) = 100, mark
    yield event("user_annotation", f"ProfilerStep#{number}", at_us, lasts_us - 10, host)
    yield event("user_annotation", "DistributedDataParallel.forward", at_us + 10, 300, host)
    yield event("user_annotation", "backward", at_us + 320, 300, host)
    yield event("user_annotation", "Optimizer.step#SGD.step", at_us + 630, 100, host)
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    call = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", **group}
    call |= {"Seq": step} if numbered else {}
    begin_us = at_us + 100
    names = ("sgemm_forward", "sgemm_backward", "ncclDevKernel_AllReduce_Sum_f32", "adam")
    for kernel_index, (name, kernel_us) in enumerate(zip(names, KERNELS_US, strict=True)):
        about = {"correlation": 10 * step + kernel_index + 1}
        launched_us = at_us + (20, 330, 340, 640)[kernel_index]
        yield event("cuda_runtime", "cudaLaunchKernel", launched_us, 5, host, **about)
        of_call = call if kernel_index == 2 else {}
        stream = 20 if kernel_index == 2 else 7
        yield event(
            "kernel", name, begin_us, kernel_us, stream, device=0, stream=stream, **about, **of_call
        )
        begin_us += kernel_us


def gloo_profile(rank: int, steps: int = 40, *, swapped: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the profile of a rank with gloo; in `swapped` steps threads begin in the other order."""
    events = []
    for step in range(steps):
        at_us = BEGIN_US + 10_000.0 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at_us, 9_900, 100),
            event("user_annotation", "DistributedDataParallel.forward", at_us + 10, 3000, 100),
            event("user_annotation", "backward", at_us + 3010, 4000, 100),
            event("user_annotation", "Optimizer.step#SGD.step", at_us + 8500, 500, 100),
        ]
        for bucket_index, size in enumerate(SIZES):
            issued_us = at_us + 6000 + 2 * bucket_index
            late_us = 4 * (1 - bucket_index if step in swapped else bucket_index)
            shapes = {"Input Dims": [[[size]], [], []], "Input type": ["TensorList", "", "Scalar"]}
            events.append(event("cpu_op", "c10d::allreduce_", issued_us, 1, 100, **shapes))
            work = {"Input Dims": [[size]], "Input type": ["float"]}
            begun_us = at_us + 6010 + late_us
            ends_us = at_us + 8000 + 100 * bucket_index
            events.append(
                event(
                    "user_annotation",
                    "gloo:all_reduce",
                    begun_us,
                    ends_us - begun_us,
                    201 + bucket_index,
                    **work,
                )
            )
    return about_job(rank, "gloo") | {"traceEvents": events}
