"""Traces of VizTracer (``result.json``): each call of a function of Python (docs/formats.md).

`columns` translates a file, and `reader` hands all to `tracelens.readers.spans`.
"""

from tracelens.readers.viztracer.reader import VizTracerReader

__all__ = ["VizTracerReader"]
