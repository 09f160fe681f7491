"""A report without the analyses' results, as JSON: written and read again without loss."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tracelens.analyses.result import Efficiency, Finding, Report, Share, Summary
from tracelens.schema.light_json import loads
from tracelens.trace import Alignment, HostClock, Note

if TYPE_CHECKING:
    from pathlib import Path


def save(report: Report, file: Path) -> None:
    """Write a report; numbers that JSON lacks are written as Python reads them."""
    file.write_text(json.dumps(asdict(replace(report, results={})), default=_plain))


def load(file: Path) -> Report:
    """Read what `save` wrote."""
    row = loads(file.read_text())
    clock, efficiency = row["clock"], row["efficiency"]
    hosts = (HostClock(**_fixed(host)) for host in clock["hosts"])
    return Report(
        summary=Summary(**row["summary"]),
        clock=Alignment(clock["method"], tuple(hosts)),
        efficiency=_efficiency(efficiency) if efficiency else None,
        findings=tuple(Finding(**_fixed(finding)) for finding in row["findings"]),
        notes=tuple(Note(**note) for note in row["notes"]),
    )


def _efficiency(row: dict[str, Any]) -> Efficiency:
    return Efficiency(**(row | {"waterfall": tuple(Share(**bar) for bar in row["waterfall"])}))


def _fixed(row: dict[str, Any]) -> dict[str, Any]:
    """Give a record its tuples back."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else list(value)
