"""The workloads of the benchmarks: data, model, schedule and settings of each.

Sizes are arguments, so that tests can run them small. Made data are drawn from a fixed seed.
"""

from typing import NamedTuple

import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.models import CNN, Logistic, ResNet18, ResNet20, TagLogistic

TABLE_SIZE = 10_000, 500  # vocabulary, tags

# The first layer has two products and not three: there is no gradient of the images.
_CNN_FIRST, _CNN_REST = 24 * 24 * 6 * 25, 8 * 8 * 16 * 150 + 256 * 120 + 120 * 84 + 84 * 10
CNN_FLOPS = 2 * (2 * _CNN_FIRST + 3 * _CNN_REST)


class Workload(NamedTuple):
    """One thing to time.

    Attributes:
        name: as on the command line, with its setting.
        model: which network, for a loop in another framework.
        task: the same as a `Task`.
        data: the clients' samples.
        schedule: rounds to run, repeatedly; a row's staleness is at most its number.
        batch_size: B.
        local_lr: rate of the local SGD.
        flops: useful floating point operations a sample, forward and backward, counted by hand:
            two for each multiplication of a weight and each of the two backward products, none for
            zeros that a lowering multiplies, nor for norms, the optimiser or metrics.
    """

    name: str
    model: str
    task: ccfl.Task
    data: ccfl.FederatedData
    schedule: ccfl.Schedule
    batch_size: int
    local_lr: float
    flops: float


def fmnist_cnn(
    batch_size: int,
    num_clients: int = 100,
    rounds: int = 256,
    train: dict | None = None,
    buffer_size: int = 5,
    lowering: str | None = None,
    compute_dtype: str | None = None,
) -> Workload:
    """Fashion-MNIST, Dirichlet 0.3, five clients a round, 1 to 6 epochs, the NIID-Bench CNN.

    `train` are the images, by default the real ones where they are found, else noise.
    """
    if train is None:
        train = _fashion_mnist()
    clients = ccfl.partition_dirichlet(train["y"], num_clients, 0.3, seed=0)
    return Workload(
        name=f"fmnist_cnn B={batch_size}",
        model="cnn",
        task=ccfl.classification_task(
            CNN(lowering=lowering), (28, 28, 1), 10, compute_dtype=compute_dtype
        ),
        data=ccfl.FederatedData.from_indices({"x": train["x"], "y": train["y"]}, clients),
        schedule=ccfl.random_schedule(0, rounds, num_clients, buffer_size, max_delay=0),
        batch_size=batch_size,
        local_lr=0.01,
        flops=CNN_FLOPS,
    )


def stackoverflow_lr(
    batch_size: int = 100,
    num_clients: int = 100,
    samples: int = 400,
    rounds: int = 64,
    compute_dtype: str | None = None,
) -> Workload:
    """Tags of texts of 20 to 100 tokens by logistic regression, ten clients a round, 1 to 6 epochs.

    Made data in the shape of StackOverflow: 10,000 words and 500 tags, both with frequencies 1 / k,
    one to five tags a text.
    """
    rng = np.random.default_rng([1])
    arrays = {
        "x": _padded_ids(rng, num_clients * samples, TABLE_SIZE[0], 20, 100),
        "y": _padded_ids(rng, num_clients * samples, TABLE_SIZE[1], 1, 5),
    }
    tokens = (arrays["x"] >= 0).sum(1).mean()
    clients = np.arange(num_clients * samples).reshape(num_clients, samples)
    return Workload(
        name=f"stackoverflow_lr B={batch_size}",
        model="tags",
        task=ccfl.tags_task(TagLogistic(*TABLE_SIZE), (100,), TABLE_SIZE[1], compute_dtype),
        data=ccfl.FederatedData.from_indices(arrays, clients),
        schedule=ccfl.random_schedule(0, rounds, num_clients, min(10, num_clients), 0),
        batch_size=batch_size,
        local_lr=20.0,
        flops=2 * 2 * tokens * TABLE_SIZE[1],
    )


def cifar_resnet20(
    batch_size: int = 20,
    num_clients: int = 20,
    samples: int = 100,
    rounds: int = 64,
    lowering: str | None = None,
    compute_dtype: str | None = None,
) -> Workload:
    """Noise in the shape of CIFAR-10, ResNet-20, five clients a round, one epoch."""
    sizes = batch_size, num_clients, samples, rounds
    flops = _resnet_flops((16, 32, 64), 3, project=False)
    return _cifar("resnet20", ResNet20(lowering=lowering), flops, *sizes, compute_dtype)


def cifar_resnet18(
    batch_size: int = 20,
    num_clients: int = 20,
    samples: int = 20,
    rounds: int = 64,
    compute_dtype: str | None = None,
) -> Workload:
    """As `cifar_resnet20` with the paper's ResNet-18 and fewer samples."""
    sizes = batch_size, num_clients, samples, rounds
    flops = _resnet_flops((64, 128, 256, 512), 2, project=True)
    return _cifar("resnet18", ResNet18(), flops, *sizes, compute_dtype)


