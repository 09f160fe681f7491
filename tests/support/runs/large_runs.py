"""Very large synchronous runs, rank by rank, by numpy: 10^8 spans take minutes.

Every step of every rank loads data, runs forward and backprop layer by layer, reduces six buckets as
they become ready, waits for the last of them and updates the weights. A reduction ends when its slowest
rank has entered it; one rank is slow in a fifth of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from tracelens.conversion.arrow_file import write_events
from tracelens.schema.arrow import EVENT_SCHEMA
from tracelens.schema.side import Communicator, Process, SideTables, Thread
from tracelens.schema.vocabulary import TRACE_SUFFIX, make_stem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

LAYERS: Final = 10
BUCKETS: Final = 6
US: Final = 1_000
KINDS: Final = ("step", "data", "forward", "backprop", "reduction", "wait", "update")
_ROWS: Final = [
    ("step", "step", 0, 0),
    ("data", "next batch", 0, 1),
    ("forward", "forward", 0, 1),
    *(("forward", f"layer {i}", 0, 2) for i in range(LAYERS)),
    ("backprop", "backward", 0, 1),
    *(("backprop", f"layer {i} backward", 0, 2) for i in range(LAYERS)),
    *(("reduction", f"bucket {i}", 1, 0) for i in range(BUCKETS)),
    ("wait", "wait for buckets", 0, 1),
    ("update", "optimizer", 0, 1),
]
SPANS_A_STEP: Final = len(_ROWS)
FIRST_BUCKET: Final = next(i for i, row in enumerate(_ROWS) if row[0] == "reduction")


@dataclass(frozen=True)
class LargeRun:
    """A run of so many ranks and steps; times are [step, span] in ns."""

    ranks: int
    steps: int

    @classmethod
    def of(cls, spans: int, ranks: int) -> LargeRun:
        """Choose the steps for about so many spans."""
        return cls(ranks, max(20, round(spans / ranks / SPANS_A_STEP)))

    @property
    def spans(self) -> int:
        """How many there are in all."""
        return self.ranks * self.steps * SPANS_A_STEP

    @property
    def slow_rank(self) -> int:
        """The rank that is slow."""
        return self.ranks * 3 // 8

    def work(self, rank: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return a rank's time for data, forward and backprop in every step."""
        noise = np.random.default_rng(rank).uniform(0.97, 1.03, (3, self.steps))
        slow = np.zeros(self.steps)
        if rank == self.slow_rank:
            slow[2 * self.steps // 5 : 3 * self.steps // 5] = 0.6
        usual = np.array([[900.0], [4000.0], [8000.0]]) * US * noise
        usual[2] *= 1 + slow
        data, forward, backprop = usual.astype(np.int64)
        return data, forward, backprop

    @cached_property
    def entered(self) -> Numbers:
        """When the last rank enters each reduction, since the step's begin, [step, bucket]."""
        latest = np.zeros((self.steps, BUCKETS), np.int64)
        for rank in range(self.ranks):
            np.maximum(latest, self._ready(*self.work(rank)), out=latest)
        return latest

    @cached_property
    def begins(self) -> Numbers:
        """When each step begins; one more than there are steps."""
        length = self.entered[:, -1] + 300 * US + 700 * US
        return 10**9 + np.concatenate([[0], np.cumsum(length)])

    def _ready(self, data: Numbers, forward: Numbers, backprop: Numbers) -> Numbers:
        shares = np.arange(1, BUCKETS + 1) / BUCKETS
        return (data + forward)[:, None] + (backprop[:, None] * shares).astype(np.int64)

    def times(self, rank: int) -> tuple[Numbers, Numbers]:
        """Return begins and ends of a rank's spans."""
        data, forward, backprop = self.work(rank)
        layers = self._layers(rank)
        ahead = data[:, None] + (forward[:, None] * layers[0]).astype(np.int64)
        back = (data + forward)[:, None] + (backprop[:, None] * layers[1]).astype(np.int64)
        ready = self._ready(data, forward, backprop)
        done = self.entered + 300 * US
        length = np.diff(self.begins)
        start = [0 * data, 0 * data, data, *ahead.T[:-1], back[:, 0], *back.T[:-1], *ready.T]
        end = [length, data, ahead[:, -1], *ahead.T[1:], back[:, -1], *back.T[1:], *done.T]
        start += [back[:, -1], done[:, -1]]
        end += [done[:, -1], length]
        base = self.begins[:-1, None]
        return base + np.stack(start, 1), base + np.stack(end, 1)

    def _layers(self, rank: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the bounds of the layers as shares, [forward or backprop, step, bound]."""
        noise = np.random.default_rng([rank, 1]).uniform(0.8, 1.2, (2, self.steps, LAYERS))
        ends = np.cumsum(noise, axis=2) / noise.sum(axis=2, keepdims=True)
        return np.concatenate([np.zeros((2, self.steps, 1)), ends], axis=2)

    def write(self, rank: int, folder: Path) -> None:
        """Write what a rank recorded."""
        process = Process(
            role="worker",
            rank=rank,
            world=self.ranks,
            local_rank=rank % 8,
            host=f"host{rank // 8:03}",
            clock_domain="boot",
            pid=1000 + rank,
            incarnation=rank,
            job="large",
            shard=None,
        )
        world = Communicator(0, "world", "world", list(range(self.ranks)))
        threads = (Thread(0, "MainThread"), Thread(1, "reductions", in_flight=True))
        side = SideTables(process=process, threads=threads, communicators=(world,), complete=True)
        name = make_stem("worker", rank, 1000 + rank) + TRACE_SUFFIX
        write_events(folder / name, self._table(rank), side)

    def _table(self, rank: int) -> pa.Table:
        start, end = (times.ravel() for times in self.times(rank))
        kinds, names = [row[0] for row in _ROWS], [row[1] for row in _ROWS]
        steps = np.repeat(np.arange(self.steps, dtype=np.int32), SPANS_A_STEP)
        call = np.tile(np.arange(SPANS_A_STEP) - FIRST_BUCKET, self.steps)
        is_no_call = (call < 0) | (call >= BUCKETS)
        columns = {
            "start_ns": start,
            "duration_ns": end - start,
            "type": self._to_dictionary(["span"] * SPANS_A_STEP),
            "kind": self._to_dictionary(kinds),
            "op": self._to_dictionary(
                ["allreduce" if kind == "reduction" else None for kind in kinds]
            ),
            "name": self._to_dictionary(names),
            "status": self._to_dictionary(["closed"] * SPANS_A_STEP),
            "thread": self._tiled([row[2] for row in _ROWS]),
            "depth": self._tiled([row[3] for row in _ROWS]),
            "step": steps,
            "communicator": pa.array(np.zeros(len(start), np.int32), mask=is_no_call),
            "seq": pa.array((steps * BUCKETS + call).astype(np.uint32), mask=is_no_call),
            "bytes": pa.array(np.full(len(start), 4 << 20), mask=is_no_call),
            "bucket": pa.array(call.astype(np.int32), mask=is_no_call),
        }
        arrays = [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(len(start), field.type)
            for field in EVENT_SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)

    def _to_dictionary(self, words: Sequence[str | None]) -> pa.Array[Any]:
        categories = sorted({word for word in words if word})
        codes = np.array([categories.index(word) if word else 0 for word in words], np.int8)
        absent = np.tile([word is None for word in words], self.steps)
        indexes = pa.array(np.tile(codes, self.steps), mask=absent)
        coded: pa.Array[Any] = pa.DictionaryArray.from_arrays(
            cast("Any", indexes), cast("Any", categories)
        )
        return coded

    def _tiled(self, values: list[int]) -> np.ndarray[Any, np.dtype[np.uint16]]:
        return np.tile(np.array(values, np.uint16), self.steps)
