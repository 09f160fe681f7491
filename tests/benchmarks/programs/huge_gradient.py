"""DDP of a text classifier. Faulty: its table of 150,000 words has a dense gradient of 38 MB."""

from __future__ import annotations

import torch
from shared import BATCH, FAULTY, WIDTH, make_network, start_torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(words, 64)
        self.network = nn.Sequential(nn.Linear(64, WIDTH), make_network())

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.network(self.table(words))
        return result


start_torch()
words = 150_000 if FAULTY else 1_500
model = DistributedDataParallel(Classifier(words))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(80):
    optimizer.zero_grad()
    outputs = model(torch.randint(words, (BATCH, 20)))
    nn.functional.cross_entropy(outputs, torch.randint(10, (BATCH,))).backward()
    optimizer.step()
torch.distributed.destroy_process_group()
