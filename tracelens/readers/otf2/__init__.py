"""Reads traces of Score-P in OTF2: a folder of them, or its anchor file (docs/formats.md).

`unpack` runs OTF2's own library in a process of its own, `archive` looks at the files and starts it,
`rows` translates what it found, and `reader` hands all to `tracelens.readers.spans`.
"""

from tracelens.readers.otf2.reader import Otf2Reader

__all__ = ["Otf2Reader"]
