"""The one exception users are meant to see."""


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one sentence that says what to do.

    The command line prints it on standard error and exits with code 2.
    """
