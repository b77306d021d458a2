"""``import ddm`` is quick, because public names and submodules are imported when first used."""

import subprocess
import sys

import pytest

import ddm


def fresh(code: str) -> None:
    """Run code in a new process; it must end without an error."""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_importing_ddm_does_not_import_torch():
    fresh("import sys, ddm; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules")


def test_every_public_name_exists_and_is_listed():
    for name in ddm.__all__:
        assert getattr(ddm, name) is not None
    assert set(ddm.__all__) <= set(dir(ddm))


def test_a_star_import_provides_the_public_names():
    fresh("from ddm import *; assert Recipe and DistilledDatamodel and datasets and train")


@pytest.mark.parametrize("name", ["data", "networks", "runs", "truth", "bench"])
def test_submodules_are_attributes(name):
    fresh(f"import ddm; assert ddm.{name}.__name__ == 'ddm.{name}'")


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ddm.nothing  # noqa: B018
    assert not hasattr(ddm, "__wrapped__")
