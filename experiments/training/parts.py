"""The parts of a run, from its `Config`: data, clients, server, round."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import ccfl_jax as ccfl
from ccfl_jax.algorithm import server_optimizers as servers
from ccfl_jax.checks import device_bytes
from ccfl_jax.data.synthetic import synthetic
from ccfl_jax.runs import metrics, provenance

from ..config.datasets import OF_STACKOVERFLOW, dataset_of
from ..config.flag import INT32_MAX
from ..config.run_flags import Config
from . import client_lists, method
from .client_lists import Owners
from .method import Numbers

# The stream of the held-out samples: no other part of a run with the same seed shares it.
_HELD_OUT_STREAM = 0x48454C44


class Loaded(NamedTuple):
    """The data of a run, "x", "y" and for some "client".

    Attributes:
        train: the training samples.
        validation: those of them that are held out, or None.
        test: the test set.
        left_out: how many clients have too few samples to be drawn.
        num_classes: of the labels; None where a sample has not one label.
    """

    train: dict[str, np.ndarray]
    validation: dict[str, np.ndarray] | None
    test: dict[str, np.ndarray]
    left_out: int
    num_classes: int | None


def source(config: Config) -> tuple:
    """The arguments of `load` for a run: equal ones give equal data."""
    is_drawn = config.dataset == "synthetic" or config.validation is not None
    own = config.dataset, config.data_dir, config.validation, config.data_seed if is_drawn else None
    if not dataset_of(config.dataset)[2].drawn:
        return own
    limits = (getattr(config, n) for n in OF_STACKOVERFLOW)
    every = config.num_clients + (config.unseen_clients or 0)
    return *own, every, config.seed_of("data"), *limits


def load(
    dataset: str,
    data_dir: str | None,
    validation: float | None = None,
    data_seed: int | None = None,
    *drawn: int,
) -> Loaded:
    """The data, as `ccfl.load_dataset`, with this share of the training samples held out.

    Files of one's own, `npz(PATH)`, are read by the function of `ccfl_jax.data` that their form
    names, `load_npz`. What is held out, and synthetic samples, are the same for every seed, so that
    trials share them, unless a `data_seed` draws them.
    """
    name, arguments, properties = dataset_of(dataset)
    left_out, num_classes = 0, ccfl.data.NUM_CLASSES.get(name)
    if arguments:
        path, *columns = arguments
        read = getattr(ccfl.data, f"load_{name}")
        train, test, num_classes = read(os.path.expanduser(path), *columns)
    elif properties.drawn:
        num_clients, seed, *limits = drawn
        used = {n: v for n, v in zip(OF_STACKOVERFLOW, limits, strict=True) if v is not None}
        read = getattr(ccfl.data, f"load_{name}", partial(ccfl.data.load_tff, name))
        train, test, counts = read(data_dir, num_clients, seed, **used)
        left_out = counts["too_small"]
    elif dataset == "synthetic" and data_seed is not None:
        train, test, _ = synthetic(seed=data_seed)
    else:
        train, test = ccfl.load_dataset(name, data_dir)
    return Loaded(*held_out(train, validation, data_seed), test, left_out, num_classes)


def arrays_of(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a task sees of samples: all arrays but their clients."""
    return {name: array for name, array in part.items() if name != "client"}


