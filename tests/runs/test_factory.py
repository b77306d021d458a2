"""Runs whose network is the user's own, opened by the name of the code that builds it."""

import copy
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from manifests import change_manifest
from refusals import assert_refused, refused
from torch import nn

import ddm
from ddm.compute.files import read_json
from ddm.compute.tensors import read_tensors
from ddm.networks.factory import Factory
from ddm.runs.verify import verify

SOURCE = """
from torch import nn

def make(width=16):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def nothing():
    return 3

class Nets:
    make = staticmethod(make)
"""

MARK = """
import pathlib
pathlib.Path({path!r}).write_text("imported")
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A folder with a package of the user's own."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "owncode").mkdir()
    (folder / "owncode" / "__init__.py").write_text("")
    (folder / "owncode" / "nets.py").write_text(SOURCE)
    return folder


@pytest.fixture(autouse=True)
def importable(request, monkeypatch):
    if "code" in request.fixturenames:
        monkeypatch.syspath_prepend(request.getfixturevalue("code"))
    yield
    for name in [name for name in sys.modules if name.startswith(("owncode", "marked"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def own():
    """A datamodel of a network that ddm does not know."""
    data = ddm.datasets.load("digits")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    target = ddm.train(network, data.train, ddm.Recipe(epochs=2, lr=0.1, momentum=0.9))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ddm.DistilledDatamodel.fit(target, data.train, partition="class", curvature=64, checkpoints=2, bank=16)


FACTORY = ("owncode.nets:make", {"width": 8})


@pytest.fixture
def run(own, code, tmp_path):
    copy.copy(own).save(tmp_path / "own", factory=FACTORY)
    return tmp_path / "own"


def test_a_run_is_opened_by_the_name_it_was_saved_with(run, own):
    with refused("'owncode.nets:make'", "factory='owncode.nets:make'", "--factory"):
        ddm.load(run)
    found = ddm.load(run, factory="owncode.nets:make")
    x, _ = ddm.datasets.load("digits").test.batch(range(4))
    assert torch.equal(found.outputs(x), own.outputs(x))
    assert found.factory == Factory(*FACTORY)
    found.save(run)  # saving again keeps it
    assert read_json(run / "manifest.json")["factory"] == list(FACTORY)


def test_another_name_and_a_name_for_a_run_without_one_are_refused(run, own, finished_run, tmp_path):
    with refused("saved with the factory 'owncode.nets:make'"):
        ddm.load(run, factory="owncode.nets:nothing")
    own.save(tmp_path / "plain")
    with refused("names no factory", "network="):
        ddm.load(tmp_path / "plain", factory="owncode.nets:make")
    with refused("names no factory: leave it out"):
        ddm.load(finished_run, factory="owncode.nets:make")
    with refused("network=", "names no factory"):
        ddm.load(tmp_path / "plain")


def test_code_is_not_imported_before_the_user_names_it(own, tmp_path, monkeypatch):
    mark, run = tmp_path / "mark", tmp_path / "run"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "marked.py").write_text(MARK.format(path=str(mark)) + SOURCE)
    copy.copy(own).save(run, factory=("marked:make", {"width": 8}))
    assert mark.exists()  # saving checks that the factory builds this network
    mark.unlink()
    del sys.modules["marked"]
    for attempt in (lambda: ddm.load(run), lambda: ddm.load(run, factory="marked:nothing")):
        with refused("marked:make"):
            attempt()
    ddm.load(run, copy.deepcopy(own.target.network))
    verify(run)
    assert not mark.exists()
    ddm.load(run, factory="marked:make")
    assert mark.exists()


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("owncode.nets", ["package.module:make"]),
        ("owncode.nets:make()", ["package.module:make"]),
        (3, ["package.module:make"]),
        (("owncode.nets:make", 8), ["JSON values"]),
        (("owncode.nets:make", {"width": torch.ones(1)}), ["JSON values"]),
        (("owncode.nets:make", {"width": 9}), ["another network"]),
        (("owncode.nets:make", {"depth": 9}), ["did not build", "depth"]),
        ("owncode.nets:missing", ["cannot be imported", "missing"]),
        ("no_such_package.nets:make", ["cannot be imported", "no_such_package"]),
        ("owncode.nets:nothing", ["returned a int"]),
    ],
    ids=str,
)
def test_a_factory_that_does_not_build_this_network_is_refused(own, code, tmp_path, factory, words):
    with refused(*words):
        copy.copy(own).save(tmp_path / "run", factory=factory)
    assert not (tmp_path / "run").exists()


def test_a_built_in_network_needs_no_factory(datamodel, tmp_path):
    with refused("leave out the factory"):
        datamodel.save(tmp_path / "run", factory="owncode.nets:make")


@pytest.mark.parametrize(
    "factory",
    [
        "os:getpid",
        ["os:system", {"command": "touch hacked"}],
        ["os:getpid; import x", {}],
        {"name": "os:getpid"},
        3,
        [],
    ],
    ids=str,
)
def test_a_hostile_factory_is_not_called(run, factory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "marked.py").write_text(MARK.format(path=str(tmp_path / "hacked")))
    change_manifest(run, factory=factory)
    for given in (None, "owncode.nets:make"):
        with refused():
            ddm.load(run, factory=given)
    assert not (tmp_path / "hacked").exists()


def test_commands_open_such_a_run_from_the_folder_of_the_code(command, own, code, tmp_path):
    shutil.copytree(code / "owncode", tmp_path / "owncode")
    copy.copy(own).save("own", factory=FACTORY)
    assert_refused(command("attribute", "own", "--data", "digits", "--index", 3), "--factory owncode.nets:make")
    given = ("own", "--data", "digits", "--factory", "owncode.nets:make", "--json")
    assert len(command("attribute", *given, "--index", 3).json["groups"]) == 10
    assert command("trace", *given, "--index", 3).code == 0
    assert command("unlearn", *given, "--remove", 3).code == 0
    weights = read_tensors(Path("counterfactual.safetensors"))
    expected = own.counterfactual("3").state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert command("report", *given, "--no-images").code == 0
    wrong = command("trace", "own", "--data", "digits", "--factory", "os:system", "--index", 3)
    assert_refused(wrong, "'owncode.nets:make'")
