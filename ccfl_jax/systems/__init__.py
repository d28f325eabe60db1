"""Federated systems, a file each: rules, aggregators and servers, as their papers have them."""

from ccfl_jax.systems.accounting import epsilon_of_sampling, epsilon_of_schedule
from ccfl_jax.systems.adaptive_clipping import adaptive_clip, dp_fedavg_adaptive
from ccfl_jax.systems.attack import alie, chosen, gaussian, ipm, label_flip, sign_flip
from ccfl_jax.systems.ca2fl import ca2fl
from ccfl_jax.systems.compress import (
    Compressor,
    bytes_of,
    quantise,
    random_k,
    sign,
    top_k,
    with_error_feedback,
)
from ccfl_jax.systems.fadas import fadas, slower_when_stale
from ccfl_jax.systems.fedasync import fedasync
from ccfl_jax.systems.fedavg import fedavg, fedavgm
from ccfl_jax.systems.fedbuff import fedbuff
from ccfl_jax.systems.feddyn import feddyn
from ccfl_jax.systems.fedexp import fedexp
from ccfl_jax.systems.fednova import fednova
from ccfl_jax.systems.fedopt import fedadagrad, fedadam, fedams, fedyogi
from ccfl_jax.systems.fedpa import fedpa
from ccfl_jax.systems.fedpd import fedpd
from ccfl_jax.systems.fedprox import fedprox
from ccfl_jax.systems.mifa import afa_cd, afa_cs, fedlaavg, mifa
from ccfl_jax.systems.mimelite import mimelite
from ccfl_jax.systems.personal import (
    ditto,
    fedper,
    fine_tuning,
    lg_fedavg,
    model_layers,
    own_model,
    personal,
)
from ccfl_jax.systems.privacy import dp_fedavg, dp_ftrl, gaussian_noise, tree_noise
from ccfl_jax.systems.qfedavg import qfedavg
from ccfl_jax.systems.robust import bulyan, krum, median, trimmed_mean
from ccfl_jax.systems.robust_means import centred_clipping, geometric_median, norm_bound
from ccfl_jax.systems.sam import fedlesam, sam
from ccfl_jax.systems.scaffold import scaffold
from ccfl_jax.systems.slowmo import slowmo

__all__ = [
    "Compressor",
    "adaptive_clip",
    "afa_cd",
    "afa_cs",
    "alie",
    "bulyan",
    "bytes_of",
    "ca2fl",
    "centred_clipping",
    "chosen",
    "ditto",
    "dp_fedavg",
    "dp_fedavg_adaptive",
    "dp_ftrl",
    "epsilon_of_sampling",
    "epsilon_of_schedule",
    "fadas",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedasync",
    "fedavg",
    "fedavgm",
    "fedbuff",
    "feddyn",
    "fedexp",
    "fedlaavg",
    "fedlesam",
    "fednova",
    "fedpa",
    "fedpd",
    "fedper",
    "fedprox",
    "fedyogi",
    "fine_tuning",
    "gaussian",
    "gaussian_noise",
    "geometric_median",
    "ipm",
    "krum",
    "label_flip",
    "lg_fedavg",
    "median",
    "mifa",
    "mimelite",
    "model_layers",
    "norm_bound",
    "own_model",
    "personal",
    "qfedavg",
    "quantise",
    "random_k",
    "sam",
    "scaffold",
    "sign",
    "sign_flip",
    "slower_when_stale",
    "slowmo",
    "top_k",
    "tree_noise",
    "trimmed_mean",
    "with_error_feedback",
]


def __dir__() -> list[str]:
    return __all__
