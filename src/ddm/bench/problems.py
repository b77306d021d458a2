"""The stored problems by name: each has a setup, and ``ddm bench truths`` stores what retraining gives for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddm.bench.real_data import WORDS
from ddm.bench.setup import Setup
from ddm.errors import InputError
from ddm.training.recipe import Recipe

_COUNTS: dict[str, Any] = {"tests": 300, "validation": 300, "unions": 6, "orders": 2}

_MNIST = Setup(
    data="mnist",
    limit=3000,
    size=14,
    options={"width": 16, "depth": 2},
    recipe=Recipe(epochs=15, lr=0.1, batch_size=128),
    clusters=3,
    **_COUNTS,
)

_CLIP = 0.75
"""Norm to clip gradients to: on MNIST nearly three quarters of the steps with momentum have longer ones."""

_CIFAR10 = Setup(data="cifar10", limit=2000, size=16, clusters=2, **_COUNTS)


def variants(base: Setup) -> dict[str, tuple[str, Setup]]:
    """Training recipes that differ from a plain one in one thing: a title and a setup, by name."""
    plain, options = base.recipe, base.options
    gentle = replace(plain, momentum=0.9, lr=plain.rate / 10)
    warmup = max(1, plain.epochs // 5)
    rate = f"learning rate {gentle.rate:g}"
    recipes = {
        "plain": ("plain SGD", plain),
        "momentum": (f"momentum 0.9, {rate}", gentle),
        "nesterov": (f"Nesterov's momentum 0.9, {rate}", replace(gentle, nesterov=True)),
        "decay": ("weight decay 0.005", replace(plain, weight_decay=0.005)),
        "cosine": ("cosine schedule", replace(plain, schedule="cosine")),
        "warmup": ("warm-up, cosine schedule", replace(plain, schedule="cosine", warmup=warmup)),
        "adam": ("Adam, learning rate 0.003", replace(plain, optimizer="adam", lr=0.003)),
        "adamw": (
            "AdamW, learning rate 0.003, weight decay 0.05",
            replace(plain, optimizer="adamw", lr=0.003, weight_decay=0.05),
        ),
        "clipping": (f"gradient clipped at {_CLIP:g}, momentum 0.9, {rate}", replace(gentle, clip_norm=_CLIP)),
        "shift": ("augmentation by random shifts", replace(plain, augment="shift")),
    }
    found = {name: (title, replace(base, recipe=recipe)) for name, (title, recipe) in recipes.items()}
    found["smoothing"] = ("label smoothing 0.1", replace(base, smoothing=0.1))
    if base.model == "convnet":
        found["dropout"] = ("dropout 0.2", replace(base, options={**options, "dropout": 0.2}))
        found["batchnorm"] = ("BatchNorm", replace(base, options={**options, "norm": "batch"}))
    return found


_RESNET = replace(
    _CIFAR10,
    model="resnet18ap",
    options={"width": 8, "norm": "batch"},
    recipe=Recipe(epochs=12, lr=0.02, momentum=0.9, weight_decay=5e-4, schedule="cosine", batch_size=64),
)

_VIT = replace(
    _CIFAR10,
    model="simplevit",
    options={"dim": 64, "depth": 4, "patch": 4},
    recipe=Recipe(
        epochs=15,
        lr=1e-3,
        optimizer="adamw",
        weight_decay=0.05,
        schedule="cosine",
        warmup=2,
        clip_norm=1.0,
        batch_size=64,
    ),
)

_CONVNET = replace(
    _CIFAR10, limit=4000, options={"width": 16, "depth": 3}, recipe=Recipe(epochs=12, lr=0.05, batch_size=64)
)

_FLIGHTS = Setup(
    data="flights",
    model="mlp",
    options={"width": 64},
    recipe=Recipe(epochs=15, lr=0.01, momentum=0.9, batch_size=64),
    clusters=15,
    **_COUNTS,
)

_DEBIAN = Setup(
    data="debian",
    model="text-transformer",
    options={"vocabulary": WORDS, "width": 32, "depth": 1},
    recipe=Recipe(
        epochs=4,
        lr=2e-3,
        optimizer="adamw",
        weight_decay=0.01,
        schedule="cosine",
        warmup=1,
        clip_norm=1.0,
        batch_size=32,
    ),
    clusters=2,
    **_COUNTS,
)

_BUILT_IN = Setup(
    data="breast-cancer",
    model="mlp",
    options={"width": 32},
    recipe=Recipe(epochs=30, lr=0.03, batch_size=32),
    clusters=8,
    **_COUNTS,
)

TABLES_AND_TEXTS: dict[str, tuple[str, Setup]] = {
    "table-flights-sgd": ("flights, late or not, SGD with momentum", _FLIGHTS),
    "table-flights-adam": (
        "flights, late or not, Adam",
        replace(_FLIGHTS, recipe=Recipe(epochs=10, lr=1e-3, optimizer="adam", batch_size=64)),
    ),
    "table-flights-delay": (
        "flights, minutes of delay, regression, SGD",
        replace(_FLIGHTS, data="flights-delay", recipe=Recipe(epochs=10, lr=0.01, batch_size=64), clusters=30),
    ),
    "table-cancer": ("breast cancer, SGD", _BUILT_IN),
    "table-wine": (
        "wine, SGD",
        replace(_BUILT_IN, data="wine", recipe=replace(_BUILT_IN.recipe, batch_size=16), clusters=4),
    ),
    "table-diabetes": (
        "diabetes, regression, SGD",
        replace(_BUILT_IN, data="diabetes", recipe=replace(_BUILT_IN.recipe, lr=0.01), clusters=15),
    ),
    "text-debian-adamw": ("Debian sections, transformer, AdamW, warm-up, cosine schedule, clipping", _DEBIAN),
    "text-bert-adamw": (
        "Debian sections, Hugging Face BERT, AdamW, warm-up, cosine schedule, clipping",
        replace(_DEBIAN, model="bert", recipe=replace(_DEBIAN.recipe, epochs=6, lr=4e-3)),
    ),
}
"""Title and setup of each stored problem on tables and texts, by name."""

PROBLEMS: dict[str, tuple[str, Setup]] = {
    **{f"mnist-{name}": (f"MNIST, {title}", setup) for name, (title, setup) in variants(_MNIST).items()},
    "cifar10-resnet": ("CIFAR-10, ResNet with BatchNorm, momentum, weight decay, cosine schedule", _RESNET),
    "cifar10-vit": ("CIFAR-10, vision transformer, AdamW, warm-up, cosine schedule, clipping", _VIT),
    "cifar10-convnet": ("CIFAR-10, plain SGD", _CONVNET),
    **TABLES_AND_TEXTS,
}
"""Title and setup of each stored problem, by name."""


def stored_setup(name: str, root: str | None) -> Setup:
    """The setup of a stored problem.

    root: the folder of the dataset's files, or a folder that holds one of them for each dataset
    """
    if name not in PROBLEMS:
        raise InputError(f"there is no stored problem '{name}': use one of {', '.join(PROBLEMS)}.")
    setup = PROBLEMS[name][1]
    inner = Path(root, setup.data) if root is not None else None
    return replace(setup, root=str(inner) if inner is not None and inner.is_dir() else root)