def _resnet_flops(widths: tuple[int, ...], blocks: int, project: bool) -> int:
    """Of a sample of 32 x 32 pixels; the first layer has two products, as the CNN's."""
    first, before, rest = 32 * 32 * 27 * widths[0], widths[0], widths[-1] * 10
    for stage, width in enumerate(widths):
        kernels = 9 * (before + (2 * blocks - 1) * width) * width
        kernels += before * width * (project and width != before)
        rest, before = rest + (32 >> stage) ** 2 * kernels, width
    return 2 * (2 * first + 3 * rest)


def _cifar(
    name: str,
    model: ResNet20 | ResNet18,
    flops: int,
    batch_size: int,
    num_clients: int,
    samples: int,
    rounds: int,
    compute_dtype: str | None,
) -> Workload:
    arrays = _images(np.random.default_rng([2]), num_clients * samples, (32, 32, 3))
    clients = np.arange(num_clients * samples).reshape(num_clients, samples)
    return Workload(
        name=f"cifar_{name} B={batch_size}",
        model=name,
        task=ccfl.classification_task(model, (32, 32, 3), 10, compute_dtype=compute_dtype),
        data=ccfl.FederatedData.from_indices(arrays, clients),
        schedule=ccfl.random_schedule(0, rounds, num_clients, min(5, num_clients), 0, 1, 1),
        batch_size=batch_size,
        local_lr=0.05,
        flops=flops,
    )


def logistic_many(
    batch_size: int = 10,
    num_clients: int = 350_000,
    buffer_size: int = 1000,
    rounds: int = 64,
    rows: int = 100_000,
) -> Workload:
    """Logistic regression, 60 features and ten classes, 1,000 clients a round out of 350,000.

    Clients have 1 to 40 samples, rows of a common pool; one epoch. The index structure is built as
    whole arrays, without an object per client.
    """
    rng = np.random.default_rng([3])
    sizes = rng.integers(1, 41, num_clients, dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = ccfl.FederatedData(
        arrays={
            "x": rng.normal(size=(rows, 60)).astype(np.float32),
            "y": rng.integers(0, 10, rows, dtype=np.int32),
        },
        indices=rng.integers(0, rows, offsets[-1], dtype=np.int32),
        offsets=offsets,
    )
    return Workload(
        name=f"logistic_many B={batch_size}",
        model="logistic",
        task=ccfl.classification_task(Logistic(10), (60,), 10),
        data=data,
        schedule=ccfl.random_schedule(0, rounds, num_clients, buffer_size, 0, 1, 1),
        batch_size=batch_size,
        local_lr=0.1,
        flops=2 * 2 * 60 * 10,
    )


def memory(
    batch_size: int = 10,
    num_clients: int = 350_000,
    buffer_size: int = 100,
    rounds: int = 200,
    rows: int = 100_000,
) -> Workload:
    """`logistic_many` with 100 clients a round, and rows for those memories that are read again."""
    own = logistic_many(
        batch_size=batch_size,
        num_clients=num_clients,
        buffer_size=buffer_size,
        rounds=rounds,
        rows=rows,
    )
    return own._replace(name=f"memory B={batch_size}", schedule=own.schedule.remembered())


def asynchronous(
    concurrency: int,
    batch_size: int = 20,
    buffer_size: int = 10,
    num_clients: int = 1000,
    rounds: int = 256,
) -> Workload:
    """The CNN with stale clients: ten uploads make a round, each of five local steps.

    With so many clients at work and m uploads a round, an upload is about concurrency / m rounds
    old: staleness is uniform from 0 to that.
    """
    rng = np.random.default_rng([4])
    arrays = _images(rng, num_clients * 5, (28, 28, 1))
    delay = concurrency // buffer_size
    schedule = ccfl.random_schedule(0, rounds, num_clients, buffer_size, delay)
    schedule = schedule.replace(work=np.full_like(schedule.work, 5), work_unit="steps")
    return Workload(
        name=f"async concurrency={concurrency}",
        model="cnn",
        task=ccfl.classification_task(CNN(), (28, 28, 1), 10),
        data=ccfl.FederatedData.from_indices(arrays, np.arange(5 * num_clients).reshape(-1, 5)),
        schedule=schedule,
        batch_size=batch_size,
        local_lr=0.01,
        flops=CNN_FLOPS,
    )


def _fashion_mnist() -> dict[str, np.ndarray]:
    try:
        return ccfl.load_dataset("fashion_mnist")[0]
    except (OSError, ImportError, ValueError):
        print("fmnist_cnn: Fashion-MNIST was not found, noise of the same shape instead")
        return _images(np.random.default_rng([5]), 60_000, (28, 28, 1))


def _images(rng: np.random.Generator, count: int, shape: tuple) -> dict[str, np.ndarray]:
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return {"x": x, "y": rng.integers(0, 10, count, dtype=np.int32)}


def _padded_ids(
    rng: np.random.Generator, count: int, kinds: int, least: int, most: int
) -> np.ndarray:
    """int32 `[count, most]`: `least` to `most` numbers with frequencies 1 / k, then -1."""
    frequency = 1 / np.arange(1, kinds + 1)
    ids = rng.choice(kinds, (count, most), p=frequency / frequency.sum()).astype(np.int32)
    lengths = rng.integers(least, most + 1, count)
    return np.where(np.arange(most)[None] < lengths[:, None], ids, np.int32(-1))
