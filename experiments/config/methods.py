"""Methods by name, and the forms of the flags that refine them.

A method is the values of some flags, for those that the command line does not give.
"""

from collections.abc import Mapping
from typing import Any

from . import expression
from .flag import Given

# Server optimiser -> its hyperparameters besides --server_lr, by flag.
HYPERPARAMETERS = ("b1", "b2", "eps", "initial_accumulator")
SERVERS = {
    "cc_fedavg": (),
    "cc_fedsgd": (),
    "cc_fedavgm": ("b1",),
    "cc_fedadagrad": ("b1", "eps", "initial_accumulator"),
    "cc_fedadam": HYPERPARAMETERS,
    "cc_fedams": HYPERPARAMETERS,
    "fedavgm": ("b1",),
    "fedadagrad": ("b1", "eps"),
    "fedadam": ("b1", "b2", "eps"),
    "fedyogi": ("b1", "b2", "eps"),
    "fedams": ("b1", "b2", "eps"),
    "fadas": HYPERPARAMETERS,
    "slowmo": ("b1", "local_lr"),
}

# Flag -> the forms of its value: functions of `ccfl.systems`, `ccfl.terms` or `training.method`
# with their arguments in order; a number after = is the default of a missing one.
FORMS = {
    "rule": (
        "fedprox(mu=0.01)",
        "fednova(momentum=0,by_samples=1)",
        "scaffold(option=2)",
        "feddyn(alpha=0.01)",
        "fedpd(step=10)",
        "fedpa(burn_in=10,every=5,samples=10,shrinkage=0.01)",
        "mifa(wait=1)",
        "fedasync(alpha=0.6)",
        "ca2fl",
        "mimelite(momentum=0.9)",
        "fedexp(eps=0.001)",
        "qfedavg(q=1)",
        "fedlesam(rho=0.05)",
        "fedper(layers=1)",
        "lg_fedavg(layers=1)",
        "ditto(weight=0.1)",
    ),
    "upload": (
        "clip(norm)",
        "top_k(share,feedback=0)",
        "random_k(share,feedback=0)",
        "quantise(levels)",
        "sign(feedback=0)",
    ),
    "weights": (
        "samples",
        "polynomial(power=0.5,divide=0)",
        "hinge(slope=10,after=4,divide=0)",
    ),
    "aggregate": (
        "median",
        "trimmed_mean(share=0.2)",
        "krum(byzantine,chosen=1)",
        "bulyan(byzantine)",
        "geometric_median(iterations=3)",
        "centred_clipping(radius,iterations=1)",
        "norm_bound(bound)",
    ),
    "attack": (
        "sign_flip(share,scale=1)",
        "gaussian(share,std=200)",
        "alie(share,z=1.5)",
        "ipm(share,epsilon=0.5)",
        "label_flip(share)",
    ),
    "privacy": (
        "dp_fedavg(clip,noise_multiplier)",
        "dp_fedavg_adaptive(noise_multiplier,quantile=0.5,rate=0.2,first_clip=0.1)",
        "dp_ftrl(clip,noise_multiplier)",
    ),
    "local": ("sgd(momentum=0)", "adam(rate)", "adamw(rate,weight_decay=0.0001)", "sam(rho=0.05)"),
}
# The flags that a method is made of.
PARTS = ("method", "server", "server_lr", *HYPERPARAMETERS, "local_lr", "normalise", *FORMS)
SEVERAL = ("upload",)  # flags of several values, one after the other
# Rules that come with an aggregator of their own, or send nothing to be aggregated.
OWN_AGGREGATE = ("fednova", "mimelite", "fedexp", "qfedavg")
NO_UPLOAD = ("fedpd", "mifa")
OF_THE_MODEL = ("fedper", "lg_fedavg")  # rules of some of its layers
PERSONAL = (*OF_THE_MODEL, "ditto")  # rules whose clients have models of their own
SHARED_MEMORIES = ("scaffold", "feddyn", "ca2fl")  # rules whose server knows their mean
# Models that a visit sends, and receives, of rules where it is not one each.
MODELS_SENT = {"scaffold": 2, "mimelite": 2}
COLLUDING = ("alie", "ipm")  # attacks that take the place of an aggregator
ON_DATA = "label_flip"  # an attack by clients who follow the protocol
# The mean of the clients' models; the server's rate may be another.
_PLAIN = {"normalise": "none", "server": "cc_fedsgd", "server_lr": 1.0}

