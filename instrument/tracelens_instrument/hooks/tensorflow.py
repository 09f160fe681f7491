"""TensorFlow's parameter servers: workers and servers record what their own profiler sees.

Python code of a TensorFlow function runs only while it is traced, so nothing in Python can time its
steps. When the coordinator schedules the first step it writes down, as a plan, which variable lies on
which server, and when all are to profile for a moment; servers and workers then turn what they saw
into spans.
"""

from __future__ import annotations

import threading
from typing import Any

import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.environment import wanted_directory
from tracelens_instrument.hooks.base import guarded, note_attached
from tracelens_instrument.hooks.tensorflow_plan import Plan, has_plan, write_plan
from tracelens_instrument.hooks.tensorflow_profile import record_when_planned

__all__ = ["install"]

_ROLES = {"worker": "worker", "ps": "ps"}


def install(_tensorflow: Any) -> None:
    """Record every server, and every function that a coordinator schedules."""
    wrapt.wrap_function_wrapper(
        "tensorflow.python.training.server_lib", "Server.__init__", _make_server
    )
    wrapt.wrap_function_wrapper(
        "tensorflow.python.distribute.coordinator.cluster_coordinator",
        "ClusterCoordinator.schedule",
        _schedule,
    )


def _make_server(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    _begin(instance)


@guarded
def _begin(server: Any) -> None:
    """Be the rank that the server's job and number say, and wait for the plan."""
    from tensorflow.python.training.server_lib import ClusterSpec  # noqa: PLC0415 - only with TensorFlow

    definition = server.server_def
    role, number = _ROLES.get(definition.job_name), definition.task_index
    directory = wanted_directory()
    if role is None or directory is None:
        return
    cluster = ClusterSpec(definition.cluster)
    world = sum(cluster.num_tasks(job) for job in cluster.jobs if job in _ROLES)
    recorder.start(role=role, rank=number, world=world, shard=number if role == "ps" else None)
    recorder.instant(f"{definition.job_name} {number} is up")
    threading.Thread(
        target=record_when_planned, args=(directory, role, number), daemon=True
    ).start()


def _schedule(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    if args:
        _plan(args[0])
    return value


@guarded
def _plan(function: Any) -> None:
    """Write the plan, once for all."""
    directory = wanted_directory()
    traced = getattr(function, "_list_all_concrete_functions", None)
    if directory is None or traced is None or has_plan(directory):
        return
    graphs = [concrete.graph for concrete in traced()]
    if not graphs:
        return
    plan = Plan.of(graphs)
    write_plan(directory, plan)
    note_attached(f"TensorFlow's parameter servers with {len(plan.variables)} variables")
