"""How tests check that bad input is refused with one clear sentence."""

from contextlib import contextmanager

import pytest

from ddm.errors import InputError


@contextmanager
def refused(*words):
    """``with refused("word", …)``: the block raises ``InputError`` with one sentence that has all these words."""
    with pytest.raises(InputError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


def assert_refused(result, *words):
    """A command ended with exit code 2 and printed only one sentence with these words, on standard error."""
    assert "Traceback" not in result.err
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("ddm: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith(".\n")
    for word in words:
        assert word in result.err
