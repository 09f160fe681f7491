"""Who ended a job from outside, by the journal of `record`."""

import pytest

from tracelens.accounting.life.orders import (
    MAX_TIME_TO_END_NS,
    describe_exit_code,
    describe_order,
)
from tracelens.schema.life import Ended, Entry, Exited, Launched, Signalled

S = 10**9
LAUNCHED = Launched(0, command="torchrun")


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        (
            (Signalled(S, "SIGINT", is_key=True), Ended(2 * S, 1)),
            "Ctrl-C in the terminal of `record`",
        ),
        ((Signalled(S, "SIGTERM"), Ended(2 * S, 1)), "`record` got SIGTERM"),
        (
            (Signalled(S, "SIGTERM", parent="timeout"), Ended(2 * S, 1)),
            "`record` got SIGTERM, and its parent is `timeout`",
        ),
        ((Ended(2 * S, 124),), "torchrun ended with exit code 124, as `timeout` does"),
        ((Ended(2 * S, 137),), "torchrun ended with exit code 137 (SIGKILL)"),
        ((Exited(S, code=-9), Ended(2 * S, 1)), None),
        ((Signalled(S, "SIGUSR1"), Ended(2 * S, 1)), None),
        ((Signalled(S, "SIGINT"), Exited(2 * S + MAX_TIME_TO_END_NS, code=-9)), None),
        ((Signalled(S, "SIGINT"), Ended(2 * S, 1), Launched(3 * S), Ended(4 * S, 1)), None),
    ],
)
def test_order_that_ended_a_job(entries: tuple[Entry, ...], order: str | None) -> None:
    assert describe_order((LAUNCHED, *entries)) == order


def test_timeout_as_the_command() -> None:
    assert describe_order((Launched(0, command="timeout"), Ended(S, 124))) == (
        "timeout ended with exit code 124"
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (137, "ended with exit code 137 (SIGKILL)"),
        (200, "ended with exit code 200"),
        (-15, "was killed by SIGTERM"),
        (-100, "was killed by signal 100"),
    ],
)
def test_exit_codes_are_named(code: int, text: str) -> None:
    assert describe_exit_code(code) == text