def held_out(
    train: dict[str, np.ndarray], share: float | None, seed: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """Training samples without a share of them, and that share; without a seed always the same.

    Where samples have clients, each keeps one at least.
    """
    if share is None:
        return train, None
    stream = 0 if seed is None else [seed, _HELD_OUT_STREAM]
    order = np.random.default_rng(stream).permutation(len(next(iter(train.values()))))
    if "client" in train:
        kept = np.unique(train["client"][order], return_index=True)[1]
        order = np.concatenate([np.delete(order, kept), order[kept]])
    held = np.zeros(len(order), bool)
    held[order[: round(share * len(order))]] = True
    if "client" in train:
        held[order[len(order) - len(kept) :]] = False
    parts = ({name: a[rows] for name, a in train.items()} for rows in (~held, held))
    return next(parts), next(parts)


def clients(config: Config, train: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The row numbers of every client, also of those who do not take part."""
    unseen = config.unseen_clients or 0
    labels, count, seed = train.get("y"), config.num_clients + unseen, config.seed_of("data")
    if config.partition != "natural" and (labels is None or labels.ndim != 1):
        found = "no y" if labels is None else f"y {list(labels.shape)}"
        raise ValueError(
            f"--partition: expected natural for samples without a label each, found {found} with "
            f"--partition={config.partition}"
        )
    if config.partition == "iid":
        return ccfl.partition_iid(labels, count, seed)
    if config.partition == "natural":
        if "client" not in train:
            raise ValueError(
                "--partition: expected iid, dirichlet, dirichlet_client (or clients in the data), "
                f"found natural with --dataset={config.dataset}"
            )
        lists = ccfl.partition_natural(train["client"])
        if len(lists) != count:
            but = f" but {unseen} unseen" if unseen else ""
            raise ValueError(
                f"--num_clients: expected {len(lists) - unseen}, the clients of {config.dataset}"
                f"{but}, found {config.num_clients} with --partition=natural"
            )
        return lists
    by = "client" if config.partition == "dirichlet_client" else "label"
    return ccfl.partition_dirichlet(labels, count, config.alpha, seed, by=by)


def dealt(config: Config, train: dict[str, np.ndarray]) -> dict[str, Owners]:
    """The rows of clients: "train", those who take part train on; where wanted "clients", what each
    of them is tested on, and "unseen", those of the clients who do not take part.

    Raises:
        ValueError: if the data cannot be partitioned so, or a client's work cannot be counted.
    """
    found, seed = {"train": clients(config, train)}, config.seed_of("data")
    if config.unseen_clients is not None:
        seen, unseen = client_lists.without_unseen(found["train"], config.unseen_clients, seed)
        found = {"train": seen, "unseen": unseen}
    if config.client_test is not None:
        rest, tested = client_lists.split(found["train"], config.client_test, seed)
        found |= {"train": rest, "clients": tested}
    _check_visits(config, max(map(len, found["train"])))
    return {name: client_lists.owners(own) for name, own in found.items()}


def data_digests(source: tuple, train: dict, test: dict) -> dict[str, str]:
    """The provenance of the data of `load(*source)`: name -> digest."""
    settings = [one for k, one in enumerate(source) if k != 1 and one is not None]
    name = ",".join(map(str, settings))  # other settings may draw others of its clients
    return {f"train[{name}]": provenance.digest(train), f"test[{name}]": provenance.digest(test)}


def client_digest(config: Config, owners: Owners, of: str = "") -> dict[str, str]:
    """The provenance of the clients' rows to train on, as `dealt`; `of`: in its name."""
    rows, starts = owners
    found = provenance.digest({"rows": rows, "starts": starts})
    return {f"clients[{of}seed={config.seed_of('data')}]": found}


def _check_visits(config: Config, largest: int) -> None:
    """Raises ValueError for work of more samples in a round than int32 counts."""
    each = largest if config.work_unit == "epochs" else config.batch_size
    if config.most_work * each > INT32_MAX:
        raise ValueError(
            f"--local_{config.work_unit}: expected at most "
            f"{int(INT32_MAX / each / config.randomness)}, {INT32_MAX} samples of a client, found "
            f"{config.local_work} with --randomness={config.randomness:g} and {each} samples each"
        )


def first_state(
    config: Config,
    task: ccfl.Task,
    history: int,
    numbers: Numbers,
    key: jax.Array,
    init_key: jax.Array | None = None,
) -> ccfl.State:
    """The state before round 0, with a history of `history` models.

    Args:
        config, task, history, numbers: of the run.
        key: of `seed`.
        init_key: of the first model, by default `key`.

    Raises:
        ValueError: if a device cannot hold that history.
    """
    _check_history(config, task, history)
    own = method.made(config, numbers, task)
    return ccfl.init_state(
        task,
        own.server,
        key,
        history,
        own.aggregate,
        own.rule,
        config.num_clients,
        init_key=init_key,
    )


def model_bytes(task: ccfl.Task) -> int:
    """Bytes of one model's parameters."""
    return metrics.model_bytes(model(task))


def model(task: ccfl.Task) -> Any:
    """The shapes of one model's parameters."""
    return jax.eval_shape(task.init, jax.random.key(0))


def _check_history(config: Config, task: ccfl.Task, history: int) -> None:
    """Raises ValueError for a history larger than a device, for which XLA may wait endlessly, and
    for clients' fine-tuned models that it cannot hold."""
    size, room = model_bytes(task), device_bytes()
    if config.fine_tune is not None and config.num_clients * size > room:
        raise ValueError(
            f"--fine_tune: expected at most {room // size} clients (models of {size / 1e6:.3g} MB "
            f"on a device of {room / 1e6:.3g} MB), found {config.num_clients}"
        )
    if history * size <= room:
        return
    fits = f"(models of {size / 1e6:.3g} MB on a device of {room / 1e6:.3g} MB)"
    if config.schedule_file is not None:
        raise ValueError(
            f"--schedule_file: expected a history of at most {room // size} models {fits}, found "
            f"{history}"
        )
    raise ValueError(
        f"--max_delay: expected at most {max(room // size - 1, 0)} {fits}, found {history - 1}"
    )


def round_at(
    config: Config, task: ccfl.Task, num_classes: int | None, mesh: jax.sharding.Mesh | None
) -> Callable:
    """`round_at(numbers, state, slots, data) -> (state, info)`: one round with these numbers."""

    def run(numbers: Numbers, state: ccfl.State, slots: ccfl.Schedule, data: ccfl.FederatedData):
        own = method.made(config, numbers, task)
        data = method.poisoned(config, numbers, data, num_classes)
        round_fn = ccfl.build_round(
            task,
            own.server,
            own.local,
            batch_size=config.batch_size,
            work_unit=config.work_unit,
            normalise=config.normalise,
            lanes=config.lanes,
            mesh=mesh,
            aggregate=own.aggregate,
            rule=own.rule,
        )
        return round_fn(state, slots, data)

    return run


def further(held: list[dict[str, float]], share: float) -> dict[str, float]:
    """The columns of a row besides those of `metrics`: scores of held-out samples, and how far the
    server adapts."""
    scores = {f"validation_{name}": value for own in held for name, value in own.items()}
    return {**scores, "adaptive_share": share}


# Of a run's and of trials' server states, and `method.floor`; nan for a method without a root.
adaptive_share = jax.jit(servers.adaptive_share)
adaptive_shares = jax.jit(jax.vmap(servers.adaptive_share))
