"""Built-in networks: small, deterministic from a seed, and differentiable twice under `torch.func`."""

from ddm.networks.alexnet import AlexNet
from ddm.networks.base import Network
from ddm.networks.convnet import ConvNet
from ddm.networks.features import penultimate
from ddm.networks.initialise import initialise
from ddm.networks.mlp import MLP
from ddm.networks.registry import NETWORKS, accepted, build, from_spec, learning_rate, names, outline
from ddm.networks.resnet18ap import ResNet18AP
from ddm.networks.simplevit import SimpleViT
from ddm.networks.storage import load, save, save_weights
from ddm.networks.text_transformer import TextTransformer

__all__ = [
    "MLP",
    "NETWORKS",
    "AlexNet",
    "ConvNet",
    "Network",
    "ResNet18AP",
    "SimpleViT",
    "TextTransformer",
    "accepted",
    "build",
    "from_spec",
    "initialise",
    "learning_rate",
    "load",
    "names",
    "outline",
    "penultimate",
    "save",
    "save_weights",
]
