"""Callbacks that record trainings of other libraries. Import the module of yours: ``ddm.integrations.lightning``."""
