"""Trainings as PyTorch's tutorials write them: small, deterministic, and unaware of TraceLens.

Usage: torch_programs.py [--spawn N] NAME..., under torchrun, under Slurm's variables, or starting N
ranks itself; each rank prints for each program its name and a digest of final weights and losses.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STEPS = 4


def digest(model: nn.Module, losses: Iterable[float]) -> str:
    """Return a digest of all weights, buffers and losses, to the last bit."""
    checksum = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        checksum.update(name.encode() + whole.detach().float().numpy().tobytes())
    checksum.update(repr(list(losses)).encode())
    return checksum.hexdigest()[:16]


class ToyModel(nn.Module):
    """The model of the DDP tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net2(self.relu(self.net1(x)))
        return y


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = STEPS,
    around: Callable[[int], contextlib.AbstractContextManager[object]] | None = None,
) -> list[float]:
    """Train on random batches, each rank on its own; return the losses."""
    losses = []
    for step in range(steps):
        with around(step) if around else contextlib.nullcontext():
            loss: Any = functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5))
            loss.backward()
        if step % 2 or not around:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ddp() -> str:
    """Train as the DDP tutorial does."""
    model = DistributedDataParallel(ToyModel())
    return digest(model, train(model, torch.optim.SGD(model.parameters(), lr=0.001)))


def no_sync() -> str:
    """Accumulate gradients over two batches, of which only the second is reduced."""
    model = DistributedDataParallel(ToyModel())
    optimizer = torch.optim.AdamW(model.parameters())

    def around(step: int) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if step % 2 else model.no_sync()

    return digest(model, train(model, optimizer, around=around))


def fsdp() -> str:
    """Train with fully_shard, as the FSDP tutorial does now."""
    model = ToyModel()
    for part in (model.net1, model.net2, model):
        fully_shard(part)
    return digest(model, train(model, torch.optim.Adam(model.parameters())))


class Block(nn.Module):
    """A block of a transformer, as minGPT has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        y = self.norms[0](x)
        mask = torch.ones(length, length).triu(1).bool()
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        z: Tensor = x + self.mlp(self.norms[1](x))
        return z


class TinyGpt(nn.Module):
    """A language model of a few thousand weights; its blocks may be computed again in backward."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.token, self.position = nn.Embedding(32, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([Block(32), Block(32)])
        self.head = nn.Linear(32, 32, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        y: Tensor = self.head(x)
        return y


def gpt(*, again: bool = False) -> str:
    """Train a small GPT to sort numbers, with clipped gradients and a schedule."""
    model = DistributedDataParallel(TinyGpt(again=again))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 32, (4, 16))
        scores = model(tokens)
        loss: Any = functional.cross_entropy(scores.view(-1, 32), tokens.sort(dim=1)[0].view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return digest(model, losses)


def activation_checkpointing() -> str:
    """Compute the forward pass of each block again in backward."""
    return gpt(again=True)


def images() -> str:
    """Classify random images: sampler, loader with workers, batch norm, validation by all_reduce."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    model: Any = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss: Any = functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().sum()
        dist.all_reduce(right)
        losses += [loss.item(), right.item()]
    return digest(model, losses)


def checkpointing() -> str:
    """Save on one rank, load on all, and go on, as the DDP tutorial does."""
    model = DistributedDataParallel(ToyModel())
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, optimizer)
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names, src=0)
    path = Path(names[0]) / "checkpoint.pt"
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    kept = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return digest(model, losses + train(model, optimizer))


def amp() -> str:
    """Train with automatic mixed precision in bfloat16."""
    model = DistributedDataParallel(ToyModel())

    def around(_step: int) -> contextlib.AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.01), around=around)
    return digest(model, losses)


def join() -> str:
    """Train on inputs of uneven length with the Join context."""
    model = DistributedDataParallel(ToyModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        return digest(model, train(model, optimizer, steps=STEPS + dist.get_rank()))


def compiled() -> str:
    """Train a DDP model that is compiled."""
    model = DistributedDataParallel(ToyModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    faster: Any = torch.compile(model)
    return digest(model, train(faster, optimizer))


def collectives() -> str:
    """Use the collectives of the tutorial "Writing distributed applications", groups included."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)))
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    gathered = [torch.zeros(3) for _ in range(ranks)]
    dist.all_gather(gathered, tensor * (rank + 1))
    received = torch.zeros(1)
    if ranks > 1:
        request = dist.isend(tensor[:1].clone(), (rank + 1) % ranks)
        dist.recv(received, (rank - 1) % ranks)
        request.wait()  # type: ignore[union-attr]
    objects: list[object] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    return repr([tensor.tolist(), [one.tolist() for one in gathered], received.item(), objects])


PROGRAMS = {
    one.__name__: one
    for one in (
        *(ddp, no_sync, fsdp, gpt, activation_checkpointing, images),
        *(checkpointing, amp, join, compiled, collectives),
    )
}


def run(names: list[str], rank: int, ranks: int) -> None:
    """Run programs in this rank."""
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for name in names:
        torch.manual_seed(rank)
        sys.stdout.write(f"{name} rank {rank}: {PROGRAMS[name]()}\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def spawned(rank: int, ranks: int, names: list[str]) -> None:
    """Run one of the ranks that `torch.multiprocessing.spawn` starts."""
    run(names, rank, ranks)


def main() -> None:
    """Run the programs that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spawn", type=int, metavar="N")
    parser.add_argument("names", nargs="+", choices=PROGRAMS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29511")
    if options.spawn:
        spawn(spawned, (options.spawn, options.names), nprocs=options.spawn)  # type: ignore[no-untyped-call]
    else:
        variables = (
            ("RANK", "WORLD_SIZE") if "RANK" in os.environ else ("SLURM_PROCID", "SLURM_NTASKS")
        )
        run(options.names, *(int(os.environ[name]) for name in variables))


if __name__ == "__main__":
    main()
