"""Runs, or parts of them, in formats that this and other programs open: siblings with `save`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tracelens.exports import native, otlp, perfetto, perfetto_manifest, speedscope, table

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.exports.content import Content, Saved

__all__ = ["EXPORTS", "ExportFormat"]


class ExportFormat(Protocol):
    """What writes a format: `SUFFIX` ends its names, `OPEN_WITH` says what opens them."""

    @property
    def SUFFIX(self) -> str:  # noqa: N802 - a constant of a module
        """End of the name that it gets by default."""

    @property
    def OPEN_WITH(self) -> str:  # noqa: N802 - a constant of a module
        """Command or address that opens it, with ``{place}`` for where it is."""

    def save(self, content: Content, place: Path, /) -> Saved:
        """Write it, process by process, to a place where nothing is."""


EXPORTS: Final[dict[str, ExportFormat]] = {
    "native": native,
    "parquet": table.PARQUET,
    "perfetto": perfetto,
    "perfetto_manifest": perfetto_manifest,
    "csv": table.CSV,
    "otlp": otlp,
    "speedscope": speedscope,
}
