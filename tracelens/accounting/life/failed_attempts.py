"""Why an attempt failed, in words: the rank that explains the others, its step, and how it failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from tracelens.accounting.life.attempts import UNRECORDED
from tracelens.accounting.life.connections import (
    describe_connection_failures,
    is_connection_failure,
)
from tracelens.accounting.life.courses import Course
from tracelens.accounting.life.failures import (
    MAX_APART_OF_ECHO_NS,
    describe_end,
    find_failures,
)
from tracelens.distil.outline import list_outlines
from tracelens.model import fmt
from tracelens.model.columns import FOREVER
from tracelens.model.inert import clean
from tracelens.schema.vocabulary import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.life.attempts import Attempt
    from tracelens.accounting.life.failures import Failure
    from tracelens.model.trace import Trace

_NUMBER: Final = re.compile(r"\d+")


def describe_failure(trace: Trace, attempt: Attempt) -> str | None:
    """Describe in words how an attempt failed; None if it did not."""
    if not attempt.lives:
        return "the command failed before anything was recorded"
    failures = find_failures(trace, attempt)
    if not failures:
        return None
    if all(failure.is_ordered for failure in failures):
        return f"its ranks were {describe_end(failures)}"
    if could_not_connect(trace, failures):
        seen_ranks = {life.rank for life in attempt.lives}
        absent_ranks = [rank for rank in range(attempt.world) if rank not in seen_ranks]
        obstacles = filter(is_connection_failure, failures)
        return describe_connection_failures(obstacles, absent_ranks)
    first_failure = failures[0]
    where = find_failed_step(trace, first_failure.process).text
    if is_common_failure(failures, attempt):
        return f"all {len(failures)} ranks failed{where}: {first_failure.text}"
    return f"rank {first_failure.rank} failed first{where}: {first_failure.text}"


def could_not_connect(trace: Trace, failures: Sequence[Failure]) -> bool:
    """Return True if an attempt failed at its start because its ranks could not connect."""
    own_failures = [failure for failure in failures if not failure.is_ordered]
    return (
        bool(own_failures)
        and all(is_connection_failure(failure) for failure in own_failures)
        and not any(_has_progressed(trace, failure.process) for failure in failures)
    )


def _has_progressed(trace: Trace, process: int) -> bool:
    """Return True if a process completed a step or a collective."""
    if process == UNRECORDED or process not in list_outlines(trace):
        return False
    course = Course.read(trace, process)
    has_steps = bool(len(course.step)) or course.begun_ns is not None
    return has_steps or _find_last_call(trace, process) is not None


def is_common_failure(failures: Sequence[Failure], attempt: Attempt) -> bool:
    """Return True if all ranks of an attempt raised the same exception at about the same time.

    Numbers in the message may differ, such as that of the rank. The same exit code of ranks that left
    no recording counts, too.
    """
    failed_ranks = {failure.rank for failure in failures}
    if len(failed_ranks) < max(attempt.world, 2) or any(
        not failure.user_frame and failure.process != UNRECORDED for failure in failures
    ):
        return False
    times_ns = [failure.at_ns for failure in failures]
    exceptions = {
        (failure.cause, failure.user_frame, _NUMBER.sub("", failure.message))
        for failure in failures
    }
    is_at_once = max(times_ns) - min(times_ns) <= MAX_APART_OF_ECHO_NS
    return len(exceptions) == 1 and is_at_once and not failures[0].is_ordered


class FailedStep(NamedTuple):
    """The step in which a process failed, or after which; `text` says that as the end of a sentence.

    If nothing marked its steps, `step` is null, and the text names its last call.
    """

    step: int | None
    text: str


def find_failed_step(trace: Trace, process: int) -> FailedStep:
    """Return in or after which step a process failed; without a number and a text if unknown."""
    if process == UNRECORDED:
        return FailedStep(None, " before anything was recorded")
    if process not in list_outlines(trace):
        return FailedStep(None, "")
    course = Course.read(trace, process)
    if course.begun_step is not None:
        return FailedStep(course.begun_step, f" in step {course.begun_step}")
    if course.has_recorded_steps and len(course.step):
        last_step = int(course.step[-1])
        return FailedStep(last_step, f" after step {last_step}")
    last_call = _find_last_call(trace, process)
    return FailedStep(None, "" if last_call is None else describe_last_call(last_call))


class LastCall(NamedTuple):
    """The collective with the highest number that a process completed, and its communicator's name."""

    seq: int
    op: str
    communicator: str


def describe_last_call(call: LastCall) -> str:
    """Describe after which call a process failed, as the end of a sentence."""
    count = fmt.count(call.seq + 1, "call")
    last = "" if call.seq == 0 else "the last one "
    return f" after {count} in '{clean(call.communicator)}', {last}{call.op}"


def _find_last_call(trace: Trace, process: int) -> LastCall | None:
    """Return the last completed call of a process, in the communicator of most calls; None without."""
    names = ("end_ns", "type", "op", "status", "communicator", "seq")
    columns = trace.source.read_columns(process, names)
    index, seq = columns.number_column("communicator"), columns.number_column("seq")
    operation = columns.word_column("op")
    is_completed = columns.is_span & (columns.number_column("end_ns") != FOREVER)
    is_completed &= ~columns.word_column("status").is_in(["exception"])
    is_call = is_completed & operation.is_in(COLLECTIVES) & (index >= 0) & (seq >= 0)
    rows = np.flatnonzero(is_call)
    if not len(rows):
        return None
    row = rows[np.argmax(seq[rows])]
    uid = columns.communicator_uids[index[row]]
    groups = trace.communicators.filter(pl.col("communicator").cast(pl.String) == uid)
    name = groups["name"][0] if groups.height else uid
    return LastCall(int(seq[row]), operation.vocabulary[operation.codes[row]], name)
