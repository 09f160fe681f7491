"""Records the systems of the studies in small, as this machine can, and makes the studies with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Final

from support.samples import ROOT, manifest, record

# Samples by study. Those of one are recorded with equally many processes, to be compared.
ASKED: Final = {
    "cori": ("grpc-round-robin",),
    "phub": ("ps-hot-shard",),
    "allreduce": ("mpi-sweep",),
    "interleaving": ("ddp-slow-backprop",),
    "easgd": ("easgd-original", "easgd-async", "easgd-sync1", "easgd-sync3"),
}


def main() -> int:
    """Record what a study asks into ``traces/``, and make it; the exit code is the study's."""
    study = sys.argv[1]
    if study not in ASKED:
        raise SystemExit(f"no such study: {study}; there are {', '.join(ASKED)}")
    samples = {sample.name: sample for sample in manifest()}
    command = [sys.executable, "-m", "tracelens", "study", study]
    for name in ASKED[study]:
        folder = ROOT / "traces" / name
        shutil.rmtree(folder, ignore_errors=True)
        record(replace(samples[name], ranks=samples[ASKED[study][0]].ranks), folder)
        command += ["--trace", str(folder.relative_to(ROOT))]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
