"""Each reader turns one kind of recording into a `Trace`; the first that recognizes a path reads it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tracelens.readers.base import SIMPLY, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace
    from tracelens.readers.base import Reader


@dataclass(frozen=True)
class LazyReader:
    """A reader that is imported when `may_be_format` first returns True for a path."""

    module_name: str
    class_name: str
    may_be_format: Callable[[Path], bool] = Path.exists

    def load(self) -> Reader:
        """Import the reader."""
        module = import_module(f"{__name__}.{self.module_name}")
        return cast("Reader", getattr(module, self.class_name)())

    @property
    def name(self) -> str:
        """Name of the format in a few words."""
        return self.load().name

    def sniff(self, path: Path) -> bool:
        """Return True if `path` looks like this format, without reading much of it."""
        return self.may_be_format(path) and self.load().sniff(path)

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read it, as `Reader.read` says."""
        return self.load().read(path, options)


# In this order: a folder with recordings of our own is never one of another tool; of the formats in
# JSON those that mark their files best come first.
READERS: Final[tuple[Reader, ...]] = (
    LazyReader("native.reader", "NativeReader", Path.is_dir),
    LazyReader("table", "TableReader", Path.is_file),
    LazyReader("nsight", "NsightReader"),
    LazyReader("flight_recorder", "FlightRecorderReader"),
    LazyReader("otf2", "Otf2Reader"),
    LazyReader("xplane", "XPlaneReader"),
    LazyReader("perfetto", "PerfettoReader"),
    LazyReader("otlp", "OtlpReader"),
    LazyReader("nccl_inspector", "NcclInspectorReader"),
    LazyReader("dftracer", "DFTracerReader"),
    LazyReader("rocprof", "RocprofReader"),
    LazyReader("exported_events", "ExportedEventsReader", Path.is_file),
    LazyReader("horovod", "HorovodReader", Path.is_file),
    LazyReader("viztracer", "VizTracerReader"),
    LazyReader("stacks", "StacksReader"),
    LazyReader("kineto", "KinetoReader"),
    LazyReader("native.reader", "NativeReader", Path.is_file),
)
