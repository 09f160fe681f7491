"""What the programs share: the form that runs, the ranks, a small network, and numeric work.

`FORM=faulty` in the environment runs the form with the fault, and anything else the healthy one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor, nn

FAULTY: Final = os.environ.get("FORM") == "faulty"
RANK: Final = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))
WORLD: Final = int(os.environ.get("WORLD_SIZE", os.environ.get("PMI_SIZE", "1")))
WIDTH: Final = 256
BATCH: Final = 320


def start_torch() -> None:
    import torch  # noqa: PLC0415 - programs over MPI do without it
    from torch import distributed  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")


def make_network(device_s: float = 0.012, layers: int = 3) -> nn.Module:
    """Return linear layers, and a layer that waits for a device: `device_s` forward, twice back."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: Tensor) -> Tensor:
            time.sleep(device_s * len(x) / BATCH)
            return x.clone()

        @staticmethod
        def backward(_: object, gradient: Tensor) -> Tensor:
            time.sleep(2 * device_s * len(gradient) / BATCH)
            return gradient

    class Device(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = Wait.apply(x)
            return result

    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(blocks[0], Device(), *blocks[1:], nn.Linear(WIDTH, 10))


def compute(units: float) -> float:
    """Multiply matrices; a unit is about 3 ms of a core."""
    import numpy as np  # noqa: PLC0415

    matrix = np.ones((256, 256)) / 256
    for _ in range(round(4 * units)):
        matrix = matrix @ matrix
    return float(matrix[0, 0])
