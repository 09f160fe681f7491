"""A small network trained by Lightning's Trainer on two processes; validates, and saves checkpoints.

    tracelens record -- python lightning_mlp.py

Lightning starts the second process itself. Gradients of two batches are gathered for each step.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

INPUTS: Final = 32
CLASSES: Final = 4
BATCH: Final = 8
GATHERED: Final = 2


class Classifier(LightningModule):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        """Return the loss."""
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def validation_step(self, batch: Any, number: int) -> None:
        """Compute it only."""
        self.training_step(batch, number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def dataset(items: int) -> TensorDataset:
    """Random numbers, whose largest of the first four is their class."""
    inputs = torch.randn(items, INPUTS, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(dim=1))


def main() -> None:
    """Read the command line and fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--items", type=int, default=640)
    arguments = parser.parse_args()
    data = dataset(arguments.items)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=arguments.epochs,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            accumulate_grad_batches=GATHERED,
            logger=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        loaders = DataLoader(data, batch_size=BATCH), DataLoader(data, batch_size=64)
        trainer.fit(Classifier(), *loaders)


if __name__ == "__main__":
    main()
