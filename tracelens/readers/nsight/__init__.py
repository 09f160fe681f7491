"""Reads what Nsight Systems exports as SQLite: a file, or a folder of one a rank (docs/formats.md).

`database` takes columns out of tables, `rows` translates one file, and `reader` hands all to
`tracelens.readers.spans`.
"""

from tracelens.readers.nsight.reader import NsightReader

__all__ = ["NsightReader"]
