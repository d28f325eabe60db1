"""Sizes with which the benchmarks' workloads are made in a moment."""

import numpy as np

from experiments.benchmarks import workloads

NOISE = workloads._images(np.random.default_rng([0]), 60, (28, 28, 1))
TINY = {
    "fmnist_cnn": {"batch_size": 5, "num_clients": 5, "buffer_size": 5, "train": NOISE},
    "stackoverflow_lr": {"batch_size": 4, "num_clients": 3, "samples": 4},
    "cifar_resnet20": {"batch_size": 2, "num_clients": 2, "samples": 2},
    "cifar_resnet18": {"batch_size": 2, "num_clients": 2, "samples": 2},
    "logistic_many": {"num_clients": 500, "buffer_size": 70, "rows": 50},
    "asynchronous": {"concurrency": 4, "buffer_size": 2, "num_clients": 8},
}
