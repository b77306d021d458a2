"""Memory is measured for this process alone."""

import subprocess
import sys

import psutil
import torch

from ddm.compute import memory

HELD = "from ddm.compute.memory import peak_bytes, resident_bytes; print(resident_bytes(), peak_bytes())"


def test_memory_that_was_freed_counts_in_the_peak_but_not_in_the_resident_memory():
    before = memory.resident_bytes()
    torch.ones(2**28)  # 1 GiB, given back at once
    assert memory.peak_bytes() > before + 0.9 * 2**30
    assert memory.resident_bytes() < before + 2**29


def test_memory_of_the_parent_process_does_not_count():
    held = torch.ones(2**28)
    answer = subprocess.run([sys.executable, "-c", HELD], capture_output=True, check=True, timeout=600)
    now, most = map(int, answer.stdout.split())
    assert now <= most < held.nbytes


def test_a_machine_without_control_groups_has_a_limit_too(monkeypatch):
    monkeypatch.setattr(memory, "cgroup_limits", lambda: iter(()))
    memory.usable_bytes.cache_clear()
    assert memory.usable_bytes() == psutil.virtual_memory().total // 2
    memory.usable_bytes.cache_clear()
