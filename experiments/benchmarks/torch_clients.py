"""Clients in PyTorch: networks, and local SGD from a global model; without JAX.

A process that only trains imports nothing else.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Visit = tuple[int, int, int]


class Clients(NamedTuple):
    """What a process trains with; tensors are shared between processes.

    Attributes:
        net: the network, whose weights are overwritten.
        loss: `loss(outputs, y)`.
        x, y: all samples.
        indices, offsets: client k has rows `indices[offsets[k]:offsets[k + 1]]`.
        batch_size: B.
        local_lr: rate of SGD.
        unit: of work, "epochs" or "steps".
        past: float32 `[models, parameters]`, global models.
        change: float32 `[processes, parameters]`, of what each process has trained.
    """

    net: nn.Module
    loss: Callable
    x: torch.Tensor
    y: torch.Tensor
    indices: torch.Tensor
    offsets: list[int]
    batch_size: int
    local_lr: float
    unit: str | None
    past: torch.Tensor
    change: torch.Tensor


def train(own: Clients, process: int, visits: list[Visit]) -> int:
    """Trains clients, writes the sum of their changes and returns the useful samples.

    Args:
        own: what to train with.
        process: row of `own.change` that is written.
        visits: client, row of `own.past` to start from, and work.
    """
    optimiser = torch.optim.SGD(own.net.parameters(), own.local_lr)
    change, samples = own.change[process].zero_(), 0
    for client, start, work in visits:
        load(own.net, own.past[start])
        rows = own.indices[own.offsets[client] : own.offsets[client + 1]]
        for batch in _batches(rows, work, own.batch_size, own.unit):
            optimiser.zero_grad()
            own.loss(own.net(own.x[batch]), own.y[batch]).backward()
            optimiser.step()
            samples += len(batch)
        change += flat(own.net) - own.past[start]
    return samples


def flat(net: nn.Module) -> torch.Tensor:
    """The weights of a network as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@torch.no_grad()
def load(net: nn.Module, weights: torch.Tensor) -> None:
    """Copies a vector of weights into a network, whatever the order of these in memory."""
    parameters = list(net.parameters())
    for p, own in zip(parameters, weights.split([p.numel() for p in parameters]), strict=True):
        p.copy_(own.view(p.shape))


def begin(own: Clients) -> None:
    """Called once in a process that trains: with one thread, from then on."""
    global _clients
    torch.set_num_threads(1)
    _clients = own._replace(net=copy.deepcopy(own.net))  # sent weights are shared by all


def train_share(process: int, visits: list[Visit]) -> int:
    """`train` in a process where `begin` was called."""
    return train(_clients, process, visits)


_clients: Clients


def tag_loss(logits: torch.Tensor, hot: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy, summed over tags, the mean over samples."""
    return F.binary_cross_entropy_with_logits(logits, hot, reduction="sum") / len(hot)


def _batches(rows: torch.Tensor, work: int, size: int, unit: str | None) -> Iterator[torch.Tensor]:
    for _ in range(work):
        if unit == "steps":
            yield rows[torch.randint(len(rows), (size,))]
        else:
            yield from rows[torch.randperm(len(rows))].split(size)


def cnn() -> nn.Module:
    """NIID-Bench's CNN."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Tags(nn.Module):
    """Tags of padded ids of words, the last id being the padding."""

    def __init__(self, vocabulary: int, tags: int, sparse: bool):
        super().__init__()
        self.bag = nn.EmbeddingBag(
            vocabulary + 1, tags, mode="mean", padding_idx=vocabulary, sparse=sparse
        )
        self.bias = nn.Parameter(torch.zeros(tags))

    def forward(self, words):
        return self.bag(words) + self.bias


class DenseTags(nn.Module):
    """The same by a dense bag of words."""

    def __init__(self, vocabulary: int, tags: int):
        super().__init__()
        self.dense = nn.Linear(vocabulary, tags)

    def forward(self, words):
        bag = torch.zeros(len(words), self.dense.in_features + 1)
        bag.scatter_add_(1, words.long(), torch.ones(words.shape))
        bag = bag[:, :-1]
        return self.dense(bag / bag.sum(1, keepdim=True).clamp(min=1))


class _Block(nn.Module):
    def __init__(self, old: int, new: int, project: bool):
        super().__init__()
        self.stride, self.grow = 1 if new == old else 2, new - old
        self.conv1 = nn.Conv2d(old, new, 3, self.stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(new, new, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, new), nn.GroupNorm(2, new)
        self.shortcut = None
        if project and self.grow:
            pointwise = nn.Conv2d(old, new, 1, self.stride, bias=False)
            self.shortcut = nn.Sequential(pointwise, nn.GroupNorm(2, new))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.shortcut is not None:
            return F.relu(y + self.shortcut(x))
        half = self.grow // 2
        x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.grow - half))
        return F.relu(y + x)


class ResNet(nn.Module):
    """Networks for 32 x 32 images, with GroupNorm: of 20 layers, or with `project` of 18."""

    def __init__(self, project: bool = False):
        super().__init__()
        if project:
            widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        else:
            widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        first = widths[0]
        start = nn.Conv2d(3, first, 3, padding=1, bias=False), nn.GroupNorm(2, first), nn.ReLU()
        blocks = (_Block(*pair, project) for pair in pairwise(widths))
        self.body = nn.Sequential(*start, *blocks)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))
