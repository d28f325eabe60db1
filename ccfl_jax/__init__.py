"""ccfl_jax: client-centric federated adaptive optimisation, simulated as one compiled program."""

from ccfl_jax import clock
from ccfl_jax import systems
from ccfl_jax import theory
from ccfl_jax.clock import availability
from ccfl_jax.clock import speed
from ccfl_jax.clock import traces
from ccfl_jax.algorithm import terms
from ccfl_jax.algorithm.aggregators import mean
from ccfl_jax.clock.event_clock import clock_schedule
from ccfl_jax.schedules.random_schedule import random_schedule
from ccfl_jax.data import FederatedData
from ccfl_jax.data import load_dataset
from ccfl_jax.data import load_stackoverflow
from ccfl_jax.data import partition_dirichlet
from ccfl_jax.data import partition_iid
from ccfl_jax.data import partition_natural
from ccfl_jax.engine.state import Info
from ccfl_jax.engine.state import State
from ccfl_jax.engine.rounds import build_round
from ccfl_jax.engine.first_state import init_state
from ccfl_jax.schedules.schedule import Schedule
from ccfl_jax.algorithm.server_optimizers import cc_fedadagrad
from ccfl_jax.algorithm.server_optimizers import cc_fedadam
from ccfl_jax.algorithm.server_optimizers import cc_fedams
from ccfl_jax.algorithm.server_optimizers import cc_fedavg
from ccfl_jax.algorithm.server_optimizers import cc_fedavgm
from ccfl_jax.algorithm.server_optimizers import cc_fedsgd
from ccfl_jax.algorithm.server_optimizers import scale_by_cc_adagrad
from ccfl_jax.algorithm.server_optimizers import scale_by_cc_adam
from ccfl_jax.algorithm.server_optimizers import scale_by_cc_ams
from ccfl_jax.engine.evaluate import evaluate
from ccfl_jax.engine.evaluate import evaluate_clients
from ccfl_jax.engine.evaluate import fairness
from ccfl_jax.engine.run import run_rounds
from ccfl_jax.engine.simulation import Simulation
from ccfl_jax.engine.simulation import simulation
from ccfl_jax.engine.streaming import stream_rounds
from ccfl_jax.models.regression_tasks import autoencoder_task
from ccfl_jax.models.regression_tasks import regression_task
from ccfl_jax.models.sequence_tasks import next_token_task
from ccfl_jax.models.tasks import classification_task
from ccfl_jax.models.tasks import tags_task
from ccfl_jax.runs import callbacks
from ccfl_jax.runs.load import Run
from ccfl_jax.runs.load import load_run
from ccfl_jax.runs.train import train
from ccfl_jax.engine.trials import evaluate_trials
from ccfl_jax.engine.trials import run_trials
from ccfl_jax.algorithm.types import Aggregate
from ccfl_jax.algorithm.types import Arrivals
from ccfl_jax.algorithm.types import End
from ccfl_jax.algorithm.types import Rule
from ccfl_jax.algorithm.types import Task
from ccfl_jax.algorithm.types import Visit
from ccfl_jax.algorithm.types import Weighted

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Arrivals",
    "End",
    "FederatedData",
    "Info",
    "Rule",
    "Run",
    "Schedule",
    "Simulation",
    "State",
    "Task",
    "Visit",
    "Weighted",
    "autoencoder_task",
    "availability",
    "build_round",
    "callbacks",
    "cc_fedadagrad",
    "cc_fedadam",
    "cc_fedams",
    "cc_fedavg",
    "cc_fedavgm",
    "cc_fedsgd",
    "classification_task",
    "clock",
    "clock_schedule",
    "evaluate",
    "evaluate_clients",
    "evaluate_trials",
    "fairness",
    "init_state",
    "load_dataset",
    "load_run",
    "load_stackoverflow",
    "mean",
    "next_token_task",
    "partition_dirichlet",
    "partition_iid",
    "partition_natural",
    "random_schedule",
    "regression_task",
    "run_rounds",
    "run_trials",
    "scale_by_cc_adagrad",
    "scale_by_cc_adam",
    "scale_by_cc_ams",
    "simulation",
    "speed",
    "stream_rounds",
    "systems",
    "tags_task",
    "terms",
    "theory",
    "traces",
    "train",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
