"""`tracelens detail`: let a running job record layers and stacks for some time, and then go back."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.model import fmt
from tracelens.model.durations import parse_duration
from tracelens.schema.detail import (
    MAX_SAMPLING_HZ,
    REQUEST_FILE,
    DetailRequest,
    read_request,
    write_request,
)

if TYPE_CHECKING:
    import argparse

    from tracelens.watch.detail import DetailWatch

NAME: Final = "detail"
HELP: Final = "record more of a running job for some time: layers, operators, stacks"
EXAMPLES: Final = """\
  tracelens detail traces/today --layers --stacks
  tracelens detail traces/today --operators --for 10s
  tracelens detail traces/today --stacks 250 --for 2m
"""
# seconds: recorders look once a second, so all have seen a request before it begins [policy]
_NOTICE_S: Final = 1.5
_LOOK_EVERY_S: Final = 0.25
_PATIENCE_S: Final = 10.0  # seconds: ranks that have ended no step by then are named [policy]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `detail`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="trace folder of the running job")
    parser.add_argument("--layers", action="store_true", help="record the layers of the model")
    parser.add_argument("--operators", action="store_true", help="record layers and operators")
    parser.add_argument(
        "--stacks",
        nargs="?",
        type=int,
        const=100,
        metavar="HZ",
        help="sample call stacks, by py-spy (without HZ: 100)",
    )
    parser.add_argument(
        "--for",
        dest="duration",
        default="30s",
        metavar="TIME",
        help="such as 30s, 2m (default: 30s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask the job for more detail, and wait until it is over; return 1 if no rank followed."""
    from tracelens.watch.detail import DetailWatch

    level = "op" if arguments.operators else "layer" if arguments.layers else None
    if level is None and arguments.stacks is None:
        raise InvalidArgument("Nothing is asked for: give --layers, --operators or --stacks.")
    if arguments.stacks is not None and not 1 <= arguments.stacks <= MAX_SAMPLING_HZ:
        raise InvalidArgument(
            f"--stacks is {arguments.stacks}, expected 1 to {MAX_SAMPLING_HZ} samples a second."
        )
    duration_ns = parse_duration(arguments.duration, "--for")
    if not duration_ns:
        raise InvalidArgument("--for 0: expected a time such as 30s, 2m or 1h.")
    if not arguments.folder.is_dir():
        raise InvalidArgument(f"'{arguments.folder}' is no folder: give the trace folder of a job.")
    watch = DetailWatch(arguments.folder)
    try:
        if not watch.running_ranks and not watch.other_hosts:
            raise UnusableInput(
                f"No process records into '{arguments.folder}' now: more detail is for a running job."
            )
        begin_ns = time.time_ns() + int(_NOTICE_S * 1e9)
        request = DetailRequest(
            begin_ns=begin_ns,
            end_ns=begin_ns + duration_ns,
            level=level,
            sampling_hz=arguments.stacks,
        )
        return _follow(arguments.folder, watch, request)
    finally:
        watch.close()


def _follow(folder: Path, watch: DetailWatch, request: DetailRequest) -> int:
    """Make the request, tell what becomes of it, and withdraw it."""
    try:
        write_request(folder, request)
    except OSError as error:
        raise UnusableInput(
            f"'{folder}' cannot be written ({error.strerror}): run this as the user of the job."
        ) from error
    try:
        _report_begin(watch, request)
        _wait_until(request.end_ns, watch, request)
    except KeyboardInterrupt:
        _write("withdrawn")
    finally:
        if read_request(folder) == request:
            with suppress(OSError):
                (folder / REQUEST_FILE).unlink()
    return _report_end(folder, watch, request)


def _report_begin(watch: DetailWatch, request: DetailRequest) -> None:
    """Wait until all ranks follow, or for some seconds, and tell which do."""
    from tracelens.readers.native.process_notes import describe_detail

    deadline_ns = min(request.begin_ns + int(_PATIENCE_S * 1e9), request.end_ns)
    while time.time_ns() < deadline_ns:
        watch.look(request)
        has_step = watch.first_step is not None
        if has_step and set(watch.running_ranks) <= watch.changed_ranks.keys():
            break
        time.sleep(_LOOK_EVERY_S)
    ranks_by_detail: dict[str, list[int]] = {}
    for rank, change in sorted(watch.changed_ranks.items()):
        detail_text = describe_detail(change.level, change.sampling_hz)
        ranks_by_detail.setdefault(detail_text, []).append(rank)
    total = fmt.count(len(watch.running_ranks), "rank")
    from_step = "" if watch.first_step is None else f" from step {watch.first_step} on"
    for detail_text, ranks in ranks_by_detail.items():
        verb = "records" if len(ranks) == 1 else "record"
        no_model = f"{fmt.listing('rank', ranks)}: no model whose layers can be recorded"
        _write(
            f"{len(ranks)} of {total} {verb} {detail_text}{from_step}" if detail_text else no_model
        )
    silent_ranks = [rank for rank in watch.running_ranks if rank not in watch.changed_ranks]
    if silent_ranks:
        _write(
            f"{fmt.listing('rank', silent_ranks)}: no step has ended since, so nothing has changed"
        )
    if watch.other_hosts:
        _write(
            f"ranks on {fmt.join_words(watch.other_hosts)} follow, too; that cannot be seen from here"
        )


def _report_end(folder: Path, watch: DetailWatch, request: DetailRequest) -> int:
    """Wait for the ranks to go back, and tell how to look at what they recorded."""
    if not watch.changed_ranks:
        return 0 if watch.other_hosts and not watch.running_ranks else 1
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        watch.look(request)
        if set(watch.running_ranks) & watch.changed_ranks.keys() <= watch.returned_ranks.keys():
            break
        time.sleep(_LOOK_EVERY_S)
    if watch.returned_ranks:
        verb = "records" if len(watch.returned_ranks) == 1 else "record"
        _write(f"{fmt.listing('rank', sorted(watch.returned_ranks))} {verb} as before")
    has_steps = watch.first_step is not None
    steps = f" --steps {watch.first_step}-{watch.last_step}" if has_steps else ""
    _write(f"next: tracelens analyze {folder}{steps}, or tracelens serve {folder}")
    return 0


def _wait_until(end_ns: int, watch: DetailWatch, request: DetailRequest) -> None:
    """Wait until a time, or until no rank is left that could follow."""
    while time.time_ns() < end_ns and (watch.running_ranks or watch.other_hosts):
        watch.look(request)
        time.sleep(min(_LOOK_EVERY_S, max((end_ns - time.time_ns()) / 1e9, 0)))


def _write(sentence: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
    sys.stdout.flush()
