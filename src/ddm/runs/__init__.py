"""Run directories: the config, making and opening a run, storing, verifying and planning it."""
