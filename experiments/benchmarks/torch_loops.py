"""The workloads of the benchmarks as plain PyTorch loops over clients."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import ccfl_jax as ccfl

from .workloads import TABLE_SIZE, Workload

Loop = Callable[[ccfl.Schedule], int]


def loops(workload: Workload) -> dict[str, Loop]:
    """Loops that train the rounds of a piece of schedule and return the useful samples of it.

    One for most workloads; for tags an `EmbeddingBag`, the same with sparse gradients, and a dense
    bag of words.
    """
    x, y = (np.array(workload.data.arrays[name]) for name in ("x", "y"))
    if x.dtype == np.uint8:
        x = np.moveaxis(x, -1, 1).astype(np.float32) / 255
    if workload.model != "tags":
        net = {"cnn": _cnn, "resnet20": _ResNet20, "logistic": lambda: nn.Linear(60, 10)}
        tensors = torch.from_numpy(x), torch.from_numpy(y).long()
        return {"torch": _loop(workload, net[workload.model](), F.cross_entropy, *tensors)}
    vocabulary, tags = TABLE_SIZE
    words = torch.from_numpy(np.where(x < 0, vocabulary, x))
    hot = torch.zeros(len(y), tags + 1).scatter_(1, torch.from_numpy(y % (tags + 1)).long(), 1.0)
    nets = {
        "torch EmbeddingBag": _Tags(sparse=False),
        "torch EmbeddingBag sparse": _Tags(sparse=True),
        "torch dense bag": _DenseTags(),
    }
    hot = hot[:, :tags].contiguous()
    return {name: _loop(workload, net, _tag_loss, words, hot) for name, net in nets.items()}


def _loop(
    workload: Workload, net: nn.Module, loss: Callable, x: torch.Tensor, y: torch.Tensor
) -> Loop:
    indices = torch.from_numpy(np.array(workload.data.indices)).long()
    offsets = np.asarray(workload.data.offsets)
    optimiser = torch.optim.SGD(net.parameters(), workload.local_lr)
    past = deque([_copy(net)], maxlen=int(workload.schedule.staleness.max()) + 1)

    def visit(client: int, work: int) -> int:
        rows, samples = indices[offsets[client] : offsets[client + 1]], 0
        unit = workload.schedule.work_unit
        for batch in _batches(rows, work, workload.batch_size, unit):
            optimiser.zero_grad()
            loss(net(x[batch]), y[batch]).backward()
            optimiser.step()
            samples += len(batch)
        return samples

    @torch.no_grad()
    def load(model: list) -> None:
        for p, q in zip(net.parameters(), model, strict=True):
            p.copy_(q)

    def train(schedule: ccfl.Schedule) -> int:
        samples = 0
        rows = zip(schedule.client, schedule.staleness, schedule.work, strict=True)
        for clients, delays, work in rows:
            total = [torch.zeros_like(p) for p in past[-1]]
            for client, delay, amount in zip(clients, delays, work, strict=True):
                start = past[-1 - min(int(delay), len(past) - 1)]
                load(start)
                samples += visit(int(client), int(amount))
                for t, p, q in zip(total, net.parameters(), start, strict=True):
                    t.add_(p.detach() - q, alpha=1 / len(clients))
            past.append([q + t for q, t in zip(past[-1], total, strict=True)])
        return samples

    return train


def _copy(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in copy.deepcopy(net).parameters()]


def _batches(rows: torch.Tensor, work: int, size: int, unit: str | None) -> Iterator[torch.Tensor]:
    for _ in range(work):
        if unit == "steps":
            yield rows[torch.randint(len(rows), (size,))]
        else:
            yield from rows[torch.randperm(len(rows))].split(size)


def _tag_loss(logits: torch.Tensor, hot: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, hot, reduction="sum") / len(hot)


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class _Tags(nn.Module):
    def __init__(self, sparse: bool):
        super().__init__()
        vocabulary, tags = TABLE_SIZE
        self.bag = nn.EmbeddingBag(
            vocabulary + 1, tags, mode="mean", padding_idx=vocabulary, sparse=sparse
        )
        self.bias = nn.Parameter(torch.zeros(tags))

    def forward(self, words):
        return self.bag(words) + self.bias


class _DenseTags(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(*TABLE_SIZE)

    def forward(self, words):
        bag = torch.zeros(len(words), TABLE_SIZE[0] + 1)
        bag.scatter_add_(1, words.long(), torch.ones(words.shape))
        bag = bag[:, :-1]
        return self.dense(bag / bag.sum(1, keepdim=True).clamp(min=1))


class _Block(nn.Module):
    def __init__(self, old: int, new: int):
        super().__init__()
        self.stride, self.grow = new // old, new - old
        self.conv1 = nn.Conv2d(old, new, 3, self.stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(new, new, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, new), nn.GroupNorm(2, new)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        half = self.grow // 2
        x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.grow - half))
        return F.relu(y + x)


class _ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        start = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()
        self.body = nn.Sequential(*start, *(_Block(*pair) for pair in pairwise(widths)))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))
