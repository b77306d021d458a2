"""Initialise the weights of any module from a seed.

    kaiming   N(0, 2 / fan_in)
    xavier    N(0, 2 / (fan_in + fan_out))
    normal    N(0, 0.02²)

The scheme applies to the weights of convolutions and linear layers. Under every scheme biases are 0, normalisation
layers have scale 1 and fresh running statistics, and all other parameters (class tokens, embeddings) are N(0, 0.02²).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddm.networks.options import check_choice, check_integer

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
    """Set every parameter of `network` in place. The same scheme `how` and `seed` always give the same weights.

    The global random generator is neither used nor changed.
    """
    scheme = SCHEMES[check_choice("init", how, SCHEMES)]
    seed = check_integer("seed", seed, minimum=0, maximum=2**63 - 1)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            for name, parameter in module.named_parameters(recurse=False):
                _initialise_parameter(module, name, parameter, scheme, rng)
            reset = getattr(module, "reset_running_stats", None)
            if callable(reset):
                reset()


def _initialise_parameter(
    module: nn.Module, name: str, parameter: Tensor, scheme: Scheme, rng: torch.Generator
) -> None:
    if parameter.is_meta:  # it has a shape but no values
        return
    if "bias" in name:  # also in_proj_bias of attention and bias_ih_l0 of recurrent layers
        parameter.zero_()
    elif _is_norm(module, parameter):
        parameter.fill_(1.0)
    else:
        draw = scheme if name == "weight" and isinstance(module, WEIGHTED) else SCHEMES["normal"]
        # Draw float32 values on the CPU, so that the weights do not depend on device and dtype.
        parameter.copy_(draw(torch.empty(parameter.shape, dtype=torch.float32, device="cpu"), rng))


def _is_norm(module: nn.Module, parameter: Tensor) -> bool:
    # Check the name too, because users write norm layers of their own. The scale of a norm is a vector, not a matrix.
    by_name = "norm" in type(module).__name__.lower() and parameter.ndim == 1
    return by_name or isinstance(module, nn.LayerNorm | nn.RMSNorm)
