"""What is true of every report: time that did not pass is 0, and losses add up to all that was lost."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tracelens.reports import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Report
    from tracelens.model.verdict import Ledger

LEAST: Final = -1e-9  # share: what is less is no rounding
SIGNED: Final = {
    "offset_ns": "how far a host's clock is ahead of the first host's",
}
_NEGATIVE: Final = re.compile(
    "(?<![\\w.])[-\N{MINUS SIGN}]\\d[\\d.,]*\\s?(?:ns|us|µs|ms|s|min|h)\\b"
)


def negative(value: Any, where: str = "report") -> Iterator[str]:
    """Yield the places of durations below zero, as numbers or in sentences, at any depth."""
    if isinstance(value, dict):
        for name, entry in value.items():
            path = f"{where}.{name}"
            is_duration = name.endswith("_ns") and name not in SIGNED
            if is_duration and isinstance(entry, int | float) and entry < 0:
                yield f"{path}: {entry}"
            yield from negative(entry, path)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from negative(entry, f"{where}[{number}]")
    elif isinstance(value, str) and _NEGATIVE.search(value):
        yield f"{where}: {value}"


def check_durations(found: Report) -> None:
    """Hold that none is negative anywhere in a report."""
    assert list(negative(json.loads(to_json.render(found)))) == []


def check_ledger(report: Report) -> Ledger:
    """Hold a ledger against what must be true of any."""
    ledger = report.ledger
    assert ledger
    assert ledger.useful + sum(loss.share for loss in ledger.losses) == pytest.approx(1, abs=1e-9)
    assert ledger.useful >= LEAST
    assert min((loss.share for loss in ledger.losses), default=0.0) >= LEAST
    for loss in ledger.losses:
        assert (loss.finding is not None) == (loss.cause == "finding")
        assert loss.finding is None or report.findings[loss.finding]
    return ledger
