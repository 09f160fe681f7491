"""What to simulate: a data-parallel training run, its noise, its clocks and its planted faults."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens.caching import cached_property
from tracelens.errors import InvalidArgument
from tracelens.placement import STRATEGIES, Piece, sum_shard_bytes

if TYPE_CHECKING:
    from tracelens.arrays import Indices, Ints

FaultPhase = Literal[
    "data",
    "forward",
    "backprop",
    "update",
    "checkpoint",
    "gc",
    "reduction",
    "link",
    "aggregate",
    "wire",
]
ORIGIN_NS: Final = 1_000_000_000_000  # where the true clock stands when the run starts
MILLISECOND: Final = 1_000_000


@dataclass(frozen=True)
class Fault:
    """One planted slowdown: `phase` of `ranks` lasts `factor` times as long, plus `extra_ms`.

    `ranks` empty = all; for the phases ``aggregate`` and ``wire`` (its link) they are shards. `steps`
    is (first, last), inclusive, null = all. For ``link`` they are the senders: in a ring each sends to
    the next, and the slowest link sets the pace of all. `every` = n hits only each n-th of them; `ramp`
    lets the factor grow linearly from 1. ``checkpoint`` and ``gc`` have no base duration: use
    `extra_ms`. With a `pause_share`, `extra_ms` of ``backprop`` are a pause once this share of it (0 to
    1) is done, else they spread over it.
    """

    phase: FaultPhase
    ranks: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None
    factor: float = 1.0
    extra_ms: float = 0.0
    every: int = 1
    ramp: bool = False
    pause_share: float | None = None


@dataclass(frozen=True)
class Clock:
    """One host's monotonic clock: what it shows minus the true time.

    At true time t it is `offset_ns` + `drift_ppm` x (t - start) and, `jump_after_ms` into the run,
    `jump_ns` more.
    """

    offset_ns: int = 0
    drift_ppm: float = 0.0
    jump_ns: int = 0
    jump_after_ms: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A run to simulate; times are milliseconds, means per step or bucket.

    `noise` is the relative deviation from step to step (with `correlation` between neighbours),
    `spread` the lasting relative difference between ranks, `common` noise shared by all ranks.
    `overlap` reduces buckets during backprop, as DDP does; else one blocking call a bucket.
    A bucket of mean size is `transfer_ms` on the wire, and every message `message_ms` more, however
    small; `bucket_sizes` (bytes) are `bucket_bytes` each if not given, and a bucket is full when
    `bucket_ready` of backprop is done, else when its share of all bytes is.
    `hops` records the sends and receives of the ring that every reduction then is.
    `layers` > 1 records each layer of forward, backprop and update. `clocks` holds one clock a
    host (the workers' hosts, then one host a shard); empty = all share one. With `shards`, gradients
    go to parameter servers instead of an allreduce; `variables` (bytes) are then put on them by
    `placement` (`tracelens.placement`), each pushed and pulled by itself. With `shared_links` pushes
    share their shard's link evenly, and n of them get 1 / (1 + `incast` (n - 1)) of its work done.
    `beside_compute` lets transfers go on while workers compute (`interleaved_servers`); `work` then says
    how much of forward, and of backprop, belongs to each variable (any unit; equal if not given).
    `on_device`: every worker has a device that does the work, while its host queues it in `launch_share`
    of the time and waits for the rest of the step. `present` names ranks that take part only from one
    step to another, inclusive: ``((3, (20, 39)),)``.
    """

    ranks: int = 4
    ranks_per_host: int = 4
    steps: int = 50
    seed: int = 0
    data_ms: float = 1.0
    forward_ms: float = 5.0
    backprop_ms: float = 10.0
    buckets: int = 2
    bucket_bytes: int = 4 << 20
    bucket_sizes: tuple[int, ...] = ()
    bucket_ready: tuple[float, ...] = ()
    transfer_ms: float = 1.0
    message_ms: float = 0.0
    update_ms: float = 1.0
    update_gap_ms: float = 0.0
    noise: float = 0.02
    correlation: float = 0.0
    spread: float = 0.005
    common: float = 0.0
    exit_skew_us: float = 5.0
    overlap: bool = True
    hops: bool = False
    layers: int = 1
    samples: float = 32.0
    shards: int = 0
    shard_bytes: tuple[int, ...] = ()
    variables: tuple[int, ...] = ()
    placement: str = "round_robin"
    work: tuple[float, ...] = ()
    beside_compute: bool = False
    shared_links: bool = False
    incast: float = 0.0
    link_gbytes_per_s: float = 2.0
    aggregate_gbytes_per_s: float = 8.0
    apply_ms: float = 0.2
    latency_us: float = 20.0
    clocks: tuple[Clock, ...] = ()
    wall_error_ms: float = 0.5
    on_device: bool = False
    launch_share: float = 0.2
    device_drift_ppm: float = 20.0
    ping_pong: bool = False
    faults: tuple[Fault, ...] = ()
    present: tuple[tuple[int, tuple[int, int]], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            InvalidArgument: a count is below 1 or lists do not fit together.
        """
        counts = (self.ranks, self.ranks_per_host, self.steps, self.buckets, self.layers)
        if min(counts) < 1 or self.shards < 0:
            raise InvalidArgument(
                f"A scenario has ranks, ranks_per_host, steps, buckets and layers of at least 1, "
                f"found {counts}."
            )
        if self.bucket_sizes and len(self.bucket_sizes) != self.buckets:
            raise InvalidArgument(
                f"A scenario with {self.buckets} buckets needs as many bucket_sizes, "
                f"found {len(self.bucket_sizes)}."
            )
        if self.bucket_ready and (
            len(self.bucket_ready) != self.buckets or max(self.bucket_ready) > 1
        ):
            raise InvalidArgument(
                f"A scenario with {self.buckets} buckets needs as many values of bucket_ready, "
                f"each at most 1, found {self.bucket_ready}."
            )
        self._check_servers()
        if not all(map(self._may_pause, self.faults)):
            raise InvalidArgument(
                "A fault pauses at a share from 0 to 1 of backprop, beside which buckets are reduced: "
                "expected phase = 'backprop', overlap, and no shards."
            )
        if self.clocks and len(self.clocks) != self.host_count:
            raise InvalidArgument(
                f"A scenario with {self.host_count} hosts needs as many clocks, "
                f"found {len(self.clocks)}."
            )

    def _may_pause(self, fault: Fault) -> bool:
        """Return True if a fault's pause, if any, can be simulated: in backprop, with overlap."""
        if fault.pause_share is None:
            return True
        is_overlapped = self.overlap and not self.shards
        return 0 <= fault.pause_share <= 1 and fault.phase == "backprop" and is_overlapped

    def _check_servers(self) -> None:
        """Refuse shards that fit to nothing else."""
        if self.shard_bytes and len(self.shard_bytes) != self.shards:
            raise InvalidArgument(
                f"A scenario with {self.shards} shards needs as many shard_bytes, "
                f"found {len(self.shard_bytes)}."
            )
        if self.present and (self.shards or self.hops):
            raise InvalidArgument(
                "A scenario in which ranks join or leave has no shards and no hops."
            )
        if self.variables and (self.shard_bytes or not self.shards):
            raise InvalidArgument(
                "A scenario with variables needs shards to place them on, and no shard_bytes."
            )
        if self.work and len(self.work) != len(self.variables):
            raise InvalidArgument(
                f"A scenario with {len(self.variables)} variables needs as many values of work, "
                f"found {len(self.work)}."
            )
        if self.beside_compute and not self.shards:
            raise InvalidArgument(
                "A scenario whose transfers go on beside compute at servers needs shards."
            )
        if self.on_device and self.shards:
            raise InvalidArgument("A scenario has either devices or shards, found both.")

    @property
    def worker_host_count(self) -> int:
        """The number of hosts that run workers."""
        return ceil(self.ranks / self.ranks_per_host)

    @property
    def host_count(self) -> int:
        """The number of hosts; every shard has its own."""
        return self.worker_host_count + self.shards

    @property
    def bytes_of_buckets(self) -> tuple[int, ...]:
        """Bytes of gradient that each bucket holds."""
        return self.bucket_sizes or (self.bucket_bytes,) * self.buckets

    @cached_property
    def pieces(self) -> list[Piece]:
        """What a worker pushes in a step, and whereto; without variables one piece a shard."""
        if self.variables:
            return STRATEGIES[self.placement](self.variables, self.shards)
        sizes_bytes = enumerate(self.bytes_of_shards)
        return [
            Piece(variable_index=i, offset_bytes=0, nbytes=nbytes, shard_index=i)
            for i, nbytes in sizes_bytes
        ]

    def find_pieces(self, shard: int) -> tuple[Indices, Ints]:
        """Return the pieces of a shard: their indices in `pieces`, and their bytes, both [piece]."""
        piece_indices = [
            index for index, piece in enumerate(self.pieces) if piece.shard_index == shard
        ]
        piece_bytes = [self.pieces[index].nbytes for index in piece_indices]
        return np.array(piece_indices, np.intp), np.array(piece_bytes, np.int64)

    @property
    def bytes_of_shards(self) -> tuple[int, ...]:
        """Bytes of gradient that each shard receives from each worker in a step."""
        if self.variables:
            return tuple(sum_shard_bytes(self.pieces, self.shards))
        even_bytes = (sum(self.bytes_of_buckets) // max(self.shards, 1),) * self.shards
        return self.shard_bytes or even_bytes


def random_clocks(
    hosts: int, seed: int = 0, offset_ms: float = 5.0, drift_ppm: float = 20.0
) -> tuple[Clock, ...]:
    """Draw clocks with offsets within +-`offset_ms` and drifts within +-`drift_ppm`; host 0 is true."""
    random = np.random.default_rng([seed, 77])
    offsets_ns = random.uniform(-offset_ms, offset_ms, hosts) * MILLISECOND
    drifts_ppm = random.uniform(-drift_ppm, drift_ppm, hosts)
    clocks = [Clock(int(ns), float(ppm)) for ns, ppm in zip(offsets_ns, drifts_ppm, strict=True)]
    return (Clock(), *clocks[1:])
