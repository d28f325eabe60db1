"""Data sets and models by name, and what each of them is."""

from typing import NamedTuple

from .expression import expression

# Model -> its class in `ccfl_jax.models`.
MODELS = {
    "mlp": "MLP",
    "logistic": "Logistic",
    "cnn": "CNN",
    "mcmahan_cnn": "McMahanCNN",
    "emnist_cnn": "EMNISTCNN",
    "resnet18": "ResNet18",
    "resnet20": "ResNet20",
    "tags": "TagLogistic",
    "char_lstm": "CharLSTM",
    "word_lstm": "WordLSTM",
    "autoencoder": "Autoencoder",
}


class Dataset(NamedTuple):
    """The properties of a data set.

    Attributes:
        models: the models that fit it; of a user's own data that may fit, by their shape.
        files: whether it is read from a folder, which `--data_dir` may name.
        clients: whether its samples have clients of their own.
        drawn: whether `num_clients` of those are drawn by the seed.
        one_label: whether a sample has one label.
        arguments: in brackets after its name, as in `expression`.
    """

    models: tuple[str, ...]
    files: bool = True
    clients: bool = False
    drawn: bool = False
    one_label: bool = True
    arguments: str = ""


_ANY = ("mlp", "logistic")
_IMAGES = ("cnn", "mcmahan_cnn", "emnist_cnn", *_ANY, "resnet18", "resnet20", "autoencoder")
_OWN = Dataset(_IMAGES, files=False, clients=True)
DATASETS = {
    "digits": Dataset(_ANY, files=False),
    "fashion_mnist": Dataset(_IMAGES),
    "synthetic": Dataset(_ANY, files=False, clients=True),
    "cifar10": Dataset(("resnet18", "resnet20", *_ANY)),
    "cifar100": Dataset(("resnet18", "resnet20", *_ANY)),
    "stackoverflow": Dataset(("tags",), clients=True, drawn=True, one_label=False),
    "stackoverflow_nwp": Dataset(("word_lstm",), clients=True, drawn=True, one_label=False),
    "shakespeare": Dataset(("char_lstm",), clients=True, drawn=True, one_label=False),
    "fed_emnist": Dataset(_IMAGES, clients=True, drawn=True),
    "fed_emnist_digitsonly": Dataset(_IMAGES, clients=True, drawn=True),
    "fed_cifar100": Dataset(("resnet18", "resnet20", *_ANY), clients=True, drawn=True),
    "npz": _OWN._replace(arguments="(PATH)"),
    "leaf": _OWN._replace(models=(*_IMAGES, "char_lstm"), arguments="(PATH)"),
    "parquet": _OWN._replace(arguments="(PATH,x=x,y=y,client=client)"),
    "python": _OWN._replace(arguments="(PATH)"),
    "huggingface": _OWN._replace(arguments="(PATH,x=x,y=y,client=client)"),
}
DATASET_FORMS = tuple(name + one.arguments for name, one in DATASETS.items())
OWN_TASK = "task(PATH)"  # the form of the model that `--task` sets
OF_STACKOVERFLOW = ("max_examples", "min_examples", "max_words")
MAX_WORDS = {"stackoverflow": 150, "stackoverflow_nwp": 20}  # the latter of Reddi et al.


def dataset_of(text: str) -> tuple[str, tuple[str, ...], Dataset]:
    """The name of a data set, its arguments and its properties."""
    name, arguments = expression(text, DATASET_FORMS)
    return name, arguments, DATASETS[name]
