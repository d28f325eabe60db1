"""The flags of a run: its settings, `Config`, as a table."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from . import flag as flags
from .datasets import DATASET_FORMS, MODELS
from .expression import COMPARISON, FUNCTION, domain
from .flag import DECAY, PATH, POSITIVE, RATE, SWITCH, UTF8_PATH, flag, one_of, switch_or, whole
from .flag_rules import check_together
from .methods import FORMS, METHODS, SERVERS, fill

_data = partial(flag, section="Data and model")
_schedule = partial(flag, section="Schedule")
_clients = partial(flag, section="Clients")
_server = partial(flag, section="Server")
_method = partial(flag, section="Method")
_exposed = partial(flag, section="Attack and privacy")
_run = partial(flag, section="Run")
_processes = partial(flag, section="Several processes", may_change="always")

_SEED = whole(0, 2**32 - 1)
_ONE_PROCESS = {"a sweep": "one process, with --devices", "a schedule to make": "one process"}
_OF_THE_THEOREM = {"a sweep": "with a single run, which prints the theorem's conditions"}


@dataclass(frozen=True)
class Config:
    """Every resolved setting of one run; None where the run does not use it.

    One of `local_epochs` and `local_steps` is None: the other has the unit of local work.
    `server_lr` is 1 for cc_fedavg.
    """

    dataset: str = _data(domain(DATASET_FORMS), "fashion_mnist", "data set, or files of one's own")
    data_dir: str | None = _data(
        PATH,
        None,
        "folder of the data set's files (IDX, CIFAR binary, SQLite of TFF's release)",
        may_change="always",
    )
    model: str = _data(
        one_of(*MODELS),
        "cnn",
        "model that takes such samples; cnn: NIID-Bench's, resnets: with GroupNorm",
    )
    compute_dtype: str = _data(
        one_of("float32", "bfloat16"), "float32", "of the model's computation; all else is float32"
    )
    task: str | None = _data(FUNCTION, None, "returns a ccfl.Task, or (task, train, test)")
    num_clients: int = _data(whole(1), 100, "clients that train; of SQLite files so many are drawn")
    partition: str = _data(
        one_of("iid", "dirichlet", "dirichlet_client", "natural"),
        "dirichlet",
        "dirichlet: per label, over clients (NIID-Bench); dirichlet_client: per client, over "
        "labels (Hsu et al.); natural: the clients of the data set",
    )
    alpha: float | None = _data(POSITIVE, 0.5, "Dirichlet concentration; small is skewed")
    max_examples: int | None = _data(whole(1), 500, "stackoverflow: most examples of a client")
    min_examples: int | None = _data(whole(1), 1, "stackoverflow: clients with fewer are left out")
    max_words: int | None = _data(
        whole(1), None, "stackoverflow: words of a text; unset: 150, of stackoverflow_nwp 20"
    )
    validation: float | None = _data(
        flags.SHARE, None, "share of the training samples held out and scored"
    )
    client_test: float | None = _data(
        flags.SHARE, None, "share of each client's rows that only test it"
    )
    unseen_clients: int | None = _data(
        whole(1), None, "further clients, who never take part and are scored"
    )

    rounds: int = _schedule(whole(1), 500, "server updates in all", may_change="in a run")
    buffer_size: int = _schedule(whole(1), 5, "m, uploads that make a round")
    max_delay: int | None = _schedule(whole(0), 5, "tau, oldest model a client may start from")
    local_epochs: int | None = _schedule(
        whole(1), 3, "K in epochs; a client does 1 to K * randomness"
    )
    local_steps: int | None = _schedule(whole(1), None, "K in steps, instead of --local_epochs")
    randomness: float = _schedule(POSITIVE, 2.0, "R, spread of local work")
    work: str | None = _schedule(
        one_of("random", "fixed"),
        None,
        "random, where it is unset; fixed: every client does K",
        no_use={"a schedule to make": "--randomness"},
    )
    schedule_file: str | None = _schedule(
        PATH,
        None,
        "run this schedule.npz, with its seed for {seed} in its name; the flags of this section "
        "must cover it, --max_delay where it is given",
        may_change="always",
        no_use={"a schedule to make": "--show=PATH, which shows one"},
    )

    local_lr: float = _clients(RATE, 0.01, "eta_l, step size of local SGD")
    batch_size: int = _clients(whole(1), 20, "rows of a local step")
    normalise: Literal["steps", "epochs", "none"] = _clients(
        one_of("steps", "epochs", "none"), "steps", "what a client divides its delta by"
    )
    lanes: int | None = _clients(
        whole(1),
        None,
        "clients together on a device; unset: by the model's size",
        may_change="always",
    )
    devices: int | None = _clients(
        whole(1),
        None,
        "devices to spread clients over; unset: all, or one per CPU core",
        may_change="always",
    )
    data_memory: float | None = _clients(
        POSITIVE,
        None,
        "MB of a device for training data; larger data are streamed in pieces, two at a time; "
        "unset: half an accelerator's memory, no limit on a CPU",
        may_change="always",
        no_use={"a sweep": "data that fit on a device"},
    )

    method: str | None = _method(
        one_of(*METHODS),
        None,
        "a system by its name: the flags that make it, where they are not given",
    )
    rule: str | None = _method(
        domain(FORMS["rule"]), None, "what clients remember, do besides and send"
    )
    upload: str | None = _method(
        domain(FORMS["upload"], several=True),
        None,
        "what is done to an upload before it is sent; feedback: what is not sent is added to the "
        "client's next upload",
    )
    weights: str | None = _method(
        domain(FORMS["weights"]),
        None,
        "of uploads in their mean: by samples, or by staleness; divide: by the sum of weights, "
        "not by m",
    )
    aggregate: str | None = _method(
        domain(FORMS["aggregate"]), None, "how uploads become one; unset: their mean"
    )
    local: str | None = _method(
        domain(FORMS["local"]),
        None,
        "the clients' optimiser; unset: SGD at --local_lr, as of sgd and sam",
    )
    attack: str | None = _exposed(
        domain(FORMS["attack"]), None, "of a share of the clients, drawn from the seed"
    )
    privacy: str | None = _exposed(
        domain(FORMS["privacy"]), None, "clipped uploads, and noise on their sum, over m"
    )
    delta: float | None = _exposed(flags.SHARE, None, "of --privacy: the rows have its epsilon")
    server: str = _server(one_of(*SERVERS), "cc_fedams", "server optimiser")
    server_lr: float = _server(RATE, None, "eta; needed but for cc_fedavg and methods that say 1")
    b1: float | None = _server(DECAY, 0.9, "beta, momentum")
    b2: float | None = _server(DECAY, 0.99, "gamma, decay of the second moment")
    eps: float | None = _server(RATE, 1e-3, "added to the root of the second moment")
    initial_accumulator: float | None = _server(RATE, 0.0, "second moment before the first round")
    smoothness: float | None = _server(
        POSITIVE,
        None,
        "L of the theorem, whose conditions are then printed",
        may_change="always",
        no_use=_OF_THE_THEOREM,
    )
    gradient_bound: float | None = _server(
        POSITIVE,
        None,
        "G of the theorem; cc_fedadagrad alone has one",
        may_change="always",
        no_use=_OF_THE_THEOREM,
    )

    seed: int = _run(_SEED, 0, "of every draw without a seed of its own")
    data_seed: int | None = _run(_SEED, None, "of the partition; given, of held-out data too")
    init_seed: int | None = _run(_SEED, None, "of the first model")
    schedule_seed: int | None = _run(_SEED, None, "of the schedule")
    eval_every: int = _run(whole(1), 10, "rounds between evaluations", may_change="in a run")
    max_rejected: int | None = _run(
        whole(0), None, "rejected uploads that do not yet end the run", may_change="in a run"
    )
    target: str | None = _run(
        COMPARISON, None, "score that ends it, as accuracy>=0.8", may_change="in a run"
    )
    fine_tune: int | None = _run(
        whole(1),
        None,
        "epochs in which each client fine-tunes the last model",
        may_change="always",
        no_use={"a sweep": "a single run, whose clients.csv has the scores"},
    )
    checkpoint_every: int | None = _run(
        whole(1),
        None,
        "rounds between checkpoints; unset: one with each evaluation, of a sweep one a minute",
        may_change="always",
    )
    keep_checkpoints: int = _run(
        whole(1), 2, "newest checkpoints kept, besides the best", may_change="always"
    )
    out_dir: str | None = _run(
        UTF8_PATH,
        None,
        "run folder; unset: runs/DATASET-SERVER-001, -002, ...",
        may_change="always",
    )
    resume: bool | str = _run(
        switch_or("auto"),
        False,
        "continue from the newest checkpoint in --out_dir; auto: where there is one, else start",
        may_change="always",
        no_use={
            "tuned trials": "the same command again, which continues them",
            "a schedule to make": "--overwrite, to make it anew",
        },
    )
    accept_changed: str = flags.accept_changed(
        "Run", may_change="always", no_use={"a schedule to make": "--overwrite, to make it anew"}
    )
    overwrite: bool = _run(
        SWITCH, False, "remove the run in --out_dir, and start anew", may_change="always"
    )
    progress: bool = _run(
        SWITCH, True, "show a progress bar where stderr is a terminal", may_change="always"
    )
    compilation_cache: str = _run(
        PATH,
        "~/.cache/ccfl_jax",
        "folder of compiled programs, for later starts; or off",
        may_change="always",
    )

    tensorboard: bool = _run(SWITCH, False, "event files, beside the rows", may_change="always")

    coordinator: str | None = _processes(
        PATH,
        None,
        "HOST:PORT of process 0, the same for all; or auto, where JAX knows it",
        no_use=_ONE_PROCESS,
    )
    num_processes: int | None = _processes(
        whole(1), None, "number of processes; the other flags are the same for all"
    )
    process_id: int | None = _processes(whole(0), None, "this process's number, from 0")

    @property
    def work_unit(self) -> Literal["epochs", "steps"]:
        """The unit of local work."""
        return "epochs" if self.local_steps is None else "steps"

    @property
    def local_work(self) -> int:
        """K, in that unit."""
        return self.local_epochs if self.local_steps is None else self.local_steps

    @property
    def most_work(self) -> float:
        """K R, the most work of a client; an integer."""
        return self.local_work * self.randomness

    def seed_of(self, what: Literal["data", "init", "schedule"]) -> int:
        """The seed of the clients' data, of the first model or of the schedule."""
        own = getattr(self, f"{what}_seed")
        return self.seed if own is None else own

    @property
    def accepted(self) -> list[str]:
        """The names in `accept_changed`."""
        return flags.listed(self.accept_changed)

    def steps_per_work(self, sizes: Any) -> Any:
        """The local steps of one unit of work, for clients of `sizes`: ceil(n / B), or 1."""
        return -(-sizes // self.batch_size) if self.local_steps is None else (sizes > 0) * 1


RUN = flags.table(Config)


def parse(argv: list[str]) -> Config:
    """Reads the command line of a run (`argv[0]` is the program).

    Raises:
        ValueError: one line that names the flag, what is expected and what was found: as
            `flag.read`, and for flags that exclude each other or that the run does not use.
    """
    return resolve(flags.read(argv, RUN))


def resolve(given: flags.Given) -> Config:
    """The `Config` of parsed flags, after checking them together."""
    values = {name: given.values[name] for name in RUN}
    check_together(values, fill(values, given))
    return Config(**values)
