"""Federated data: the container, the partitioners and the sources."""

from ccfl_jax.data.checks import check_labels
from ccfl_jax.data.federated import FederatedData
from ccfl_jax.data.idx import read_idx
from ccfl_jax.data.partition import partition_dirichlet, partition_iid, partition_natural
from ccfl_jax.data.sources import NUM_CLASSES, load_dataset
from ccfl_jax.data.synthetic import synthetic
from ccfl_jax.data.tfds import load_tfds

__all__ = [
    "NUM_CLASSES",
    "FederatedData",
    "check_labels",
    "load_dataset",
    "load_tfds",
    "partition_dirichlet",
    "partition_iid",
    "partition_natural",
    "read_idx",
    "synthetic",
]
