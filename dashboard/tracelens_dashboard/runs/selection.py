"""A part of a run in addresses: its ranks and steps behind its id, ``0123456789ab~r0-3,7~s200-260``.

Every link within a run names the run, so that all pages show the same part. A run that is served alone
has no id: its parts are ``~r0-3``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tracelens.errors import InvalidArgument
from tracelens.model.choice import EVERYTHING, Choice

_KEY: Final = re.compile(r"([0-9a-f]{12}|)(?:~r([0-9,-]{1,200}))?(?:~s([0-9,-]{1,200}))?")


class Selection(NamedTuple):
    """A run's id, None if it is served alone, and which ranks and steps of it."""

    run_id: str | None
    choice: Choice = EVERYTHING

    @property
    def address_key(self) -> str | None:
        """What addresses call it; None for all of a run that is served alone."""
        ranks_and_steps = zip("rs", self.choice.text_by_option.values(), strict=False)
        parts = [f"~{letter}{ranges}" for letter, ranges in ranks_and_steps if ranges]
        return "".join([self.run_id or "", *parts]) or None

    def key_in_run(self, run_id: object) -> str | None:
        """Return the key of the same part of another run; None if that is no run's id."""
        other = read(run_id)
        return Selection(other.run_id, self.choice).address_key if other else None


def read(key: object) -> Selection | None:
    """Read what an address calls a run, or a part of it; None where that can be none."""
    # A key of None is a run that is served alone.
    match = _KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        return None if key is not None else Selection(run_id=None)
    try:
        return Selection(match[1] or None, Choice.parse(match[2], match[3]))
    except InvalidArgument:
        return None


def is_served_alone(key: str | None) -> bool:
    """Return True if a run, or the run of a part, has no id among others."""
    run_selection = read(key)
    return run_selection is None or run_selection.run_id is None
