"""Rules between flags, and which of them a run uses."""

import re
from importlib.util import find_spec
from typing import Any

from . import methods
from .datasets import DATASETS, MAX_WORDS, OF_STACKOVERFLOW, dataset_of
from .flag import INT32_MAX
from .methods import HYPERPARAMETERS, SERVERS


def check_together(values: dict[str, Any], given: set[str]) -> None:
    """Checks flags against each other, and sets those that the run does not use to None.

    Args:
        values: every flag's value, each in its domain.
        given: the names of the flags on the command line.

    Raises:
        ValueError: one line that names the flag, what is expected and what was found.
    """
    _check_data(values, given)
    _check_partition(values, given)
    _check_work(values, given)
    _check_server(values, given)
    _check_method(values, given)
    methods.check_scored(values)
    _check_privacy(values)
    _check_theorem(values)
    _check_processes(values)
    if values["tensorboard"] and find_spec("tensorboardX") is None:
        raise ValueError(
            "--tensorboard: expected tensorboardX (pip install 'ccfl_jax[tensorboard]'), found none"
        )
    for name, what in (("resume", "resume"), ("overwrite", "remove")):
        if values[name] and values["out_dir"] is None:
            raise ValueError(
                f"--{name}: expected with the --out_dir of the run to {what}, found without"
            )
    if values["overwrite"] and values["resume"]:
        raise ValueError("--overwrite: expected without --resume, found with it")


def _check_data(values: dict[str, Any], given: set[str]) -> None:
    if own_task := values["task"]:
        for flag in ("model", "compute_dtype"):
            if flag in given:
                raise ValueError(f"--{flag}: expected without --task, found with it")
        values["model"] = f"task({own_task})"
        if "dataset" not in given:  # its function returns the data too
            values["dataset"] = f"python({own_task})"
    name, model = values["dataset"], values["model"]
    _, _, dataset = dataset_of(name)
    if model not in dataset.models and not own_task:
        raise ValueError(
            f"--model: expected {', '.join(dataset.models)}, found {model} with --dataset={name}"
        )
    if "data_dir" in given and not dataset.files:
        users = ", ".join(other for other, one in DATASETS.items() if one.files)
        raise ValueError(f"--data_dir: expected with {users}, found with --dataset={name}")
    if dataset.drawn and values["data_dir"] is None:
        raise ValueError(f"--data_dir: expected the folder of the files of {name}, found none")
    if name in MAX_WORDS:
        values["max_words"] = values["max_words"] or MAX_WORDS[name]
        return
    for flag in OF_STACKOVERFLOW:
        if flag in given:
            users = ", ".join(MAX_WORDS)
            raise ValueError(f"--{flag}: expected with {users}, found with --dataset={name}")
        values[flag] = None


def _check_partition(values: dict[str, Any], given: set[str]) -> None:
    name, partition = values["dataset"], values["partition"]
    _, _, dataset = dataset_of(name)
    if dataset.drawn and partition != "natural":
        raise ValueError(f"--partition: expected natural, found {partition} with --dataset={name}")
    if partition == "natural" and not dataset.clients:
        with_clients = ", ".join(other for other, one in DATASETS.items() if one.clients)
        raise ValueError(
            f"--partition: expected iid, dirichlet, dirichlet_client (only {with_clients} come with"
            f" clients), found natural with --dataset={name}"
        )
    if not partition.startswith("dirichlet"):
        if "alpha" in given:
            raise ValueError(
                "--alpha: expected with dirichlet, dirichlet_client, found with --partition="
                f"{partition}"
            )
        values["alpha"] = None


def _check_work(values: dict[str, Any], given: set[str]) -> None:
    if values["buffer_size"] > values["num_clients"]:
        raise ValueError(
            f"--buffer_size: expected at most --num_clients, {values['num_clients']}, found "
            f"{values['buffer_size']}"
        )
    if {"local_epochs", "local_steps"} <= given:
        raise ValueError(
            f"--local_steps: expected without --local_epochs, found {values['local_steps']} with "
            f"--local_epochs={values['local_epochs']}"
        )
    if "local_steps" in given:
        values["local_epochs"] = None
    if values["schedule_file"] is not None and "max_delay" not in given:
        values["max_delay"] = None  # a planned history has the models that the file needs
    unit = "local_epochs" if values["local_steps"] is None else "local_steps"
    if values["work"] == "random":
        values["work"] = None
    if values["work"] == "fixed":
        if "randomness" in given and values["randomness"] != 1:
            raise ValueError(
                f"--randomness: expected 1, or --work=random, found {values['randomness']} with "
                "--work=fixed"
            )
        values["randomness"] = 1.0
    most = values[unit] * values["randomness"]
    if not (1 <= most <= INT32_MAX and most == int(most)):
        raise ValueError(
            f"--randomness: expected a product with the work that is an integer from 1 to "
            f"{INT32_MAX}, found {values['randomness']} with --{unit}={values[unit]}"
        )


