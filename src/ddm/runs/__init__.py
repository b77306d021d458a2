"""Run directories: the config of a run, and how to create, open, store, verify and plan a run."""
