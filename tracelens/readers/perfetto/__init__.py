"""Perfetto's protobuf traces with track events (docs/formats.md).

`messages` are protobuf's own, `packets` takes a file apart, `columns` translates it, and `reader`
hands all to `tracelens.readers.spans`.
"""

from tracelens.readers.perfetto.reader import PerfettoReader

__all__ = ["PerfettoReader"]
