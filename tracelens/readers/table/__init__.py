"""Reads any table of spans as a trace: one row a span, from a file or from memory (docs/tables.md).

From the way in to the way out: `reader` opens it, `naming` finds its columns, `cells` and `columns` read
them, `naming` and `kinds` understand kinds and operations, `rows` leaves out what makes no sense,
`rows`, `inferred`, `inferred` and `inferred` conclude what the table does not say, and `reader` puts a
`Trace` together.
"""

from tracelens.readers.table.reader import TableReader

__all__ = ["TableReader"]
