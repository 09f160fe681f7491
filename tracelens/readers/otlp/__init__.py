"""Reads spans of OpenTelemetry from files: OTLP in JSON or protobuf (docs/formats.md).

`requests` takes a file apart into spans, `rows` translates them, `reader` joins files.
"""

from tracelens.readers.otlp.reader import OtlpReader
from tracelens.readers.otlp.requests import is_otlp

__all__ = ["OtlpReader", "is_otlp"]
