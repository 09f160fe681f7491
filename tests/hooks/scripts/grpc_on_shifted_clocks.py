"""Launches the gRPC example with a clock of its own for every process: ``SECONDS...``, shards first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "instrument" / "examples"
SHARDS = WORKERS = 2
TRAINING = [
    sys.executable,
    str(EXAMPLES / "grpc_parameter_server.py"),
    f"--workers={WORKERS}",
    f"--shards={SHARDS}",
    "--steps=60",
    "--hidden=64",
]


def launch(seconds: str, role: str, index: int, *more: str) -> subprocess.Popen[str]:
    """Start one process in a time namespace of its own."""
    shifted = [sys.executable, str(EXAMPLES / "shift_clock.py"), seconds]
    command = [*shifted, *TRAINING, f"--role={role}", f"--index={index}", *more]
    pipe = subprocess.PIPE if role == "ps" else None
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def main() -> int:
    """Do as the example's own launcher."""
    shifts = sys.argv[1:]
    shards = [launch(shifts[index], "ps", index) for index in range(SHARDS)]
    ports = [shard.stdout.readline().strip() for shard in shards if shard.stdout]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    for shard in shards:
        if shard.stdin:
            shard.stdin.write(f"{addresses[0]}\n")
            shard.stdin.flush()
    servers = f"--servers={','.join(addresses)}"
    workers = [launch(shifts[SHARDS + index], "worker", index, servers) for index in range(WORKERS)]
    codes = [worker.wait() for worker in workers]
    for shard in shards:
        shard.communicate()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
