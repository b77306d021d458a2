"""The commands of the command line: one a file, registered in ``ddm.cli``."""