METHODS: dict[str, dict[str, Any]] = {
    **{name: {"server": name} for name in SERVERS if name.startswith("cc_")},
    "cc_fedavg": {"server": "cc_fedavg", "server_lr": 1.0},
    "fedavg": _PLAIN | {"weights": "samples"},
    "fedavgm": _PLAIN | {"server": "fedavgm", "weights": "samples"},
    **{
        name: {"server": name, "normalise": "none"}
        for name in ("fedadam", "fedyogi", "fedams", "fadas")
    },
    "fedadagrad": {"server": "fedadagrad", "normalise": "none", "b1": 0.0},
    "slowmo": _PLAIN | {"server": "slowmo", "b1": 0.7},
    "fedprox": _PLAIN | {"rule": "fedprox", "weights": "samples"},
    "fednova": _PLAIN | {"rule": "fednova"},
    "scaffold": _PLAIN | {"rule": "scaffold"},
    "feddyn": _PLAIN | {"rule": "feddyn"},
    "fedpd": _PLAIN | {"rule": "fedpd"},
    "fedpa": _PLAIN | {"rule": "fedpa"},
    "mifa": _PLAIN | {"rule": "mifa"},
    "fedlaavg": {"server": "cc_fedsgd", "normalise": "steps", "rule": "mifa(0)"},
    "afa_cs": {"server": "cc_fedsgd", "normalise": "steps", "rule": "mifa(0)"},
    "afa_cd": {"server": "cc_fedsgd", "normalise": "steps"},
    "fedasync": _PLAIN | {"rule": "fedasync"},
    "fedbuff": _PLAIN | {"weights": "polynomial"},
    "ca2fl": _PLAIN | {"rule": "ca2fl"},
    "mimelite": _PLAIN | {"rule": "mimelite"},
    "fedexp": _PLAIN | {"rule": "fedexp"},
    "qfedavg": _PLAIN | {"rule": "qfedavg"},
    "fedsam": _PLAIN | {"local": "sam"},
    "fedlesam": _PLAIN | {"rule": "fedlesam"},
    "fedper": _PLAIN | {"rule": "fedper", "weights": "samples"},
    "lg_fedavg": _PLAIN | {"rule": "lg_fedavg", "weights": "samples"},
    "ditto": _PLAIN | {"rule": "ditto", "weights": "samples"},
    "dp_fedavg": _PLAIN | {"privacy": "dp_fedavg(1,1)"},
}


def name_of(config: Mapping[str, Any]) -> str:
    """The name of a method in results: `--method`, or the server where it is not set."""
    return config.get("method") or config["server"]


def check_scored(values: Mapping[str, Any]) -> None:
    """Raises ValueError for clients' own models that nothing would score, or start from."""
    rule, tuned = (values["rule"] or "").partition("(")[0], values["fine_tune"]
    if tuned is not None and (rule in PERSONAL or values["client_test"] is None):
        found = f"with {rule}" if rule in PERSONAL else "without"
        raise ValueError(
            "--fine_tune: expected with --client_test, and a method without models of clients' "
            f"own, found {tuned} {found}"
        )
    if rule in PERSONAL and values["client_test"] is None:
        raise ValueError(
            f"--client_test: expected a share, as 0.2, with {rule}, to score clients' own models "
            "on, found none"
        )


def named(flag: str, text: str) -> tuple[str, dict[str, float]]:
    """The function that a value of a flag names, and its arguments."""
    name, values = expression.expression(text, FORMS[flag]) or ("", ())  # parsed with the flags
    return name, dict(zip(expression.argument_names(name, FORMS[flag]), values, strict=True))


def fill(values: dict[str, Any], given: Given) -> set[str]:
    """Sets the flags of `--method` that the command line does not give; returns what it gives.

    A method on the command line itself comes before the flags of a preset.
    """
    if values["method"] is None:
        return given.names
    stays = given.written if "method" in given.written else given.names
    own = {name: v for name, v in METHODS[values["method"]].items() if name not in stays}
    values |= own
    return given.names - {*own}
