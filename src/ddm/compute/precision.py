"""Mixed precision: whether this machine can compute in bfloat16 at all.

Some processors, most often virtual ones, advertise instructions for bfloat16 that they do not have. A product then
kills the process with an illegal instruction, which no exception handler sees. So a child process tries first.
"""

from __future__ import annotations

import functools
import subprocess
import sys

import torch

from ddm.errors import InputError

_TRIAL = """
import torch
layers = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.Flatten(), torch.nn.Linear(576, 64))
with torch.autocast("cpu", torch.bfloat16):
    outputs = layers(torch.randn(32, 8, 8, 8))
outputs.float().sum().backward()
"""

_CHILD = (sys.executable, "-c", _TRIAL)
"""The command of the child process: a convolution and a matrix product in bfloat16, forward and backward."""


def check_bfloat16(device: torch.device) -> None:
    """Refuse mixed precision on a processor where bfloat16 kills the process."""
    if device.type == "cpu" and not bfloat16_works():
        raise InputError(
            "mixed precision cannot be used here, because this processor dies of an illegal instruction in bfloat16: "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment and try again, or train without amp."
        )


@functools.cache
def bfloat16_works() -> bool:
    """False if the processor kills a process that computes in bfloat16; the trial runs once per process."""
    done = subprocess.run(_CHILD, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return 0 <= done.returncode < 256  # a signal is negative on Unix and a large number on Windows
