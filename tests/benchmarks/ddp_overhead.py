"""What recording costs a real DDP training, from blocks of steps that take turns within one run.

Two ranks on gloo train three copies of the example's network: one recorded (hooks, steps, device off),
two plain. In each round every copy trains a block of steps, in random order; the ratio recorded / plain
of a round is one sample, and plain / plain, of which the truth is 1, shows what the machine's noise
alone makes. CPU time counts all threads of a rank; wall time also contains waiting for the other rank.
Given are 10 % trimmed means with 95 % intervals (Tukey and McLaughlin 1963).

Run: PYTHONPATH=tests python tests/benchmarks/ddp_overhead.py [rounds]
"""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import stats

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS: Final = 150
BLOCK: Final = 10  # steps
WARM_UP: Final = 3  # rounds
TRIM: Final = 0.1
COPIES: Final = ("recorded", "plain", "also plain")
EXAMPLES: Final = Path(__file__).parents[2] / "instrument" / "examples"


class Copy:
    """A network with its optimizer and batches."""

    def __init__(self, rank: int, *, recorded: bool) -> None:
        self._torch: Any = importlib.import_module("torch")
        sys.path.insert(0, str(EXAMPLES))
        example: Any = importlib.import_module("ddp_cnn")
        nothing = importlib.import_module("faults").Faults(-1, "", (0, 0), 0.0, -1, -1)
        self._torch.manual_seed(0)
        parallel = self._torch.nn.parallel.DistributedDataParallel
        self._model = parallel(example.Network(rank, nothing), bucket_cap_mb=1)
        self._optimizer = self._torch.optim.SGD(self._model.parameters(), lr=0.001)
        images = example.Images(10**6, rank, nothing)
        loader = self._torch.utils.data.DataLoader(images, batch_size=example.BATCH)
        self._recorded = recorded
        if recorded:
            tl.attach(self._model, optimizer=self._optimizer, loader=loader)
        self._batches = iter(loader)
        self._step = 0

    def block(self) -> tuple[float, float]:
        """Train a block of steps; return seconds of CPU and of wall time."""
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(BLOCK):
            if self._recorded:
                with tl.step(self._step):
                    self._train()
            else:
                self._train()
            self._step += 1
        return time.process_time() - cpu, time.perf_counter() - wall

    def _train(self) -> None:
        images, labels = next(self._batches)
        loss = self._torch.nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def rank_main(rounds: int) -> None:
    """Be a rank: measure all rounds; rank 0 prints."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    copies = {name: Copy(dist.get_rank(), recorded=name == "recorded") for name in COPIES}
    draw = random.Random(0)
    times = []
    for _ in range(rounds + WARM_UP):
        taken = {name: copies[name].block() for name in draw.sample(COPIES, len(COPIES))}
        times.append([taken[name] for name in COPIES])
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, times[WARM_UP:])
    if dist.get_rank() == 0:
        report(np.array(gathered))
    copies.clear()
    dist.barrier()
    tl.stop()
    dist.destroy_process_group()


def report(times: Any) -> None:
    """Print ratios; `times` is ranks x rounds x copies x (CPU, wall), in seconds."""
    ranks, rounds = times.shape[:2]
    sys.stdout.write(f"{ranks} ranks, {rounds} rounds of {BLOCK} steps a copy\n")
    for which, name in enumerate(("CPU", "wall")):
        step_ms = 1e3 * np.median(times[:, :, 1, which]) / BLOCK
        sys.stdout.write(f"{name}: a plain step takes {step_ms:.1f} ms (median)\n")
        for copy, label in ((0, "recorded / plain"), (2, "plain / plain")):
            ratios = np.log(times[:, :, copy, which] / times[:, :, 1, which]).mean(axis=0)
            mean, low, high = (100 * np.expm1(value) for value in trimmed(ratios))
            sys.stdout.write(f"  {label:17} {mean:+.2f} % (95 %: {low:+.2f} to {high:+.2f})\n")


def trimmed(values: Sequence[float] | Any) -> tuple[float, float, float]:
    """Return the trimmed mean and its 95 % interval."""
    ordered = np.sort(np.asarray(values))
    cut = int(TRIM * len(ordered))
    mean = float(ordered[cut : len(ordered) - cut].mean())
    winsorized = np.clip(ordered, ordered[cut], ordered[-cut - 1])
    error = winsorized.std(ddof=1) / ((1 - 2 * TRIM) * np.sqrt(len(ordered)))
    reach = float(stats.t.ppf(0.975, len(ordered) - 2 * cut - 1) * error)
    return mean, mean - reach, mean + reach


def main() -> int:
    """Start the ranks, or be one."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    if "RANK" in os.environ:
        rank_main(rounds)
        return 0
    from support.torchrun import torchrun_command  # noqa: PLC0415 - ranks do not need it

    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRACELENS_DIR": folder, "OMP_NUM_THREADS": "1"}
        command = torchrun_command(Path(__file__), 2, [rounds])
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
