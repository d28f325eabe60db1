"""What flags say together: combinations that a run has no use for are refused, never ignored."""

import re

# Server method -> the flags that are its hyperparameters, besides --server_lr.
SERVERS = {
    "cc_fedavg": (),
    "cc_fedsgd": (),
    "cc_fedavgm": ("b1",),
    "cc_fedadagrad": ("b1", "eps", "initial_accumulator"),
    "cc_fedadam": ("b1", "b2", "eps", "initial_accumulator"),
    "cc_fedams": ("b1", "b2", "eps", "initial_accumulator"),
}
# Data set -> the models it can be learnt by.
MODELS = {
    "digits": ("mlp", "logistic"),
    "fashion_mnist": ("cnn", "mcmahan_cnn", "mlp", "logistic", "resnet18", "resnet20"),
    "synthetic": ("mlp", "logistic"),
    "cifar10": ("resnet18", "resnet20", "mlp", "logistic"),
    "cifar100": ("resnet18", "resnet20", "mlp", "logistic"),
    "stackoverflow": ("tags",),
}
_WITH_CLIENTS = ("synthetic", "stackoverflow")
_WITHOUT_FILES = ("digits", "synthetic")
OF_STACKOVERFLOW = ("max_examples", "min_examples", "max_words")
INT32_MAX = 2**31 - 1
# What a sweep may vary: all but the server are numbers that one compiled program takes.
VARIABLE = ("server", "server_lr", "local_lr", "b1", "b2", "eps", "initial_accumulator", "seed")


def check_together(values: dict[str, object], given: set[str]) -> None:
    """Checks flags against each other, and sets to None what the run has no use for.

    Args:
        values: every flag's value, each legal by itself.
        given: the names of the flags that were on the command line.

    Raises:
        ValueError: one line that names the flag, what was found and what is legal.
    """
    _check_data(values, given)
    _check_work(values, given)
    _check_server(values, given)
    _check_processes(values)
    if values["resume"] and values["out_dir"] is None:
        raise ValueError(
            "--resume: found no --out_dir, legal: with the --out_dir of the run to go on"
        )
    if values["overwrite"] and values["out_dir"] is None:
        raise ValueError(
            "--overwrite: found no --out_dir, legal: with the --out_dir of the run to remove"
        )
    if values["overwrite"] and values["resume"]:
        raise ValueError("--overwrite: found with --resume, legal: one of them")


def check_sweep(values: dict[str, object], given: set[str]) -> None:
    """Checks the flags of a sweep that its trials do not have, or have no use for.

    Raises:
        ValueError: one line that names the flag, what was found and what is legal.
    """
    for name in ("vary", "out_dir"):
        if values[name] is None:
            raise ValueError(f"--{name}: found none, legal: one, for a sweep")
    refused = {
        "resume": "the same command again, which goes on where the sweep stopped",
        "coordinator": "one process, with --devices",
        "data_memory": "data that fit on a device",
        "progress": "nothing, a sweep prints a line for each trial",
        "smoothness": "with a single run, which prints the theorem's conditions",
        "gradient_bound": "with a single run, which prints the theorem's conditions",
    }
    refuse(given, refused, "a sweep")


def refuse(given: set[str], refused: dict[str, str], place: str) -> None:
    """Refuses flags that were given where there is no use for them; `refused`: what is legal."""
    for name, legal in refused.items():
        if name in given:
            raise ValueError(f"--{name}: found with {place}, legal: {legal}")


def _check_data(values: dict[str, object], given: set[str]) -> None:
    dataset, model, partition = (values[k] for k in ("dataset", "model", "partition"))
    if model not in MODELS[dataset]:
        raise ValueError(
            f"--model: found {model} with --dataset={dataset}, legal: {', '.join(MODELS[dataset])}"
        )
    if "data_dir" in given and dataset in _WITHOUT_FILES:
        users = ", ".join(name for name in MODELS if name not in _WITHOUT_FILES)
        raise ValueError(f"--data_dir: found with --dataset={dataset}, legal: with {users}")
    if dataset == "stackoverflow" and values["data_dir"] is None:
        raise ValueError("--data_dir: found none, legal: the folder of the Stack Overflow files")
    if dataset == "stackoverflow" and partition != "natural":
        raise ValueError(
            f"--partition: found {partition} with --dataset=stackoverflow, legal: natural"
        )
    if partition == "natural" and dataset not in _WITH_CLIENTS:
        raise ValueError(
            f"--partition: found natural with --dataset={dataset}, legal: iid, dirichlet, "
            f"dirichlet_client (only {', '.join(_WITH_CLIENTS)} come with clients)"
        )
    if dataset != "stackoverflow":
        for name in OF_STACKOVERFLOW:
            if name in given:
                raise ValueError(
                    f"--{name}: found with --dataset={dataset}, legal: with stackoverflow"
                )
            values[name] = None
    if not partition.startswith("dirichlet"):
        if "alpha" in given:
            raise ValueError(
                f"--alpha: found with --partition={partition}, legal: with dirichlet, "
                "dirichlet_client"
            )
        values["alpha"] = None


def _check_work(values: dict[str, object], given: set[str]) -> None:
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


def _check_processes(values: dict[str, object]) -> None:
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


def _check_server(values: dict[str, object], given: set[str]) -> None:
    server = values["server"]
    for name in ("b1", "b2", "eps", "initial_accumulator"):
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
    given_of_theorem = [n for n in ("smoothness", "gradient_bound") if values[n] is not None]
    if given_of_theorem and (server != "cc_fedadagrad" or len(given_of_theorem) < 2):
        raise ValueError(
            f"--{given_of_theorem[0]}: found with --server={server}, legal: with cc_fedadagrad, "
            "--smoothness and --gradient_bound together"
        )
