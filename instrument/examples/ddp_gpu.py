"""A network of linear layers trained with DistributedDataParallel on CUDA devices, on made-up data.

tracelens record -- torchrun --standalone --nproc-per-node GPUS ddp_gpu.py

With one process there is nobody to reduce with: then each bucket is copied to and fro instead, on a
stream of its own, for as long as `--copies` say; that future is complete as soon as it is queued, as
NCCL's is. `--slow-rank R --slow-steps A:B --slow-ms M` lets the device of rank R take M ms more in
backprop of the steps A to B.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tracelens as tl

WARM_UP: Final = 3
CYCLES_A_MS: Final = 1_500_000  # of a device's clock, about


class SlowableBackward(torch.autograd.Function):
    """Passes values on unchanged; in its backward it keeps the device busy for so many cycles."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, cycles: int) -> Any:
        """Remember how slow to be."""
        ctx.cycles = cycles
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Be as slow."""
        if ctx.cycles:
            torch.cuda._sleep(ctx.cycles)  # noqa: SLF001 - PyTorch's own tests use it, too
        return gradients[0], None


class CopyReduction:
    """Stands in for a reduction: copies on a stream of its own, and a future that knows of it."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.stream = torch.cuda.Stream()

    def __call__(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Queue the copies."""
        self.stream.wait_stream(torch.cuda.current_stream())
        buffer.record_stream(self.stream)
        future: Any = torch.futures.Future(devices=[buffer.device])
        with torch.cuda.stream(self.stream):
            other = torch.empty_like(buffer)
            for _ in range(self.copies):
                other.copy_(buffer)
                buffer.copy_(other)
            future.set_result(buffer)
        return future  # type: ignore[no-any-return]  # futures are typed in part


# DDP refuses a hook whose annotations are strings.
def reduce_by_copies(reduction, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Be a communication hook of DDP."""
    return reduction(bucket.buffer())


class Training:
    """A model on this process's device, with what trains it."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        width = options.width
        layers = [
            part for _ in range(options.layers) for part in (nn.Linear(width, width), nn.ReLU())
        ]
        self.model = DistributedDataParallel(nn.Sequential(*layers).cuda(), bucket_cap_mb=64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        tl.attach(self.model, optimizer=self.optimizer)
        if dist.get_world_size() == 1:
            self.model.register_comm_hook(CopyReduction(options.copies), reduce_by_copies)
        self.inputs = torch.randn(options.batch, width, pin_memory=True)

    def step(self, cycles: int) -> torch.Tensor:
        """Queue a step."""
        batch = self.inputs.cuda(non_blocking=True)
        outputs = SlowableBackward.apply(self.model(batch), cycles)
        loss: torch.Tensor = outputs.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch types it in part
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    """Train; after a warm-up no step waits for its device, which PyTorch would refuse."""
    options = _options()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    training = Training(options)
    first, last = (int(edge) for edge in options.slow_steps.split(":"))
    for number in range(options.steps):
        if number == WARM_UP:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        slow = dist.get_rank() == options.slow_rank and first <= number <= last
        with tl.step(number, samples=options.batch):
            loss = training.step(round(options.slow_ms * CYCLES_A_MS) if slow else 0)
        if number % options.wait_every == options.wait_every - 1:
            torch.cuda.set_sync_debug_mode("default")
            print(f"step {number}: loss {loss.item():.5f}")
            torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    tl.stop()
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--wait-every", type=int, default=10)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-steps", default="0:-1")
    parser.add_argument("--slow-ms", type=float, default=0.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
