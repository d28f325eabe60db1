"""Federated data: the container, the partitioners and the sources."""

from ccfl_jax.checks import check_labels
from ccfl_jax.data.datasets import NUM_CLASSES, load_dataset
from ccfl_jax.data.federated_data import FederatedData
from ccfl_jax.data.image_transforms import CHANNELS, crop_and_flip, prepare_images
from ccfl_jax.data.partition import partition_dirichlet, partition_iid, partition_natural
from ccfl_jax.data.readers.arrow import load_huggingface, load_parquet
from ccfl_jax.data.readers.cifar import load_cifar
from ccfl_jax.data.readers.idx import read_idx
from ccfl_jax.data.readers.leaf import load_leaf
from ccfl_jax.data.readers.npz import load_npz
from ccfl_jax.data.readers.python import load_python
from ccfl_jax.data.readers.stackoverflow import load_stackoverflow
from ccfl_jax.data.readers.stackoverflow_words import load_stackoverflow_nwp
from ccfl_jax.data.readers.tfds import load_tfds
from ccfl_jax.data.readers.tff import load_tff
from ccfl_jax.data.synthetic import synthetic

__all__ = [
    "CHANNELS",
    "NUM_CLASSES",
    "FederatedData",
    "check_labels",
    "crop_and_flip",
    "load_cifar",
    "load_dataset",
    "load_huggingface",
    "load_leaf",
    "load_npz",
    "load_parquet",
    "load_python",
    "load_stackoverflow",
    "load_stackoverflow_nwp",
    "load_tfds",
    "load_tff",
    "partition_dirichlet",
    "partition_iid",
    "partition_natural",
    "prepare_images",
    "read_idx",
    "synthetic",
]
