"""What can be chosen, and what flags say together: nothing that a run has no use for is ignored."""

import re
from typing import Any, NamedTuple

from .flag import INT32_MAX

# Server method -> the flags that are its hyperparameters, besides --server_lr.
SERVERS = {
    "cc_fedavg": (),
    "cc_fedsgd": (),
    "cc_fedavgm": ("b1",),
    "cc_fedadagrad": ("b1", "eps", "initial_accumulator"),
    "cc_fedadam": ("b1", "b2", "eps", "initial_accumulator"),
    "cc_fedams": ("b1", "b2", "eps", "initial_accumulator"),
}
HYPERPARAMETERS = ("b1", "b2", "eps", "initial_accumulator")
# Model -> its class in `ccfl_jax.models`.
MODELS = {
    "mlp": "MLP",
    "logistic": "Logistic",
    "cnn": "CNN",
    "mcmahan_cnn": "McMahanCNN",
    "resnet18": "ResNet18",
    "resnet20": "ResNet20",
    "tags": "TagLogistic",
}


class Dataset(NamedTuple):
    """What is known of a data set.

    Attributes:
        models: those that it can be learnt by.
        files: whether it is read from a folder that may be named.
        clients: whether its samples come with clients.
    """

    models: tuple[str, ...]
    files: bool = True
    clients: bool = False


_ANY = ("mlp", "logistic")
DATASETS = {
    "digits": Dataset(_ANY, files=False),
    "fashion_mnist": Dataset(("cnn", "mcmahan_cnn", *_ANY, "resnet18", "resnet20")),
    "synthetic": Dataset(_ANY, files=False, clients=True),
    "cifar10": Dataset(("resnet18", "resnet20", *_ANY)),
    "cifar100": Dataset(("resnet18", "resnet20", *_ANY)),
    "stackoverflow": Dataset(("tags",), clients=True),
}
OF_STACKOVERFLOW = ("max_examples", "min_examples", "max_words")


def check_together(values: dict[str, Any], given: set[str]) -> None:
    """Checks flags against each other, and sets to None what the run has no use for.

    Args:
        values: every flag's value, each legal by itself.
        given: the names of the flags that were on the command line.

    Raises:
        ValueError: one line that names the flag, what was found and what is legal.
    """
    _check_data(values, given)
    _check_partition(values, given)
    _check_work(values, given)
    _check_server(values, given)
    _check_theorem(values)
    _check_processes(values)
    for name, what in (("resume", "go on"), ("overwrite", "remove")):
        if values[name] and values["out_dir"] is None:
            raise ValueError(
                f"--{name}: found no --out_dir, legal: with the --out_dir of the run to {what}"
            )
    if values["overwrite"] and values["resume"]:
        raise ValueError("--overwrite: found with --resume, legal: one of them")


def _check_data(values: dict[str, Any], given: set[str]) -> None:
    name, model = values["dataset"], values["model"]
    dataset = DATASETS[name]
    if model not in dataset.models:
        raise ValueError(
            f"--model: found {model} with --dataset={name}, legal: {', '.join(dataset.models)}"
        )
    if "data_dir" in given and not dataset.files:
        users = ", ".join(other for other, one in DATASETS.items() if one.files)
        raise ValueError(f"--data_dir: found with --dataset={name}, legal: with {users}")
    if name == "stackoverflow":
        if values["data_dir"] is None:
            raise ValueError(
                "--data_dir: found none, legal: the folder of the Stack Overflow files"
            )
        return
    for flag in OF_STACKOVERFLOW:
        if flag in given:
            raise ValueError(f"--{flag}: found with --dataset={name}, legal: with stackoverflow")
        values[flag] = None


