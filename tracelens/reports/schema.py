"""The JSON Schema of the report, and what of a report does not keep to it.

The kinds of findings in docs/report.schema.json are those of `tracelens.model.findings`; after a change
there, `python -m tracelens.reports.schema` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

from jsonschema import Draft202012Validator

from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import Pattern
from tracelens.model.result import REPORT_FORMAT
from tracelens.model.trace import ALIGNMENT_METHODS
from tracelens.model.verdict import Cause

_NAME: Final = "report.schema.json"
_MAX_ROUNDING_ERROR: Final = 1e-6
_MAX_CHARACTERS_SHOWN: Final = 200


def report_schema() -> dict[str, Any]:
    """Load the schema, which is in this folder where TraceLens is installed, in docs/ in a checkout."""
    schema: dict[str, Any] = json.loads(_find_file().read_text(encoding="utf-8"))
    return schema


def generate_schema() -> str:
    """Return the text of docs/report.schema.json, with the words that the code knows."""
    schema = report_schema()
    finding = schema["$defs"]["finding"]["properties"]
    finding["kind"]["enum"] = list(KINDS)
    finding["pattern"]["enum"] = [*get_args(Pattern), None]
    schema["$defs"]["loss"]["properties"]["cause"]["enum"] = list(get_args(Cause))
    schema["properties"]["clock"]["properties"]["method"]["enum"] = list(ALIGNMENT_METHODS)
    return json.dumps(schema, indent=2) + "\n"


def _find_file() -> Path:
    folder = Path(__file__).parent
    candidates = (folder / _NAME, folder.parents[1] / "docs" / _NAME)
    return next(path for path in candidates if path.exists())


def find_problems(report: Any) -> list[str]:
    """Return a sentence for each violation of format 2 or 3 by a report, as loaded from JSON."""
    # Only a report that keeps to the schema is checked for what a schema cannot say.
    current_report = _to_current_format(report)
    violations = Draft202012Validator(report_schema()).iter_errors(current_report)
    sentences = [
        f"{violation.json_path}: {violation.message[:_MAX_CHARACTERS_SHOWN]}"
        for violation in sorted(violations, key=lambda violation: violation.json_path)
    ]
    if sentences:
        return sentences
    return _check_shares(current_report["efficiency"]) + _check_losses(current_report["ledger"])


def _to_current_format(report: Any) -> Any:
    """Return a report of format 2, or an older one of format 3, as reports are written now."""
    # Format 2 had a table `background`, and the verdict "faults"; both lacked `efficiency.devices`.
    match report:
        case {"format": "tracelens.report/2", "tables": {"background": _, **tables}}:
            verdict = "fault" if report.get("verdict") == "faults" else report.get("verdict")
            changes = {"format": REPORT_FORMAT, "tables": tables, "verdict": verdict}
            return _to_current_format(report | changes)
        case {"efficiency": {**efficiency}}:
            return report | {"efficiency": {"devices": None} | efficiency}
    return report


def _check_shares(efficiency: dict[str, Any] | None) -> list[str]:
    """Return the problem, which no schema can state, that shares do not sum to 1; else nothing."""
    if efficiency is None:
        return []
    total_share = efficiency["achieved"] + sum(bar["share"] for bar in efficiency["waterfall"])
    if abs(total_share - 1) <= _MAX_ROUNDING_ERROR:
        return []
    sum_text = f"sum to {total_share:.6f}, expected 1"
    return [f"$.efficiency: achieved and the shares of the waterfall {sum_text}"]


def _check_losses(ledger: dict[str, Any] | None) -> list[str]:
    """Check that every loss is accounted for once."""
    if ledger is None:
        return []
    total = ledger["useful"] + sum(loss["share"] for loss in ledger["losses"])
    if abs(total - 1) <= _MAX_ROUNDING_ERROR:
        return []
    return [f"$.ledger: useful and the shares of losses sum to {total:.6f}, expected 1"]


if __name__ == "__main__":
    _find_file().write_text(generate_schema(), encoding="utf-8")
