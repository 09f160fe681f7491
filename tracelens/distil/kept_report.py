"""A report kept with its trace, so that a second question costs next to nothing.

It is found only if the trace is as it was, if it was made by this very code, and if it is of the same
part of the run: what one version says is never shown by another, nor the report of a part for that of
the run. It stands where an index of the trace would stand, or does (`index.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens import plugins
from tracelens.distil import places
from tracelens.model.choice import EVERYTHING
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.model.notes import Note
from tracelens.model.result import DeviceShares, Efficiency, LifeShares, Report, Share, Summary
from tracelens.model.trace import Alignment, HostClock
from tracelens.model.verdict import Ledger, Loss, Verdict
from tracelens.schema.json_text import loads
from tracelens.schema.ownership import is_ours

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tracelens.model.choice import Choice
    from tracelens.model.result import Result

__all__ = ["find", "keep", "load_report", "save_report"]

_PREFIX: Final = "report-"
_REPORT: Final = "report.json"
_SUFFIX: Final = ".arrow"
MOST_PARTS: Final = 8  # reports of parts of a run


@dataclass(frozen=True, eq=False)
class KeptTables(DisplayMixin):
    """The tables of a stored report; its findings are in the report itself."""

    tables: Mapping[str, pl.DataFrame]
    findings: tuple[Finding, ...] = field(default=())


def find(trace: Path, choice: Choice = EVERYTHING) -> Report | None:
    """Return the report of a trace as it is now; None if none is kept, or none that is whole.

    Args:
        trace: The trace folder.
        choice: Of which part of it, as it was asked for.
    """
    state = _name_state(trace)
    if state is None:
        return None
    report_name = _name_folder(state, choice)
    for directory in places.list_index_directories(trace):
        folder = directory / report_name
        if is_ours(directory) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError, ValueError, LookupError, TypeError, pl.exceptions.PolarsError):
                return _read(folder)
    return None


def keep(trace: Path, report: Report, choice: Choice = EVERYTHING) -> None:
    """Keep a report, in place of those of another state; does nothing where nothing can be kept.

    Of parts of a run only the latest few are kept.
    """
    state = _name_state(trace)
    if state is None:
        return
    for directory in places.list_directories_to_keep(trace):
        with suppress(OSError), places.lock_directory(directory):
            _write(directory / _name_folder(state, choice), report)
            _clear(directory, state)
            return


def _clear(directory: Path, state: str) -> None:
    """Remove reports of other states of a trace, and of parts of the run but the latest few.

    `state` is the name of the folder with the report of the whole run; those of parts are `state-...`.
    """
    other_folders = [folder for folder in directory.glob(f"{_PREFIX}*") if folder.name != state]
    folders_of_parts = [folder for folder in other_folders if folder.name.startswith(f"{state}-")]
    folders_of_parts.sort(key=lambda folder: folder.stat().st_mtime_ns)
    for folder in other_folders:
        if folder not in folders_of_parts[-MOST_PARTS:]:
            shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path) -> Report:
    tables = {
        file.name.removesuffix(_SUFFIX).partition("-")[2]: pl.read_ipc(file)
        for file in sorted(folder.glob(f"*{_SUFFIX}"))
    }
    return load_report(folder / _REPORT, {"kept": KeptTables(tables)})


def _write(folder: Path, report: Report) -> None:
    """Write to a draft and rename it, so that an existing report is complete."""
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=folder.parent))
    try:
        for number, (name, table) in enumerate(report.tables.items()):
            table.write_ipc(draft / f"{number:02}-{name}{_SUFFIX}")
        save_report(report, draft / _REPORT)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _name_state(trace: Path) -> str | None:
    """Name the report of the whole trace as it is now; None where none can be kept."""
    made_of = places.compute_fingerprint(trace)
    return None if made_of is None else f"{_PREFIX}{made_of}-{_digest_code()}"


def _name_folder(state: str, choice: Choice) -> str:
    if choice.is_whole_run:
        return state
    return f"{state}-{sha256(repr(choice.text_by_option).encode()).hexdigest()[:12]}"


@cache
def _digest_code() -> str:
    """Return a digest of this code: its files' names, sizes and times, and installed plug-ins."""
    root = Path(__file__).parents[1]
    plug_ins = (*plugins.list_plugins(plugins.READERS), *plugins.list_plugins(plugins.ANALYSES))
    lines = [
        f"{plugin.distribution} {plugin.name} {plugin.object_reference}" for plugin in plug_ins
    ]
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                state = os.stat(os.path.join(folder, name))  # noqa: PTH118, PTH116 - hundreds of files
                lines.append(f"{folder}/{name} {state.st_size} {state.st_mtime_ns}")
    return sha256(os.fsencode("\n".join(sorted(lines)))).hexdigest()[:12]


def save_report(report: Report, file: Path) -> None:
    """Write a report; numbers that JSON lacks are written as Python reads them."""
    row = asdict(replace(report, findings=(), results={}))
    row["findings"] = [finding.to_dict() for finding in report.findings]
    if report.summary.selected is None:  # an index is of a whole run, and holds what it always did
        del row["summary"]["selected"]
    file.write_text(json.dumps(row, default=_to_plain))


def load_report(file: Path, results: Mapping[str, Result] | None = None) -> Report:
    """Read what `save_report` wrote; `results` are given to the report."""
    fields = loads(file.read_text())
    clock, efficiency = fields["clock"], fields["efficiency"]
    hosts = (HostClock(**_restore_tuples(host)) for host in clock["hosts"])
    return Report(
        verdict=Verdict(**fields["verdict"]),
        summary=Summary(**fields["summary"]),
        clock=Alignment(clock["method"], tuple(hosts)),
        efficiency=_load_efficiency(efficiency) if efficiency else None,
        ledger=_load_ledger(fields["ledger"]) if fields["ledger"] else None,
        findings=tuple(Finding(**_restore_tuples(finding)) for finding in fields["findings"]),
        notes=tuple(Note(**_restore_tuples(note)) for note in fields["notes"]),
        results=results or {},
        life=LifeShares(**_restore_tuples(fields["life"])) if fields["life"] else None,
    )


def _load_efficiency(row: dict[str, Any]) -> Efficiency:
    devices = DeviceShares(**row["devices"]) if row.get("devices") else None
    bars = tuple(Share(**bar) for bar in row["waterfall"])
    return Efficiency(**(row | {"waterfall": bars, "devices": devices}))


def _load_ledger(row: dict[str, Any]) -> Ledger:
    return Ledger(**(row | {"losses": tuple(Loss(**loss) for loss in row["losses"])}))


def _restore_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Restore the tuples of a record."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def _to_plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else list(value)
