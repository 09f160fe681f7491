"""Reads the dumps of PyTorch's Flight Recorder, one per rank: the call and the group that hang.

`unpickle` runs as a process of its own, `dump` translates one file, `hangs` compares ranks, and `reader`
hands all to `tracelens.readers.spans` (docs/formats.md).
"""

from tracelens.readers.flight_recorder.reader import FlightRecorderReader

__all__ = ["FlightRecorderReader"]
