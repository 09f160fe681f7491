"""A program that calls collectives itself, blocking and not, in two groups."""

from __future__ import annotations

import torch
import torch.distributed as dist


def blocking(group: dist.ProcessGroup | None) -> None:
    """All that gloo can do, on 4 floats a rank."""
    tensor = torch.arange(4.0) + dist.get_rank()
    gathered = torch.empty(8)
    dist.all_reduce(tensor, group=group)
    dist.broadcast(tensor, src=0, group=group)
    dist.reduce(tensor, dst=0, group=group)
    dist.all_gather([torch.empty(4), torch.empty(4)], tensor, group=group)
    dist.all_gather_into_tensor(gathered, tensor, group=group)
    dist.reduce_scatter_tensor(tensor, gathered, group=group)
    dist.all_to_all_single(gathered, gathered.clone(), group=group)
    tensors = [torch.empty(4), torch.empty(4)] if dist.get_rank() == 0 else None
    dist.gather(tensor, tensors, dst=0, group=group)
    dist.scatter(tensor, tensors, src=0, group=group)
    dist.barrier(group=group)


def main() -> None:
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    for _ in range(2):
        blocking(None)
    blocking(pair)
    large = torch.full((1000,), float(dist.get_rank() + 1))
    small = torch.ones(3)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (large, small)]
    for work in works:
        work.wait()
    assert torch.equal(large, torch.full((1000,), 3.0))
    assert torch.equal(small, torch.full((3,), 2.0))
    dist.barrier()
    dist.destroy_process_group()


main()
