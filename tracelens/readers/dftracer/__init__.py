"""DFTracer's events (``.pfw``, ``.pfw.gz``): calls of I/O, and what a data loader did around them."""

from tracelens.readers.dftracer.reader import DFTracerReader

__all__ = ["DFTracerReader"]
