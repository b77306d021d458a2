"""The report: one HTML page about a run, complete in itself, for people who will not type commands."""

from ddm.report.page import installed, write

__all__ = ["installed", "write"]
