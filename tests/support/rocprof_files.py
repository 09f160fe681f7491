"""Writes rocprofv3's JSON as its own writer does: records that point into lists of strings."""

from __future__ import annotations

import json
from typing import Any, Final

BEGIN_NS: Final = 4_000_000_000_000  # since the host was started
STEP_MS: Final = 40
_MS: Final = 1_000_000
_KINDS: Final[dict[str, list[str]]] = {
    "NONE": [],
    "HIP_RUNTIME_API": ["hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"],
    "KERNEL_DISPATCH": ["KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_COMPLETE"],
    "MEMORY_COPY": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"],
    "MARKER_CORE_API": ["roctxMarkA", "roctxRangePushA"],
    "RCCL_API": ["ncclAllReduce", "ncclGroupStart"],
}
_KERNELS: Final = ("gemm_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "adam")


class RocprofFile:
    """A file of one process, to which records are added."""

    def __init__(self, pid: int = 4711, host: str = "node0") -> None:
        self.pid, self.host = pid, host
        self.records: dict[str, list[dict[str, Any]]] = {
            name: []
            for name in (
                *("kernel_dispatch", "hip_api", "hsa_api", "marker_api", "rccl_api"),
                *("memory_copy", "memory_allocation", "scratch_memory"),
            )
        }
        self.messages: list[dict[str, Any]] = []
        self.used = 0

    def record(
        self, what: str, kind: str, operation: str, begin_ms: float, end_ms: float, **more: Any
    ) -> int:
        """Add a record; return its number."""
        self.used += 1
        number = more.pop("number", self.used)
        base = {
            "size": 48,
            "kind": list(_KINDS).index(kind),
            "operation": _KINDS[kind].index(operation),
            "correlation_id": {"internal": number, "external": 0},
            "start_timestamp": BEGIN_NS + round(begin_ms * _MS),
            "end_timestamp": BEGIN_NS + round(end_ms * _MS),
            "thread_id": self.pid,
        }
        self.records[what].append(base | more)
        return int(number)

    def range(self, name: str, begin_ms: float, end_ms: float) -> None:
        """Add a range of ROCTx."""
        number = self.record("marker_api", "MARKER_CORE_API", "roctxRangePushA", begin_ms, end_ms)
        self.messages.append({"key": number, "value": name})

    def kernel(self, name: str, called_ms: float, begin_ms: float, end_ms: float) -> None:
        """Add a kernel, and the call that launched it."""
        number = self.record(
            "hip_api", "HIP_RUNTIME_API", "hipLaunchKernel", called_ms, called_ms + 0.01
        )
        info = {
            "size": 72,
            "agent_id": {"handle": 17},
            "queue_id": {"handle": 1 + ("nccl" in name)},
            "kernel_id": 1 + _KERNELS.index(name),
            "dispatch_id": number,
        }
        dispatch = {"dispatch_info": info, "number": number, "stream_id": {"handle": 0}}
        self.record(
            "kernel_dispatch",
            "KERNEL_DISPATCH",
            "KERNEL_DISPATCH_COMPLETE",
            begin_ms,
            end_ms,
            **dispatch,
        )

    def copy(self, begin_ms: float, end_ms: float, nbytes: int) -> None:
        """Add a copy to the device."""
        agents = {"src_agent_id": {"handle": 1}, "dst_agent_id": {"handle": 17}, "bytes": nbytes}
        self.record(
            "memory_copy", "MEMORY_COPY", "MEMORY_COPY_HOST_TO_DEVICE", begin_ms, end_ms, **agents
        )

    def content(self) -> dict[str, Any]:
        """Return the document."""
        symbols = [
            {
                "size": 80,
                "kernel_id": number,
                "kernel_name": f"{name}.kd",
                "formatted_kernel_name": name,
            }
            for number, name in enumerate(("", *_KERNELS))
        ]
        tool = {
            "metadata": {
                "node": {"hostname": self.host},
                "pid": self.pid,
                "init_time": BEGIN_NS,
                "fini_time": BEGIN_NS + 10**12,
                "config": {},
                "command": ["python", "train.py"],
            },
            "agents": [{"id": {"handle": 17}, "type": 2}],
            "counters": [],
            "strings": {
                "callback_records": [],
                "buffer_records": [{"kind": k, "operations": o} for k, o in _KINDS.items()],
                "marker_api": self.messages,
            },
            "kernel_symbols": symbols,
            "callback_records": {"counter_collection": []},
            "buffer_records": self.records,
        }
        return {"rocprofiler-sdk-tool": [tool]}

    def written(self) -> bytes:
        """Return the file, over many lines as rocprofv3 writes it."""
        return json.dumps(self.content(), indent=1).encode()


def training(
    steps: int = 6,
    *,
    slow_ms: float = 0.0,
    host: str = "node0",
    pid: int = 4711,
    ranges: bool = True,
) -> RocprofFile:
    """Return a rank's training; `slow_ms` is added to its backward pass."""
    file = RocprofFile(pid, host)
    for step in range(steps):
        at_ms = step * STEP_MS
        if ranges:
            file.range(f"step {step}", at_ms, at_ms + 39)
            file.range("forward", at_ms + 0.5, at_ms + 3)
            file.range("backward", at_ms + 3.1, at_ms + 6)
            file.range("optimizer", at_ms + 6.1, at_ms + 8)
        file.copy(at_ms + 0.1, at_ms + 0.4, 1 << 20)
        file.kernel(_KERNELS[0], at_ms + 1, at_ms + 1.5, at_ms + 8)
        file.kernel(_KERNELS[0], at_ms + 4, at_ms + 8, at_ms + 18 + slow_ms)
        file.kernel(_KERNELS[1], at_ms + 5, at_ms + 18.1 + slow_ms, at_ms + 34)
        file.kernel(_KERNELS[2], at_ms + 7, at_ms + 34.1, at_ms + 38)
        file.record("hip_api", "HIP_RUNTIME_API", "hipDeviceSynchronize", at_ms + 8, at_ms + 38.5)
    return file
