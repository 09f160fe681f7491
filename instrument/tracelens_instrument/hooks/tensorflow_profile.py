"""In a server or worker of TensorFlow: profile during the planned window, and record what was seen."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens_instrument import recorder
from tracelens_instrument.clock import now
from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.tensorflow_plan import read_plan
from tracelens_instrument.hooks.tensorflow_spans import Event, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_instrument.hooks.tensorflow_plan import Plan
    from tracelens_instrument.hooks.tensorflow_spans import Seen

__all__ = ["record_when_planned"]

LOOK_EVERY_S: Final = 0.1
HOST_LEVEL: Final = 2  # steps, operations, and what waits for tensors


@guarded
def record_when_planned(directory: Path, role: str, number: int) -> None:
    """Wait for the plan, profile, record: the body of a thread of its own."""
    while (plan := read_plan(directory)) is None:
        time.sleep(LOOK_EVERY_S)
    time.sleep(max(plan.begin_ns - time.time_ns(), 0) / 1e9)
    with tempfile.TemporaryDirectory() as folder:
        wall_minus_monotonic = time.time_ns() - now()
        _profile(folder, plan)
        (file,) = Path(folder).rglob("*.xplane.pb")
        events = list(_events(file.read_bytes(), wall_minus_monotonic))
    for seen in spans_of(events, role, number, plan):
        _record(seen)
    recorder.stop()  # nothing more will come, and servers are ended by being killed


def _profile(folder: str, plan: Plan) -> None:
    from tensorflow import profiler  # noqa: PLC0415 - only with TensorFlow

    options = profiler.experimental.ProfilerOptions(
        host_tracer_level=HOST_LEVEL, python_tracer_level=0, device_tracer_level=0
    )
    profiler.experimental.start(folder, options=options)
    time.sleep(max(plan.end_ns - time.time_ns(), 0) / 1e9)
    profiler.experimental.stop()


def _events(serialized: bytes, wall_minus_monotonic: int) -> Iterator[Event]:
    """Read a profile; times become those of the monotonic clock."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import (  # noqa: PLC0415 - only with TensorFlow
        XSpace,
    )

    space = XSpace()
    space.ParseFromString(serialized)
    began = _began(space)
    for plane in space.planes:
        for line in plane.lines:
            base = began + line.timestamp_ns - wall_minus_monotonic
            for event in line.events:
                start = base + event.offset_ps // 1000
                yield Event(
                    line=(plane.id, line.id),
                    name=plane.event_metadata[event.metadata_id].name,
                    start_ns=start,
                    end_ns=start + event.duration_ps // 1000,
                    about={
                        plane.stat_metadata[stat.metadata_id].name: _value(plane, stat)
                        for stat in event.stats
                    },
                )


def _began(space: Any) -> int:
    """Return the wall-clock time to which a profile's times are relative, ns."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    raise ValueError("the profile does not say when it began")


def _value(plane: Any, stat: Any) -> Any:
    which = stat.WhichOneof("value")
    return (
        plane.stat_metadata[stat.ref_value].name if which == "ref_value" else getattr(stat, which)
    )


def _record(seen: Seen) -> None:
    handle = recorder.span(seen.name, kind=seen.kind, op=seen.op, shard=seen.shard)
    track = None if seen.lane is None else recorder.track(f"requests {seen.lane}")
    handle.complete(seen.start_ns, seen.end_ns, track, **seen.values)
