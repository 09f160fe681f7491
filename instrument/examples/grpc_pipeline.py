"""A shard after PHub's example: keys cut into chunks, each chunk bound to a core, no barrier.

A worker and a shard hold one stream open in each direction. A chunk's gradient is aggregated by the core
that the chunk is bound to; when the last worker's copy is there it is optimised and sent back to all,
whatever other chunks do. Source: Luo et al., PHub, SoCC 2018, arXiv 1805.07891.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc_messages as wire
from grpc_state import Parameter

import tracelens as tl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults import Faults
    from mlp import Array

Key = tuple[int, int]  # variable, offset in bytes
CORES: Final = 2


class PipelinedShard:
    """Serves chunks."""

    def __init__(
        self, number: int, chunks: dict[Key, Array], workers: int, planted: Faults
    ) -> None:
        self._number = number
        self._workers = workers
        self._planted = planted
        self._parameters = {key: Parameter(weights) for key, weights in chunks.items()}
        self._core_of = {key: place % CORES for place, key in enumerate(sorted(chunks))}
        self._lines: list[queue.Queue[tuple[list[int], Array] | None]] = [
            queue.Queue() for _ in range(CORES)
        ]
        self._waiting: dict[Key, list[list[int]]] = {key: [] for key in chunks}
        self._out: dict[int, queue.Queue[bytes | None]] = {
            worker: queue.Queue() for worker in range(workers)
        }
        self._receive, self._aggregate, self._apply, self._reply = (
            tl.span(op, kind="ps", op=op, shard=number)
            for op in ("receive", "aggregate", "apply", "reply")
        )

    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """What can be called."""
        return {wire.EXCHANGE: grpc.stream_stream_rpc_method_handler(self._exchange)}

    def run(self) -> None:
        """Be all cores until `stop`."""
        others = [threading.Thread(target=self._core, args=(core,)) for core in range(1, CORES)]
        for thread in others:
            thread.start()
        self._core(0)
        for thread in others:
            thread.join()

    def stop(self) -> None:
        """Let `run` end."""
        for line in self._lines:
            line.put(None)

    def _exchange(self, stream: Iterator[bytes], context: Any) -> Iterator[bytes]:
        worker = wire.read_headers(context)["worker"]
        receiver = threading.Thread(target=self._take, args=(stream, worker), daemon=True)
        receiver.start()
        while (message := self._out[worker].get()) is not None:
            yield message
        receiver.join()

    def _take(self, stream: Iterator[bytes], worker: int) -> None:
        try:
            self._receive_all(stream)
        except Exception as error:  # noqa: BLE001 - gRPC raises a plain one when a worker is gone
            print(f"shard {self._number}: worker {worker} is gone ({error})")
        finally:
            self._out[worker].put(None)

    def _receive_all(self, stream: Iterator[bytes]) -> None:
        for message in stream:
            head, gradient = wire.unpack_chunk(message)
            key = head[3], head[4]
            line = self._lines[self._core_of[key]]
            with self._receive(
                queue_depth=line.qsize(), nbytes=gradient.nbytes, key=head[3], **_values(head)
            ):
                line.put((head, gradient))

    def _core(self, core: int) -> None:
        while (arrived := self._lines[core].get()) is not None:
            self._serve(*arrived)

    def _serve(self, head: list[int], gradient: Array) -> None:
        key = head[3], head[4]
        parameter, waiting = self._parameters[key], self._waiting[key]
        values = {"nbytes": gradient.nbytes, "key": head[3]}
        with self._aggregate(**values, **_values(head)):
            waiting.append(head)
            complete = parameter.aggregate(gradient) == self._workers
        if not complete:
            return
        with self._apply(**values, **_values(head)):
            parameter.apply()
            self._planted.slow_down(self._number, "update", head[1])
        for asked in waiting:
            with self._reply(**values, **_values(asked)):
                self._out[asked[0]].put(wire.pack_chunk(asked, parameter.weights))
        waiting.clear()


def _values(head: list[int]) -> dict[str, int]:
    return {"peer": head[0], "step": head[1], "request": head[2]}
