"""The workloads of the benchmarks as plain PyTorch loops, in one process and in one per core."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing import get_context

import ccfl_jax as ccfl

from ..training import devices
from . import torch_clients
from .torch_clients import Clients, Visit
from .workloads import TABLE_SIZE, Workload

Loop = Callable[[ccfl.Schedule], int]
# Trains the clients of every process, given its number and them, and returns the samples of each.
Train = Callable[[Iterable[tuple[int, list[Visit]]]], Iterable[int]]


@contextlib.contextmanager
def loops(workload: Workload) -> Iterator[dict[str, Loop]]:
    """Loops that train the rounds of a piece of schedule and return the useful samples of it.

    Each way to train the network is a loop in one process with a thread for every core, and one
    over a process for every core, with one thread each: they live as long as the context, share
    samples and models, and the clients of a round.

    Ways are the orders of a convolution's channels; for tags an `EmbeddingBag`, the same with
    sparse gradients, and a dense bag of words.
    """
    processes = devices.cores()
    with contextlib.ExitStack() as stack:
        found = {}
        for name, way in _ways(workload).items():
            own = _clients(workload, 1, *way)
            found[name] = _loop(workload, own, partial(starmap, partial(torch_clients.train, own)))
            if processes > 1:
                own = _clients(workload, processes, *way)
                pool = get_context("spawn").Pool(processes, torch_clients.begin, (own,))
                train = partial(stack.enter_context(pool).starmap, torch_clients.train_share)
                found[f"{name}, {processes} processes"] = _loop(workload, own, train)
        yield found


def _ways(workload: Workload) -> dict[str, tuple]:
    """Name -> network, loss, samples and labels."""
    x, y = (np.array(workload.data.arrays[name]) for name in ("x", "y"))
    if workload.model == "tags":
        vocabulary, tags = TABLE_SIZE
        words = torch.from_numpy(np.where(x < 0, vocabulary, x))
        hot = torch.zeros(len(y), tags + 1)
        hot = hot.scatter_(1, torch.from_numpy(y % (tags + 1)).long(), 1.0)[:, :tags].contiguous()
        nets = {
            "torch EmbeddingBag": torch_clients.Tags(vocabulary, tags, sparse=False),
            "torch EmbeddingBag sparse": torch_clients.Tags(vocabulary, tags, sparse=True),
            "torch dense bag": torch_clients.DenseTags(vocabulary, tags),
        }
        return {name: (net, torch_clients.tag_loss, words, hot) for name, net in nets.items()}
    if x.dtype == np.uint8:
        x = np.moveaxis(x, -1, 1).astype(np.float32) / 255
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    if workload.model == "logistic":
        return {"torch": (nn.Linear(60, 10), F.cross_entropy, x, y)}
    net = {
        "cnn": torch_clients.cnn,
        "resnet20": torch_clients.ResNet,
        "resnet18": partial(torch_clients.ResNet, project=True),
    }[workload.model]
    last = torch.channels_last
    return {
        "torch": (net(), F.cross_entropy, x.contiguous(), y),
        "torch channels_last": (
            net().to(memory_format=last),
            F.cross_entropy,
            x.contiguous(memory_format=last),
            y,
        ),
    }


def _clients(workload: Workload, processes: int, net: nn.Module, *rest: Any) -> Clients:
    data, first = workload.data, torch_clients.flat(net)
    return Clients(
        net,
        *rest,
        indices=torch.from_numpy(np.array(data.indices)).long(),
        offsets=np.asarray(data.offsets).tolist(),
        batch_size=workload.batch_size,
        local_lr=workload.local_lr,
        unit=workload.schedule.work_unit,
        past=first.repeat(int(workload.schedule.staleness.max()) + 1, 1).share_memory_(),
        change=torch.zeros(processes, len(first)).share_memory_(),
    )


def _loop(workload: Workload, own: Clients, train: Train) -> Loop:
    """Rounds of FedAvg; the model after t rounds is row t of `own.past`, which is a ring."""
    models, done = len(own.past), 0
    sizes = np.diff(own.offsets)
    if own.unit == "steps":
        sizes = np.ones_like(sizes)

    def run(schedule: ccfl.Schedule) -> int:
        nonlocal done
        samples = 0
        rows = zip(schedule.client, schedule.staleness, schedule.work, strict=True)
        for clients, delays, work in rows:
            starts = (done - np.minimum(delays, models - 1)) % models
            visits = np.stack([clients, starts, work], 1)
            shares = _shares(visits, work * sizes[clients], len(own.change))
            samples += sum(train(enumerate(shares)))
            newest = own.past[done % models] + own.change.sum(0) / len(clients)
            done += 1
            own.past[done % models] = newest
        return samples

    return run


def _shares(visits: np.ndarray, costs: np.ndarray, processes: int) -> list[list[Visit]]:
    """The visits of each process: the longest first, each to who has least to do."""
    shares, loads = [[] for _ in range(processes)], [0] * processes
    for slot in np.argsort(-costs, kind="stable"):
        least = loads.index(min(loads))
        shares[least].append(tuple(visits[slot].tolist()))
        loads[least] += int(costs[slot])
    return shares