def _check_server(values: dict[str, Any], given: set[str]) -> None:
    server = values["server"]
    for name in HYPERPARAMETERS:
        if name not in SERVERS[server]:
            if name in given:
                users = ", ".join(s for s, names in SERVERS.items() if name in names)
                raise ValueError(f"--{name}: expected with {users}, found with --server={server}")
            values[name] = None
    if server == "cc_fedavg":
        if values["server_lr"] not in (None, 1.0):
            raise ValueError(
                "--server_lr: expected 1, or cc_fedsgd for another step size, found "
                f"{values['server_lr']} with --server=cc_fedavg"
            )
        values["server_lr"] = 1.0
    if values["server_lr"] is None:
        raise ValueError(
            "--server_lr: expected a number >= 0 (cc_fedavg alone needs none), found none"
        )
    if values["eps"] == 0 and values["initial_accumulator"] == 0:
        raise ValueError(
            "--eps: expected > 0, or --initial_accumulator > 0 (else 0/0 without gradient), "
            "found 0 with --initial_accumulator=0"
        )


def _check_method(values: dict[str, Any], given: set[str]) -> None:
    """What does not fit together, of the flags that refine a method."""
    rule, local, attack = (
        (values[name] or "").partition("(")[0] for name in ("rule", "local", "attack")
    )
    if attack == methods.ON_DATA and not dataset_of(values["dataset"])[2].one_label:
        raise ValueError(
            f"--attack: expected {methods.ON_DATA} with one label a sample, found "
            f"{values['attack']} with --dataset={values['dataset']}"
        )
    if rule in (*methods.OWN_AGGREGATE, *methods.NO_UPLOAD):
        why = "averages in its own way" if rule in methods.OWN_AGGREGATE else "averages memories"
        for name in ("aggregate", "weights", "upload", "attack", "privacy"):
            if values[name] is not None and (name, attack) != ("attack", methods.ON_DATA):
                raise ValueError(
                    f"--{name}: expected with another rule than {rule}, which {why}, found "
                    f"{values[name]}"
                )
    if values["weights"] is not None and values["aggregate"] is not None and rule != "fedasync":
        raise ValueError(
            f"--weights: expected without --aggregate, whose uploads weigh the same, found "
            f"{values['weights']} with --aggregate={values['aggregate']}"
        )
    if rule in ("scaffold", "qfedavg") and local not in ("", "sgd", "sam"):
        raise ValueError(
            f"--local: expected sgd, of which {rule} knows the rate, found {values['local']}"
        )
    if local in ("adam", "adamw") and "local_lr" in given:
        raise ValueError(
            f"--local_lr: expected in brackets, --local='{local}(0.001)', found "
            f"{values['local_lr']} with --local={values['local']}"
        )


def _check_privacy(values: dict[str, Any]) -> None:
    """What a bound on each client's part in the model leaves no room for."""
    privacy, rule = values["privacy"], (values["rule"] or "").partition("(")[0]
    if privacy is None:
        if values["delta"] is not None:
            raise ValueError(f"--delta: expected with --privacy, found {values['delta']} without")
        return
    if rule in methods.SHARED_MEMORIES:
        raise ValueError(
            f"--privacy: expected with another rule than {rule}, whose memories' mean gets no "
            f"noise, found {privacy}"
        )
    for name, why in (("weights", "uploads weigh the same"), ("aggregate", "own mean is bounded")):
        if values[name] is not None:
            raise ValueError(
                f"--{name}: expected without --privacy, whose {why}, found {values[name]} with "
                f"--privacy={privacy}"
            )
    kind, attack = methods.named("privacy", privacy)[0], values["attack"]
    if kind == "dp_fedavg_adaptive" and not (attack or methods.ON_DATA).startswith(methods.ON_DATA):
        raise ValueError(
            f"--attack: expected {methods.ON_DATA} with {kind}, whose clients send a count too, "
            f"found {attack}"
        )


def _check_theorem(values: dict[str, Any]) -> None:
    known = [name for name in ("smoothness", "gradient_bound") if values[name] is not None]
    if known and (values["server"] != "cc_fedadagrad" or len(known) < 2):
        raise ValueError(
            f"--{known[0]}: expected with cc_fedadagrad, --smoothness and --gradient_bound "
            f"together, found with --server={values['server']}"
        )


def _check_processes(values: dict[str, Any]) -> None:
    coordinator, count, which = (
        values[name] for name in ("coordinator", "num_processes", "process_id")
    )
    if coordinator in (None, "auto"):
        if count is not None or which is not None:
            raise ValueError(
                "--num_processes, --process_id: expected with --coordinator=HOST:PORT, found "
                f"{count}, {which} with --coordinator={coordinator}"
            )
    elif not re.fullmatch(r"\S+:\d+", coordinator) or count is None or which is None:
        raise ValueError(
            f"--coordinator: expected auto, or HOST:PORT with both, found {coordinator!r} with "
            f"--num_processes={count} and --process_id={which}"
        )
    elif which >= count:
        raise ValueError(
            f"--process_id: expected 0 to {count - 1} (--num_processes={count}), found {which}"
        )
    if coordinator is not None and values["out_dir"] is None:
        raise ValueError(
            "--coordinator: expected with an --out_dir that all processes see, found without"
        )
