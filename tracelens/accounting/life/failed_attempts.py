"""Why an attempt failed, in words: the rank that explains the others, its step, and how it failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.accounting.life.attempts import UNRECORDED
from tracelens.accounting.life.courses import Course
from tracelens.accounting.life.failures import (
    MAX_APART_OF_ECHO_NS,
    describe_end,
    find_failures,
)
from tracelens.distil.outline import list_outlines

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
    first_failure = failures[0]
    where = find_failed_step(trace, first_failure.process).text
    if is_common_failure(failures, attempt):
        return f"all {len(failures)} ranks failed{where}: {first_failure.text}"
    return f"rank {first_failure.rank} failed first{where}: {first_failure.text}"


def is_common_failure(failures: Sequence[Failure], attempt: Attempt) -> bool:
    """Return True if all ranks of an attempt raised the same exception at about the same time.

    Numbers in the message may differ, such as that of the rank.
    """
    failed_ranks = {failure.rank for failure in failures}
    if len(failed_ranks) < max(attempt.world, 2) or any(
        not failure.user_frame for failure in failures
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
    """The step in which a process failed, or after which; `text` says that as the end of a sentence."""

    step: int | None
    text: str


def find_failed_step(trace: Trace, process: int) -> FailedStep:
    """Return in or after which step a process failed; without a number and a text if unknown."""
    if process == UNRECORDED or process not in list_outlines(trace):
        return FailedStep(None, "")
    course = Course.read(trace, process)
    if course.begun_step is not None:
        return FailedStep(course.begun_step, f" in step {course.begun_step}")
    last_step = int(course.step[-1]) if len(course.step) else 0
    if course.has_recorded_steps and len(course.step):
        return FailedStep(last_step, f" after step {last_step}")
    if last_step:  # counted by calls: those before the first step may be of a step, too
        return FailedStep(last_step + 1, f" in about step {last_step + 1}")
    return FailedStep(None, "")