def _check_partition(values: dict[str, Any], given: set[str]) -> None:
    name, partition = values["dataset"], values["partition"]
    if name == "stackoverflow" and partition != "natural":
        raise ValueError(f"--partition: found {partition} with --dataset={name}, legal: natural")
    if partition == "natural" and not DATASETS[name].clients:
        with_clients = ", ".join(other for other, one in DATASETS.items() if one.clients)
        raise ValueError(
            f"--partition: found natural with --dataset={name}, legal: iid, dirichlet, "
            f"dirichlet_client (only {with_clients} come with clients)"
        )
    if not partition.startswith("dirichlet"):
        if "alpha" in given:
            raise ValueError(
                f"--alpha: found with --partition={partition}, legal: with dirichlet, "
                "dirichlet_client"
            )
        values["alpha"] = None


def _check_work(values: dict[str, Any], given: set[str]) -> None:
    if values["buffer_size"] > values["num_clients"]:
        raise ValueError(
            f"--buffer_size: found {values['buffer_size']}, legal: at most --num_clients, "
            f"{values['num_clients']}"
        )
    if {"local_epochs", "local_steps"} <= given:
        raise ValueError(
            f"--local_steps: found {values['local_steps']} beside --local_epochs="
            f"{values['local_epochs']}, legal: one of the two"
        )
    if "local_steps" in given:
        values["local_epochs"] = None
    if values["schedule_file"] is not None and "max_delay" not in given:
        values["max_delay"] = None  # a planned history has room for what the file asks for
    unit = "local_epochs" if values["local_steps"] is None else "local_steps"
    most = values[unit] * values["randomness"]
    if not (1 <= most <= INT32_MAX and most == int(most)):
        raise ValueError(
            f"--randomness: found {values['randomness']} with --{unit}={values[unit]}, legal: "
            f"where their product ({most:g}) is a whole number from 1 to {INT32_MAX}"
        )


def _check_server(values: dict[str, Any], given: set[str]) -> None:
    server = values["server"]
    for name in HYPERPARAMETERS:
        if name not in SERVERS[server]:
            if name in given:
                users = ", ".join(s for s, names in SERVERS.items() if name in names)
                raise ValueError(f"--{name}: found with --server={server}, legal: with {users}")
            values[name] = None
    if server == "cc_fedavg":
        if values["server_lr"] not in (None, 1.0):
            raise ValueError(
                f"--server_lr: found {values['server_lr']} with --server=cc_fedavg, legal: 1, or "
                "cc_fedsgd for another step size"
            )
        values["server_lr"] = 1.0
    if values["server_lr"] is None:
        raise ValueError(
            "--server_lr: found none, legal: a number from 0 (only cc_fedavg does without)"
        )
    if values["eps"] == 0 and values["initial_accumulator"] == 0:
        raise ValueError(
            "--eps: found 0 with --initial_accumulator=0, legal: one of the two above 0 (else a "
            "coordinate without gradient is 0/0)"
        )


def _check_theorem(values: dict[str, Any]) -> None:
    known = [name for name in ("smoothness", "gradient_bound") if values[name] is not None]
    if known and (values["server"] != "cc_fedadagrad" or len(known) < 2):
        raise ValueError(
            f"--{known[0]}: found with --server={values['server']}, legal: with cc_fedadagrad, "
            "--smoothness and --gradient_bound together"
        )


def _check_processes(values: dict[str, Any]) -> None:
    coordinator, count, which = (
        values[name] for name in ("coordinator", "num_processes", "process_id")
    )
    if coordinator in (None, "auto"):
        if count is not None or which is not None:
            raise ValueError(
                f"--num_processes, --process_id: found {count}, {which} with --coordinator="
                f"{coordinator}, legal: with --coordinator=HOST:PORT"
            )
    elif not re.fullmatch(r"\S+:\d+", coordinator) or count is None or which is None:
        raise ValueError(
            f"--coordinator: found {coordinator!r} with --num_processes={count} and --process_id="
            f"{which}, legal: auto, or HOST:PORT with both"
        )
    elif which >= count:
        raise ValueError(f"--process_id: found {which}, legal: 0 to {count - 1}, --num_processes")
    if coordinator is not None and values["out_dir"] is None:
        raise ValueError(
            "--coordinator: found no --out_dir, legal: with one that all processes see"
        )
