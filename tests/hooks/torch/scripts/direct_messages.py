"""A program that sends messages itself: blocking, not blocking, in a batch, and from anybody."""

from __future__ import annotations

import torch
import torch.distributed as dist


def exchange(group: dist.ProcessGroup | None) -> None:
    """Each way to send and receive once, between ranks 0 and 1."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.full((10,), float(rank)), torch.empty(10)
    if rank == 0:
        dist.send(mine, other, group=group, tag=3)
        assert dist.recv(theirs, group=group) == other
    else:
        assert dist.recv(theirs, other, group=group, tag=3) == other
        dist.send(mine, other, group=group)
    assert torch.equal(theirs, torch.full((10,), float(other)))
    works = [dist.isend(mine[:2], other, group=group), dist.irecv(theirs[:2], other, group=group)]
    for work in works:
        assert work is not None
        work.wait()
    batch = [
        dist.P2POp(dist.irecv, theirs, other, group=group),
        dist.P2POp(dist.isend, mine, other, group=group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    pair = dist.new_group([1, 0])
    exchange(None)
    exchange(pair)
    dist.barrier()
    dist.destroy_process_group()


main()
