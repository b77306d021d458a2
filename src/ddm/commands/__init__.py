"""The commands of the command line: one a file, registered in ``ddm.cli``.

Commands import what they need when they run, so that ``ddm --help`` does not wait for torch.
"""
