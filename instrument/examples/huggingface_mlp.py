"""A small network trained by Hugging Face's Trainer; evaluates, and saves checkpoints.

    tracelens record -- torchrun --standalone --nproc-per-node 2 huggingface_mlp.py

Gradients of two batches are gathered for each step.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

INPUTS: Final = 32
CLASSES: Final = 4
GATHERED: Final = 2


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Random numbers, whose largest of the first four is their class."""

    def __init__(self, items: int) -> None:
        self.inputs = torch.randn(items, INPUTS, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        numbers = self.inputs[item]
        return {"inputs": numbers, "labels": numbers[:CLASSES].argmax()}


class Classifier(nn.Module):
    """Two linear layers, and their loss as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Return loss and scores."""
        scores = self.network(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=GATHERED,
            eval_strategy="steps",
            eval_steps=arguments.steps // 2,
            save_steps=arguments.steps // 2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        data = Numbers(320)
        Trainer(Classifier(), settings, train_dataset=data, eval_dataset=data).train()


if __name__ == "__main__":
    main()
