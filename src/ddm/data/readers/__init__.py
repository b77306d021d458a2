"""Readers of datasets: one file per format, each with a function that returns ``Published``."""
