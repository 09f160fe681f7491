"""Reads torch.profiler's (Kineto's) files, and other trace events in JSON: one, or one a rank.

In order: `columns` takes events apart, `collectives`, `phases` and `rank_rows` translate one file with
the help of `words`, `matching` numbers the collectives of all, `gaps` says what is missing, and `reader`
hands all to `tracelens.readers.spans` (docs/kineto.md).
"""

from tracelens.readers.kineto.reader import KinetoReader

__all__ = ["KinetoReader"]
