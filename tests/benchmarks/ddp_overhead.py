"""What recording costs a real DDP training, from blocks of steps with and without it within one run.

Two ranks on gloo train the example's network. In each round the same model trains three blocks of
steps, in random order: one recorded (`tl.attach`, steps, device off), and two with every hook of ours
taken out again (of the model, the optimizer, the loader, PyTorch's dispatcher and its backward). The
ratio recorded / plain of a round is one sample; plain / plain, of which the truth is 1, shows what the
machine's noise alone makes. CPU time counts all threads of a rank; wall time also contains waiting for
the other rank. Given are 10 % trimmed means; 95 % intervals are from a bootstrap of blocks of
consecutive rounds, because a busy machine is busy for a while (Kunsch 1989).

The C library keeps freed memory (`--memory kept`). By default it gives large blocks back to the kernel
or not, as they happen to lie: the same training, recorded or not, has 10 to 1,700 page faults a step
then, from one start to the next, and their 2 us each are more than what is measured (`--memory default`
shows it).

Run: make bench NAME=ddp [PUBLISH=1] [ARGS="--rounds N --batch N --detail LEVEL --memory default"]
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.published import publish, table
from benchmarks.quick import parse_quick

import tracelens as tl

WARM_UP: Final = 3  # rounds
TRIM: Final = 0.1
PAGE: Final = "benchmarks.md"
SCRIPT: Final = "tests/benchmarks/ddp_overhead.py"
# Of glibc's malloc: no block gets a mapping of its own, and none is given back.
KEPT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**31),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}
ARMS: Final = ("recorded", "plain", "also plain")
RESAMPLES: Final = 2000
TOGETHER: Final = 40  # rounds a block of the bootstrap
BLOCK_S: Final = (
    0.05  # about what a block of steps should take: noise lasts longer, and so falls out
)
EXAMPLES: Final = Path(__file__).parents[2] / "instrument" / "examples"
TABLES: Final = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)


class Hooks:
    """All that `tl.attach` has put into PyTorch; can be taken out and put in again."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        torch: Any = importlib.import_module("torch")
        self._dispatch: Any = importlib.import_module("tracelens_instrument.hooks.torch.operations")
        tables = [
            vars(owner)[name]
            for owner in (*model.modules(), optimizer)
            for name in TABLES
            if vars(owner).get(name)
        ]
        self._tables = [(table, dict(table)) for table in tables]
        fetch = torch.utils.data.dataloader._BaseDataLoaderIter
        places = [(torch.autograd, "backward"), (fetch, "__next__")]
        patches = [(owner, name, vars(owner)[name]) for owner, name in places]
        self._patches = [patch for patch in patches if hasattr(patch[2], "__wrapped__")]

    def put_in(self) -> None:
        """Record."""
        for where, hooks in self._tables:
            where.update(hooks)
        for owner, name, patch in self._patches:
            setattr(owner, name, patch)
        self._dispatch.resume_kernels()

    def take_out(self) -> None:
        """Be as if TraceLens were not there."""
        for where, _ in self._tables:
            where.clear()
        for owner, name, patch in self._patches:
            setattr(owner, name, patch.__wrapped__)
        self._dispatch.suspend_kernels()


class Training:
    """The example's network with its optimizer and batches."""

    def __init__(self, rank: int, batch: int, detail: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        sys.path.insert(0, str(EXAMPLES))
        example: Any = importlib.import_module("ddp_cnn")
        nothing = importlib.import_module("faults").Faults(-1, "", (0, 0), 0.0, -1, -1)
        self._torch.manual_seed(0)
        parallel = self._torch.nn.parallel.DistributedDataParallel
        self._model = parallel(example.Network(rank, nothing), bucket_cap_mb=1)
        self._optimizer = self._torch.optim.SGD(self._model.parameters(), lr=0.001)
        images = example.Images(10**8, rank, nothing)
        loader = self._torch.utils.data.DataLoader(images, batch_size=batch)
        tl.attach(self._model, optimizer=self._optimizer, loader=loader, detail=detail)
        self._batches = iter(loader)
        self._hooks = Hooks(self._model, self._optimizer)
        self._step = 0

    def block(self, arm: str, steps: int) -> tuple[float, float, float]:
        """Train a block of steps; return seconds of CPU and of wall time a step, and its page faults."""
        recorded = arm == "recorded"
        (self._hooks.put_in if recorded else self._hooks.take_out)()
        faults, cpu, wall = page_faults(), time.process_time(), time.perf_counter()
        for _ in range(steps):
            if recorded:
                with tl.step(self._step):
                    self._train()
            else:
                self._train()
            self._step += 1
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return cpu / steps, wall / steps, (page_faults() - faults) / steps

    def _train(self) -> None:
        images, labels = next(self._batches)
        loss = self._torch.nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def page_faults() -> int:
    """Return how many page faults this process has had, those that waited for a disk left out."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def rank_main(arguments: argparse.Namespace) -> None:
    """Be a rank: measure all rounds; rank 0 prints."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(dist.get_rank(), arguments.batch, arguments.detail)
    steps = steps_in_a_block(training, dist, torch)
    draw = random.Random(0)
    times = []
    for _ in range(arguments.rounds + WARM_UP):
        taken = {arm: training.block(arm, steps) for arm in draw.sample(ARMS, len(ARMS))}
        times.append([taken[arm] for arm in ARMS])
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, times[WARM_UP:])
    if dist.get_rank() == 0:
        text = report(np.array(gathered), steps, arguments)
        sys.stdout.write(f"{text}\n")
        if arguments.publish:
            publish(PAGE, SCRIPT, text)
    del training
    dist.barrier()
    tl.stop()
    dist.destroy_process_group()


