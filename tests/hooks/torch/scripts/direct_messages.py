"""A program that sends messages itself: blocking, not blocking, in a batch, and from anybody."""

from __future__ import annotations

import torch
import torch.distributed as dist


def exchange(group: dist.ProcessGroup | None) -> None:
    """Each way to send and receive once, between ranks 0 and 1."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    sent, received = torch.full((10,), float(rank)), torch.empty(10)
    if rank == 0:
        dist.send(sent, peer, group=group, tag=3)
        assert dist.recv(received, group=group) == peer
    else:
        assert dist.recv(received, peer, group=group, tag=3) == peer
        dist.send(sent, peer, group=group)
    assert torch.equal(received, torch.full((10,), float(peer)))
    works = [dist.isend(sent[:2], peer, group=group), dist.irecv(received[:2], peer, group=group)]
    for work in works:
        assert work is not None
        work.wait()
    batch = [
        dist.P2POp(dist.irecv, received, peer, group=group),
        dist.P2POp(dist.isend, sent, peer, group=group),
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
