"""Small Flax Linen models, and a convolution that stays fast with a kernel for every client."""

from ccfl_jax.models.autoencoder import Autoencoder
from ccfl_jax.models.cnn import CNN, EMNISTCNN, McMahanCNN
from ccfl_jax.models.conv import Conv, ConvReluPool
from ccfl_jax.models.logistic import Logistic
from ccfl_jax.models.lstm import CharLSTM, WordLSTM
from ccfl_jax.models.mlp import MLP
from ccfl_jax.models.resnet import ResNet18, ResNet20
from ccfl_jax.models.tags import TagLogistic

__all__ = [
    "CNN",
    "EMNISTCNN",
    "MLP",
    "Autoencoder",
    "CharLSTM",
    "Conv",
    "ConvReluPool",
    "Logistic",
    "McMahanCNN",
    "ResNet18",
    "ResNet20",
    "TagLogistic",
    "WordLSTM",
]
