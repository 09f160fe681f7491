"""Reads what torch.profiler (Kineto) exports, and other trace events in JSON: a file, or a folder of ranks.

In order: `stream` reads events, `columns` takes them apart, `collectives`, `phases` and `rank_rows` translate
one file with the help of `words`, `matching` numbers the collectives of all, `gaps` says what is missing, and
`reader` hands all to `tracelens.readers.spans` (docs/kineto.md).
"""

from tracelens.readers.kineto.reader import KinetoReader

__all__ = ["KinetoReader"]
