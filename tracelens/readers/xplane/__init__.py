"""Profiles of XLA (``.xplane.pb``), as JAX, TensorFlow and PyTorch/XLA write them (docs/formats.md).

`messages` are protobuf's own, `columns` translates a file, and `reader` hands all to
`tracelens.readers.spans`.
"""

from tracelens.readers.xplane.reader import XPlaneReader

__all__ = ["XPlaneReader"]