def steps_in_a_block(training: Training, dist: Any, torch: Any) -> int:
    """Return how many steps fill a block: equal on all ranks, by the quickest of three."""
    step_s = torch.tensor(min(training.block("plain", 2)[1] for _ in range(3)))
    dist.all_reduce(step_s)
    mean_s = float(step_s) / int(dist.get_world_size())
    return max(2, round(BLOCK_S / mean_s))


def report(times: Any, steps: int, arguments: argparse.Namespace) -> str:
    """Return a table; `times` is ranks x rounds x arms x (CPU s, wall s, page faults) a step."""
    ranks, rounds = times.shape[:2]
    rows = []
    for which, name in enumerate(("CPU", "wall")):
        arm_times = times[..., which]
        plain = float(np.median(arm_times[:, :, 1:]))
        for arm, label in ((0, "recorded / plain"), (2, "plain / plain")):
            base = arm_times[:, :, 1:].mean(axis=2) if arm == 0 else arm_times[:, :, 1]
            ratios = np.log(arm_times[:, :, arm] / base).mean(axis=0)
            mean, low, high = (100 * float(np.expm1(value)) for value in interval(ratios))
            us = 1e4 * plain
            rows.append(
                (
                    name,
                    label,
                    f"{1e3 * plain:.2f} ms",
                    f"{mean:+.2f} % ({low:+.2f} to {high:+.2f})",
                    f"{us * mean:+.0f} us ({us * low:+.0f} to {us * high:+.0f})",
                )
            )
    faults = np.median(times[..., 2], axis=(0, 1))
    title = (
        f"{ranks} ranks, batches of {arguments.batch}, {rounds} rounds of {steps} steps an arm, "
        f"detail {arguments.detail}, memory {arguments.memory}"
    )
    head = ("time", "ratio", "a plain step", "difference (95 %)", "a step (95 %)")
    means = f"Page faults a step (median): {faults[0]:.0f} recorded, {faults[1:].mean():.0f} plain."
    return f"{table(title, head, rows)}\n\n{means}"


def interval(values: Any, together: int = TOGETHER) -> tuple[float, float, float]:
    """Return the trimmed mean and its 95 % interval; `values` are of consecutive rounds."""
    draw = np.random.default_rng(0)
    together = min(together, len(values))
    blocks = np.lib.stride_tricks.sliding_window_view(values, together)
    count = -(-len(values) // together)
    drawn = blocks[draw.integers(len(blocks), size=(RESAMPLES, count))]
    means = trimmed(drawn.reshape(RESAMPLES, -1)[:, : len(values)])
    low, high = np.quantile(means, (0.025, 0.975))
    return float(trimmed(values)), float(low), float(high)


def trimmed(values: Any) -> Any:
    """Return the mean of the last axis without its extremes."""
    ordered = np.sort(values, axis=-1)
    cut = int(TRIM * ordered.shape[-1])
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--detail", default="phase")
    parser.add_argument("--memory", choices=("kept", "default"), default="kept")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    arguments = parse_quick(parser, rounds=1)
    if "RANK" in os.environ:
        rank_main(arguments)
        return 0
    from support.launch.torchrun import torchrun_command  # noqa: PLC0415 - ranks do not need it

    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRACELENS_DIR": folder, "OMP_NUM_THREADS": "1"}
        environment |= KEPT if arguments.memory == "kept" else {}
        command = torchrun_command(Path(__file__), 2, sys.argv[1:])
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
