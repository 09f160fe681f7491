"""A small convolutional network trained with DistributedDataParallel on gloo, on made-up images.

tracelens record -- torchrun --standalone --nproc-per-node 2 ddp_cnn.py

Switches turn it into what real trainings are: a loader with workers, several batches a step, mixed
precision, a communication hook of the program's own, an optimizer for each of two parts.
"""

from __future__ import annotations

import argparse
import gc
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import faults
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import tracelens as tl

if TYPE_CHECKING:
    from faults import Faults

BATCH: Final = 32
CLASSES: Final = 10
SIDE: Final = 24


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noisy images of ten patterns, equal patterns on all ranks; item i belongs to step i / BATCH."""

    def __init__(self, steps: int, rank: int, planted: Faults) -> None:
        self.length = steps * BATCH
        self.rank = rank
        self.planted = planted
        self.patterns = torch.randn(CLASSES, 3, SIDE, SIDE, generator=_seeded(0))
        self.draw = _seeded(100 + rank)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        if item % BATCH == 0:
            self.planted.slow_down(self.rank, "data", item // BATCH)
        label = int(torch.randint(CLASSES, (1,), generator=self.draw))
        noise = torch.randn(3, SIDE, SIDE, generator=self.draw)
        return self.patterns[label] + 2 * noise, label


class SlowableStep(torch.autograd.Function):
    """Passes values on unchanged; a planted fault takes its time in its backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, rank: int, step: int, planted: Faults) -> Any:
        """Remember where we are."""
        ctx.place = rank, step, planted
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Be slow, or die, if this is the place."""
        rank, step, planted = ctx.place
        planted.kill(rank, step)
        planted.slow_down(rank, "backprop", step)
        return gradients[0], None, None, None


class Network(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, rank: int, planted: Faults) -> None:
        super().__init__()
        self.rank = rank
        self.planted = planted
        self.step = 0
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * (SIDE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, CLASSES)
        )

    def forward(self, images: torch.Tensor) -> Any:
        """Return a score for each class."""
        features = self.features(images)
        self.planted.slow_down(self.rank, "forward", self.step)
        return self.head(SlowableStep.apply(features, self.rank, self.step, self.planted))


class SlowableSGD(torch.optim.SGD):
    """Gradient descent in which a planted fault may take its time."""

    place: tuple[int, int, Faults]

    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        rank, step, planted = self.place
        planted.slow_down(rank, "update", step)
        return super().step(closure)


def average(_state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - DDP refuses annotations that are strings
    """Average a bucket: the program's own communication hook."""
    mean = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda done: done.value()[0])


class Training:
    """The model, its batches, and what updates it."""

    def __init__(self, arguments: argparse.Namespace, rank: int, planted: Faults) -> None:
        self.network = Network(rank, planted)
        self.model = DistributedDataParallel(self.network, bucket_cap_mb=1)
        first = self.network.features if arguments.two_optimizers else self.model
        self.optimizer = SlowableSGD(first.parameters(), lr=0.02, momentum=0.9)
        self.optimizers: list[torch.optim.Optimizer] = [self.optimizer]
        if arguments.two_optimizers:
            self.optimizers.append(torch.optim.AdamW(self.network.head.parameters(), lr=1e-3))
        images = Images(arguments.steps * arguments.accumulate, rank, planted)
        loader = DataLoader(images, batch_size=BATCH, num_workers=arguments.loader_workers)
        for optimizer in self.optimizers:
            tl.attach(self.model, optimizer=optimizer, loader=loader)
        if arguments.comm_hook:
            hook: Any = average
            self.model.register_comm_hook(None, hook)
        self.batches = iter(loader)
        self.accumulate = arguments.accumulate
        self.mixed = torch.autocast("cpu", torch.bfloat16, enabled=arguments.amp)

    def step(self) -> float:
        """Train on the batches of a step; return the loss of the last."""
        for micro_step in range(1, self.accumulate + 1):
            images, labels = next(self.batches)
            with nullcontext() if micro_step == self.accumulate else self.model.no_sync():
                with self.mixed:
                    loss = nn.functional.cross_entropy(self.model(images), labels)
                loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()


def train(arguments: argparse.Namespace) -> None:
    """Train, and tell on rank 0 how the loss fell."""
    rank = dist.get_rank()
    planted = faults.from_arguments(arguments)
    planted.check(dist.get_world_size())
    torch.manual_seed(0)
    training = Training(arguments, rank, planted)
    losses = []
    for step in range(arguments.steps):
        training.network.step = step
        training.optimizer.place = rank, step, planted
        with tl.step(step, samples=BATCH * arguments.accumulate):
            losses.append(training.step())
    if rank == 0:
        print(f"loss {losses[0]:.4f} -> {sum(losses[-5:]) / 5:.4f}")


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def main() -> None:
    """Read the command line, join the group, train, leave."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--loader-workers", type=int, default=0, help="processes that fetch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--amp", action="store_true", help="mixed precision, with bfloat16")
    parser.add_argument("--comm-hook", action="store_true", help="reduce by a hook of our own")
    parser.add_argument("--two-optimizers", action="store_true", help="one for each of two parts")
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    train(arguments)
    # gloo's threads must not meet a dying interpreter: nothing of DDP may be alive from here on.
    gc.collect()
    dist.barrier()
    tl.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
