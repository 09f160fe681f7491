"""Reads any table of spans as a trace: one row a span, from a file or from memory (docs/tables.md).

In order: `reader` opens it, `naming` finds its columns, `cells` and `columns` read
them, `naming` and `kinds` translate kinds and operations; `tracelens.readers.spans` drops what is
unusable, infers what the table lacks, and builds a `Trace`.
"""

from tracelens.readers.table.reader import TableReader

__all__ = ["TableReader"]
