"""The live record: 64 bytes in a memory-mapped segment, readable at any time.

A segment file is a 64-byte header and then `capacity` slots of 64 bytes, native byte order. A slot is

====== ==== =============== ====================================================================
offset type field           meaning
====== ==== =============== ====================================================================
0      i64  start_ns        CLOCK_MONOTONIC of the host
8      i64  end_ns          0 = still open; negative = closed by an exception at -end_ns
16     i64  bytes           payload of this rank; -1 = does not apply
24     u64  request         PS request (worker << 40 | counter); 0 = does not apply;
                            in a counter's record the value, a float64;
                            0x8000 << 48 | number: see device times
32     u32  seq             order of issue in the communicator; 2**32-1 = does not apply
36     i32  step            -1 = outside of any step
40     i32  key             PS key or message tag; -1 = does not apply
44     i32  bucket          gradient bucket or layer index; -1 = does not apply
48     i32  peer            other rank, worker or PS process; -1 = does not apply
52     u16  thread          index into the thread table
54     u16  micro_step      2**16-1 = does not apply
56     u16  queue_depth     2**16-1 = does not apply
58     u16  flags           bit 0: times are estimated
60     u32  definition      what it is (name, kind, op, ...); 0 = slot not in use
====== ==== =============== ====================================================================

Two properties carry the promise that a killed rank loses nothing: `definition` is written last, so a
half-written slot reads as unused; and a span closes by one aligned 8-byte store into `end_ns`.
Whatever is constant for a handle (name, kind, op, algorithm, communicator, shard) stands once in
the side file as a definition, written before its first use (see `tracelens.schema.side`).

A device tells its times later than the host, so they come in a record of their own, whose definition
has the type ``device``. It names its span by an equal `request`, 0x8000 << 48 | number; `bytes` is
the begin on the device's clock, ``end_ns - start_ns`` the length there, `thread` the stream's row.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

RECORD: Final = struct.Struct("@qqqQIiiiiHHHHI")
END: Final = struct.Struct("@q")
VALUE: Final = struct.Struct("@d")
RECORD_BYTES: Final = 64
END_OFFSET: Final = 8
VALUE_OFFSET: Final = 24
assert RECORD.size == RECORD_BYTES

NO_BYTES: Final = -1
NO_REQUEST: Final = 0
NO_SEQ: Final = 2**32 - 1
NO_INDEX: Final = -1  # step, key, bucket, peer
NO_SHORT: Final = 2**16 - 1  # micro_step, queue_depth
ESTIMATED: Final = 1
TIMED_ON_DEVICE: Final = 0x8000 << 48  # of a request, with a number in the lower 48 bits

# magic, byte-order mark, schema version, record bytes, capacity (slots), pid, padding to 64
HEADER: Final = struct.Struct("@8sIHHQQ32x")
MAGIC: Final = b"TLSEGMNT"
BYTE_ORDER: Final = 0x01020304
assert HEADER.size == RECORD_BYTES


def request_id(worker: int, counter: int) -> int:
    """Identify a PS request across processes: the worker's rank and its own counter.

    The worker puts it into its span and into the message; the shard puts it into its own spans.
    """
    return worker << 40 | counter
