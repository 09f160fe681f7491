"""A small training with PyTorch, in this process, and a process group of one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from support.imports import LateModule, skip_without

if TYPE_CHECKING:
    from collections.abc import Iterator

skip_without("torch")
torch: Any = LateModule("torch")
dist: Any = LateModule("torch.distributed")


# Where PyTorch (2.13) ends a group it holds the GIL and waits for threads of Gloo, which may wait for
# the GIL to let go of what `backward` had them keep. So groups last as long as the process.
_groups: Final[list[Any]] = []


@contextmanager
def group_of_one() -> Iterator[None]:
    """Be a process group with a single member."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _groups.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def network() -> Any:
    """Three layers: two with weights and one without, always with the same weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1, bias=False)
    )


def loader(batches: int, batch_size: int = 4) -> Any:
    """Make a DataLoader of so many batches."""
    return torch.utils.data.DataLoader(torch.ones(batches * batch_size, 8), batch_size)


@dataclass
class Training:
    """A model with what trains it."""

    model: Any = field(default_factory=network)
    optimizer: Any = None

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Any = None) -> None:
        """Train on one batch."""
        inputs = torch.ones(4, 8) if batch is None else batch
        self.model(inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
