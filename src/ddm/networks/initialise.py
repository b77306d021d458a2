"""Weights from a seed, for any module.

    kaiming   N(0, 2 / fan_in)                 conv and linear weights
    xavier    N(0, 2 / (fan_in + fan_out))
    normal    N(0, 0.02²)

Whatever the scheme, biases are 0, normalisation layers start as 1 · x + 0 with fresh running statistics, and
every other parameter (class tokens, embeddings) is N(0, 0.02²).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddm.networks.options import one_of, whole

Scheme = Callable[[Tensor, torch.Generator], Tensor]

SCHEMES: dict[str, Scheme] = {
    "kaiming": lambda weight, rng: nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=rng),
    "normal": lambda weight, rng: nn.init.normal_(weight, std=0.02, generator=rng),
    "xavier": lambda weight, rng: nn.init.xavier_normal_(weight, generator=rng),
}

WEIGHTED = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def initialise(network: nn.Module, how: str, seed: int) -> None:
    """Set every parameter of `network` in place; the same `how` and `seed` always give the same weights.

    The global random generator is neither used nor changed.
    """
    scheme = SCHEMES[one_of("init", how, SCHEMES)]
    seed = whole("seed", seed, least=0, most=2**63 - 1)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            for name, parameter in module.named_parameters(recurse=False):
                _set(module, name, parameter, scheme, rng)
            reset = getattr(module, "reset_running_stats", None)
            if callable(reset):
                reset()


def _set(module: nn.Module, name: str, parameter: Tensor, scheme: Scheme, rng: torch.Generator) -> None:
    if parameter.is_meta:  # only the shapes are asked for
        return
    if "bias" in name:  # also in_proj_bias of attention and bias_ih_l0 of recurrent layers
        parameter.zero_()
    elif _is_norm(module, parameter):
        parameter.fill_(1.0)
    else:
        draw = scheme if name == "weight" and isinstance(module, WEIGHTED) else SCHEMES["normal"]
        # Drawn as float32 on the CPU, so that device and dtype do not change the weights.
        parameter.copy_(draw(torch.empty(parameter.shape, dtype=torch.float32, device="cpu"), rng))


def _is_norm(module: nn.Module, parameter: Tensor) -> bool:
    # By name too, because users' networks bring their own RMSNorm; a matrix is never a scale.
    by_name = "norm" in type(module).__name__.lower() and parameter.ndim == 1
    return by_name or isinstance(module, nn.LayerNorm | nn.RMSNorm)
