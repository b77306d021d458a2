"""Let networks of ``transformers`` run under ``torch.vmap``, which computes the gradients of many samples at once.

These networks look into the attention mask: if nothing is masked, they leave it out. Under ``vmap`` nobody can look
into a tensor, so the call fails, and gradients would have to be computed one sample at a time, 8 times as slow. They do
not look while they are traced, so ``vmap`` is made to count as tracing.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

_MODULE = "transformers.masking_utils"


def allow_vmap() -> None:
    """Let ``transformers`` know that it must not look into tensors under ``vmap``, if it is imported."""
    masking = sys.modules.get(_MODULE)
    original = getattr(masking, "is_tracing", None)
    if masking is None or original is None or getattr(original, "knows_vmap", False):
        return

    def is_tracing(tensor: Tensor | None = None) -> bool:
        wrapped = isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return wrapped or bool(original(tensor))

    is_tracing.knows_vmap = True  # type: ignore[attr-defined]
    masking.is_tracing = is_tracing  # type: ignore[attr-defined]
