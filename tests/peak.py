"""How much memory this process takes, and took at most since it was last asked to forget. Linux only."""

from pathlib import Path

from ddm.compute import memory


def forget() -> int:
    """Forget what was taken before; the bytes that are taken now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory.resident()


def most() -> int:
    """The most bytes that were taken since."""
    return memory.peak()
