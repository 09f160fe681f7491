"""Sampled stacks of Python: py-spy's events and speedscope's JSON (docs/formats.md).

`speedscope` and `chrometrace` read files as runs of equal stacks and as spans;
`reader` hands all to `tracelens.readers.spans`.
"""

from tracelens.readers.stacks.reader import StacksReader

__all__ = ["StacksReader"]
