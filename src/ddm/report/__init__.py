"""The report: one self-contained HTML page about a run, for readers who do not use the command line."""

from ddm.report.page import installed, write

__all__ = ["installed", "write"]
