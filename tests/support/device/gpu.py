"""What tests and programs on a machine with a GPU share; needs no more than recording does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.imports import LateModule, skip_without

if TYPE_CHECKING:
    from pathlib import Path

skip_without("torch")
torch: Any = LateModule("torch")

gpu = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # PyTorch warns of prototypes, and of devices it guesses
    pytest.mark.skipif(
        "not __import__('torch').cuda.is_available()", reason="this machine has no CUDA device"
    ),
]
DRIFT = 1e-4  # no clock is worse


@dataclass(frozen=True)
class OnHost:
    """When something ran on the device, by the host's clock, and how sure that is."""

    start_ns: int
    end_ns: int
    uncertainty_ns: int


@dataclass(frozen=True)
class Part:
    """One process of a trace: its events, and its side tables."""

    events: list[dict[str, Any]]
    side: dict[str, Any]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] == name]

    @property
    def timed(self) -> list[dict[str, Any]]:
        """The events with device times."""
        return [event for event in self.events if event["device_start_ns"] is not None]

    @property
    def readings(self) -> list[dict[str, Any]]:
        """The anchors that tie the device's clock to the host's."""
        return [reading for reading in self.side["clocks"] if reading["method"] == "device"]

    def on_host(self, event: dict[str, Any]) -> OnHost:
        """Map an event's device times by the nearest anchor alone; the analyzer does better."""
        start, length = event["device_start_ns"], event["device_duration_ns"]

        def blur(reading: dict[str, Any]) -> float:
            away = abs(reading["monotonic_ns"] - reading["offset_ns"] - start)
            return float(reading["window_ns"] / 2 + away * DRIFT)

        best = min(self.readings, key=blur)
        begin = start + best["offset_ns"]
        return OnHost(begin, begin + length, round(blur(best)))


def read(folder: Path) -> list[Part]:
    """Read the finished processes of a trace folder."""
    return [_read(path) for path in sorted(folder.glob("*.arrow"))]


def _read(path: Path) -> Part:
    table = pa.ipc.open_file(str(path)).read_all()
    return Part(table.to_pylist(), json.loads(table.schema.metadata[b"tracelens"]))


def overlap_ns(first: list[OnHost], second: list[OnHost]) -> int:
    """How long both run at the same time; neither overlaps itself."""
    overlaps_ns = [
        min(one.end_ns, two.end_ns) - max(one.start_ns, two.start_ns)
        for one in first
        for two in second
    ]
    return sum(length for length in overlaps_ns if length > 0)
