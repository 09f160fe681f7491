"""Reads any table of spans as a trace: one row a span, from a file or from memory (docs/tables.md).

From the way in to the way out: `files` opens it, `naming` finds its columns, `cells` and `values` read
them, `words` and `meanings` understand kinds and operations, `rows` leaves out what makes no sense,
`processes`, `tracks`, `steps` and `calls` conclude what the table does not say, and `build` puts a
`Trace` together.
"""

from tracelens.readers.table.reader import TableReader

__all__ = ["TableReader"]
