"""Federated data: the container, the partitioners and the sources."""

from ccfl_jax.data.checks import check_labels
from ccfl_jax.data.cifar import load_cifar
from ccfl_jax.data.federated import FederatedData
from ccfl_jax.data.idx import read_idx
from ccfl_jax.data.images import CHANNELS, crop_and_flip, prepare_images
from ccfl_jax.data.partition import partition_dirichlet, partition_iid, partition_natural
from ccfl_jax.data.sources import NUM_CLASSES, load_dataset
from ccfl_jax.data.stackoverflow import load_stackoverflow
from ccfl_jax.data.synthetic import synthetic
from ccfl_jax.data.tfds import load_tfds

__all__ = [
    "CHANNELS",
    "NUM_CLASSES",
    "FederatedData",
    "check_labels",
    "crop_and_flip",
    "load_cifar",
    "load_dataset",
    "load_stackoverflow",
    "load_tfds",
    "partition_dirichlet",
    "partition_iid",
    "partition_natural",
    "prepare_images",
    "read_idx",
    "synthetic",
]
