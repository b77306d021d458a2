"""What a process takes is told of that process alone."""

import subprocess
import sys

import torch

from ddm.compute import memory

HELD = "from ddm.memory import peak, resident; print(resident(), peak())"


def test_what_was_taken_and_given_back_is_in_the_peak():
    before = memory.resident()
    torch.ones(2**28)  # 1 GiB, given back at once
    assert memory.peak() > before + 0.9 * 2**30
    assert memory.resident() < before + 2**29


def test_what_the_process_that_started_it_holds_does_not_count():
    held = torch.ones(2**28)
    answer = subprocess.run([sys.executable, "-c", HELD], capture_output=True, check=True, timeout=600)
    now, most = map(int, answer.stdout.split())
    assert now <= most < held.nbytes
