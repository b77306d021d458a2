"""The settings of a distillation, and the paper's settings as presets."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddm.compute.validation import check_fields
from ddm.distil.gradient.distances import DISTANCES
from ddm.errors import InputError
from ddm.training import augmentation
from ddm.training.recipe import Recipe

_CHOICES = {
    "pairing": ("offset", "mirror"),
    "distance": tuple(DISTANCES),
    "init": ("auto", "real", "noise"),
    "labels": ("soft", "hard"),
    "optimizer": ("adam", "sgd"),
}

_LEAST = {"offset": 1, "checkpoints": 2, "ipc": 1, "finetune_steps": 1, "samples": 1, "curvature": 1, "bank": 1}


_LATER = {"clip": None, "damping": None, "keep": 0.5, "synset": None}
"""Settings that older versions did not store, with their defaults."""


@dataclass(frozen=True)
class Settings:
    """How the synset of each group is distilled.

    matching:   response (how the target moves while the other data push back), reverse (the paper) or forward (the
                paper's DDM-match)
    checkpoints: maximum number of evenly spaced checkpoints at which real gradients are computed
    init:       initial synthetic images: real (training samples), noise, or auto (noise for response matching)
    step_size:  learning rate η_f of the fine-tuning; None calibrates one for each group
    finetune_steps: T, the number of fine-tuning steps; a calibrated step size is divided among them
    seed:       random seed
    memory:     maximum GiB for gradients
    clip:       clip each sample's gradient at this quantile of the gradient norms, for example 0.5; None does not clip

    For response matching:

    samples:    maximum samples of a group from which its gradients are computed
    curvature:  number of rows that estimate the curvature; None chooses by the size of the network
    damping:    multiple c of the training's damping in the solve; None chooses it by unseen curvature
    bank:       number of images that all groups share; None chooses the fewest that meet the tolerance
    tolerance:  mean share of the change of the outputs on unseen inputs that the encoding may miss
    keep:       maximum GiB of responses that are kept in half precision and answer questions; 0 keeps none
    synset:     encode the responses in a synset. False leaves it out, and ``distil`` makes it later from the kept
                responses; None leaves it out for kept responses of more than a million parameters

    For reverse and forward matching:

    pairing:    offset (Algorithm 1: real gradients at θ_t, the synset's at θ_{t+s}) or mirror (Eq. 6: at θ_{τ−t});
                forward matching compares both at θ_t
    offset:     the trajectory step s, in checkpoints; at most half of the trajectory is used
    distance:   layer-cosine (as dataset condensation computes it), cosine (of complete gradients) or mse
    ipc:        synthetic samples per group
    labels:     soft (signed targets q̃ with Σq̃ = 1, learned) or hard (the paper's)
    augment:    augmentation of the synthetic images: none, flip, shift or flip-shift
    steps:      number of distillation steps
    lr:         learning rate of images (and soft targets)
    optimizer:  adam, or sgd with momentum 0.5 as dataset condensation uses it
    """

    matching: str = "response"
    checkpoints: int = 16
    init: str = "auto"
    step_size: float | None = None
    finetune_steps: int = 1
    seed: int = 0
    memory: float = 2.0
    samples: int = 256
    curvature: int | None = None
    damping: float | None = None
    bank: int | None = None
    tolerance: float = 0.03
    keep: float = 0.5
    synset: bool | None = None
    pairing: str = "offset"
    offset: int = 4
    distance: str = "layer-cosine"
    ipc: int = 1
    labels: str = "soft"
    augment: str = "none"
    steps: int = 50
    lr: float = 0.05
    optimizer: str = "adam"
    clip: float | None = None

    def __post_init__(self) -> None:
        from ddm.distil.driver import MATCHINGS  # not at the top: every matching imports this file

        check_fields(self)
        for name, known in {"matching": tuple(MATCHINGS), **_CHOICES}.items():
            if getattr(self, name) not in known:
                raise InputError(f"there is no {name} '{getattr(self, name)}': use one of {', '.join(known)}.")
        augmentation.check(self.augment)
        for name, least in _LEAST.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        if self.steps < 0 or not self.lr > 0 or not self.memory > 0:
            raise InputError("matching needs steps ≥ 0, lr > 0 and memory > 0.")
        if self.step_size is not None and not self.step_size > 0:
            raise InputError("a fixed step size of the fine-tuning must be positive.")
        if self.matching == "response" and (self.step_size, self.labels, self.finetune_steps) != (None, "soft", 1):
            raise InputError(
                "response matching computes soft labels and a single step itself: leave out labels, step_size and "
                "finetune_steps, or choose reverse matching."
            )
        if self.damping is not None and not 0 < self.damping < math.inf:
            raise InputError(f"damping is a multiple of the training's own and must be positive, not {self.damping}.")
        if self.keep < 0:
            raise InputError(f"keep is a number of GiB and must not be negative, not {self.keep}.")
        if self.synset is False and (self.matching != "response" or not self.keep):
            raise InputError(
                "only response matching with keep above 0 can do without a synset: leave out synset=False."
            )
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must lie between 0 and 1, not {self.tolerance}.")
        if self.clip is not None and not 0 < self.clip < 1:
            raise InputError(f"clip is a quantile and must lie between 0 and 1, not {self.clip}.")

    @property
    def start_images(self) -> str:
        """The initial synthetic images, with auto resolved: real or noise."""
        return self.init if self.init != "auto" else "noise" if self.matching == "response" else "real"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values. Defaults of later versions are left out, so that older settings compare as equal."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER or value != _LATER[name]}


_PAPER_LR = {"mnist": 0.001, "cifar10": 0.01, "cifar100": 0.01, "tiny-imagenet": 0.01}
"""lr_net of the supplement's settings table."""


def paper(dataset: str, network: str) -> tuple[Recipe, Settings]:
    """The recipe and settings of the paper's supplement for a dataset and a network.

    The table and the text disagree on the images' learning rate (0.1 and 10); this is the table's. Datasets
    that the table lacks use the row of CIFAR-10.
    """
    lr = _PAPER_LR.get(dataset, 0.01)
    vit = network == "simplevit"
    settings = Settings(
        matching="reverse",
        init="real",
        distance="mse" if vit else "layer-cosine",
        labels="hard",
        augment="shift" if dataset in ("mnist", "digits") else "flip-shift",
        steps=50,
        checkpoints=31,
        lr=0.005 if vit else 0.1,
        optimizer="sgd",
        step_size=lr,
        finetune_steps=30,
    )
    return Recipe(epochs=30, lr=lr), settings


_CLIP = 0.5
"""Quantile of the gradient norms at which private synsets clip."""


def private(settings: Settings) -> Settings:
    """Settings that reveal less about single samples: images start from noise, and samples' gradients are clipped."""
    if settings.init == "real":
        raise InputError("a private synset starts from noise: leave out init=real.")
    return replace(settings, init="noise", clip=_CLIP if settings.clip is None else settings.clip)


def changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    """Settings with some values replaced; an unknown name raises ``InputError``."""
    known = Settings.__dataclass_fields__
    for name in changes:
        if name not in known:
            raise InputError(f"there is no setting '{name}': use one of {', '.join(known)}.")
    return replace(settings, **changes)
