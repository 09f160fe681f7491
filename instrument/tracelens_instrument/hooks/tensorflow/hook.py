"""TensorFlow's parameter servers: workers and servers record what their own profiler sees.

Python code of a TensorFlow function runs only while it is traced, so nothing in Python can time its
steps. When the coordinator schedules the first step it writes down, as a plan, which variable lies on
which server, and when all are to profile for a moment; servers and workers then turn what they saw
into spans.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.environment import wanted_directory
from tracelens_instrument.core.failures import warn_once
from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.tensorflow import sessions
from tracelens_instrument.hooks.tensorflow.plan import Plan, has_plan, read_plan, write_plan
from tracelens_instrument.hooks.tensorflow.sessions import SESSIONS
from tracelens_instrument.hooks.tensorflow.spans import Event, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_instrument.hooks.tensorflow.spans import ProfiledSpan

__all__ = ["HOST_LEVEL", "LOOK_EVERY_S", "install", "record_when_planned"]

LOOK_EVERY_S: Final = 0.1
HOST_LEVEL: Final = 2  # steps, operations, and what waits for tensors
_ROLES = {"worker": "worker", "ps": "ps"}


@guarded
def record_when_planned(directory: Path, role: str, task_index: int) -> None:
    """Wait for the plan in the trace folder, profile this worker or server, record: a thread's body."""
    while (plan := read_plan(directory)) is None:
        time.sleep(LOOK_EVERY_S)
    SESSIONS.plan = plan
    time.sleep(max(plan.begin_ns - time.time_ns(), 0) / 1e9)
    with tempfile.TemporaryDirectory() as profile_folder:
        wall_minus_monotonic_ns = time.time_ns() - now()
        _profile(profile_folder, plan)
        (profile_path,) = Path(profile_folder).rglob("*.xplane.pb")
        events = list(_read_events(profile_path.read_bytes(), wall_minus_monotonic_ns))
    for span in spans_of(events, role, task_index, plan, tuple(SESSIONS.recent_runs)):
        _record_span(span)
    recorder.stop()  # nothing more will come, and servers are ended by being killed


def _profile(folder: str, plan: Plan) -> None:
    from tensorflow import profiler  # noqa: PLC0415 - only with TensorFlow

    options = profiler.experimental.ProfilerOptions(
        host_tracer_level=HOST_LEVEL, python_tracer_level=0, device_tracer_level=0
    )
    profiler.experimental.start(folder, options=options)
    time.sleep(max(plan.end_ns - time.time_ns(), 0) / 1e9)
    profiler.experimental.stop()


def _read_events(serialized: bytes, wall_minus_monotonic_ns: int) -> Iterator[Event]:
    """Read the events of a serialized profile (an XSpace); their times become monotonic ones."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import (  # noqa: PLC0415 - only with TensorFlow
        XSpace,
    )

    space = XSpace()
    space.ParseFromString(serialized)
    profile_begin_ns = _find_profile_begin_ns(space) - wall_minus_monotonic_ns
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                start_ns = profile_begin_ns + line.timestamp_ns + event.offset_ps // 1000
                yield Event(
                    thread_key=(plane.id, line.id),
                    name=plane.event_metadata[event.metadata_id].name,
                    start_ns=start_ns,
                    end_ns=start_ns + event.duration_ps // 1000,
                    stats={
                        plane.stat_metadata[stat.metadata_id].name: _stat_value(plane, stat)
                        for stat in event.stats
                    },
                )


def _find_profile_begin_ns(space: Any) -> int:
    """Return the wall-clock time to which a profile's times are relative, ns."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    raise ValueError("the profile does not say when it began")


def _stat_value(plane: Any, stat: Any) -> Any:
    which = stat.WhichOneof("value")
    return (
        plane.stat_metadata[stat.ref_value].name if which == "ref_value" else getattr(stat, which)
    )


def _record_span(span: ProfiledSpan) -> None:
    handle = recorder.span(span.name, kind=span.kind, op=span.op, shard=span.shard)
    track = None if span.lane is None else recorder.track(f"requests {span.lane}")
    handle.complete(span.start_ns, span.end_ns, track, **span.values)


def install(_tensorflow: Any) -> None:
    """Record every server, and every function that a coordinator schedules."""
    wrapt.wrap_function_wrapper(
        "tensorflow.python.training.server_lib", "Server.__init__", _around_server
    )
    wrapt.wrap_function_wrapper(
        "tensorflow.python.distribute.coordinator.cluster_coordinator",
        "ClusterCoordinator.schedule",
        _around_schedule,
    )
    sessions.install()


def _around_server(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    _record_server(instance)


@guarded
def _record_server(server: Any) -> None:
    """Record this server of a cluster: rank and role from its job and number, spans by the plan."""
    from tensorflow.python.training.server_lib import ClusterSpec  # noqa: PLC0415 - only with TensorFlow

    server_definition = server.server_def
    role, task_index = _ROLES.get(server_definition.job_name), server_definition.task_index
    directory = wanted_directory()
    if role is None:
        warn_once(
            f"TensorFlow's job {server_definition.job_name!r} is not recorded: only jobs named "
            "'worker' and 'ps' are"
        )
    if role is None or directory is None:
        return
    cluster = ClusterSpec(server_definition.cluster)
    world = sum(cluster.num_tasks(job) for job in cluster.jobs if job in _ROLES)
    recorder.start(
        role=role, rank=task_index, world=world, shard=task_index if role == "ps" else None
    )
    recorder.instant(f"{server_definition.job_name} {task_index} is up")
    threading.Thread(
        target=record_when_planned, args=(directory, role, task_index), daemon=True
    ).start()


def _around_schedule(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    if args:
        _write_plan_once(args[0])
    return value


@guarded
def _write_plan_once(function: Any) -> None:
    """Write the plan for what the graphs of a TensorFlow function exchange, once for all processes."""
    directory = wanted_directory()  # the trace folder
    list_concrete_functions = getattr(function, "_list_all_concrete_functions", None)
    if directory is None or list_concrete_functions is None or has_plan(directory):
        return
    graphs = [concrete_function.graph for concrete_function in list_concrete_functions()]
    if not graphs:
        return
    plan = Plan.from_graphs(graphs)
    write_plan(directory, plan)
    note_attached(f"TensorFlow's parameter servers with {len(plan.variable_names)} variables")
