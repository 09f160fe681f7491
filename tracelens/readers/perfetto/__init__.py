"""Perfetto's protobuf traces: `packets` takes a file apart, and `reader` makes a trace of it."""

from tracelens.readers.perfetto.reader import PerfettoReader

__all__ = ["PerfettoReader"]
