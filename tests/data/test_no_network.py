"""Nothing uses the network unless the user names a Hub dataset; commands run in processes that cannot reach it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from explore_command import serve_run
from explorer_visitor import Visitor, logged_in

from ddm.compute.files import read_json, write_json

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SMALL = "--limit 200 --option width=4 --option depth=1 --epochs 2 --clusters 2 --setting bank=20"
EVERY_MODULE = """
import importlib, pkgutil, ddm
for module in pkgutil.walk_packages(ddm.__path__, "ddm."):
    importlib.import_module(module.name)
print(len([name for name in __import__("sys").modules if name.startswith("ddm.")]))
"""

CACHED = """
import io, os, datasets, numpy
from PIL import Image
images = [io.BytesIO() for _ in range(60)]
for seed, image in enumerate(images):
    Image.fromarray(numpy.random.default_rng(seed).integers(0, 256, (8, 8)).astype("uint8")).save(image, "PNG")
columns = {"image": [{"bytes": each.getvalue(), "path": None} for each in images], "label": [0, 1] * 30}
kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
os.makedirs("set")
datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).to_parquet("set/train.parquet")
datasets.load_dataset("set")
os.rename(f"{datasets.config.HF_DATASETS_CACHE}/set", f"{datasets.config.HF_DATASETS_CACHE}/someone___set")
"""
"""Makes a folder with a dataset, and a cache as if the dataset had been downloaded."""


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """The file of what was refused."""
    return tmp_path_factory.mktemp("refused") / "refused.txt"


@pytest.fixture(scope="module")
def blocked(refused):
    """The environment of a process without a network, in which nothing else keeps it from asking."""
    kept = {name: value for name, value in os.environ.items() if not re.search("OFFLINE|TELEMETRY|PROXY", name.upper())}
    paths = [str(ROOT / "tests" / "offline"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "REFUSED": str(refused),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory, blocked):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    done(blocked, "-m", "ddm.cli", "fit", "digits", *SMALL.split(), "--out", folder)
    return folder


def ended(environment, *words, folder=None):
    """A Python process that has ended."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


def done(environment, *words, folder=None):
    """Run Python and return its standard output; it must exit with 0."""
    process = ended(environment, *words, folder=folder)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_child_processes_cannot_reach_the_network_either(blocked, tmp_path):
    ways = [
        "import urllib.request; urllib.request.urlopen('http://example.org')",
        "import socket; socket.create_connection(('192.0.2.1', 80))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import httpx; httpx.get(\"http://example.org\")'])",
    ]
    for number, way in enumerate(ways):
        file = tmp_path / str(number)
        ended(blocked | {"REFUSED": str(file)}, "-c", way)
        assert re.match(r"example\.org|192\.0\.2\.1", file.read_text(encoding="utf-8"))


def test_importing_sends_no_requests(blocked, refused):
    assert int(done(blocked, "-c", EVERY_MODULE)) > 60
    assert not refused.exists()


def test_commands_send_no_requests(blocked, refused, run, tmp_path):
    done(blocked, "-m", "ddm.cli", "audit", run, "--retrain", "2")
    done(blocked, "-m", "ddm.cli", "attribute", run, "--index", "0", "--plot", tmp_path / "effects.png")
    done(blocked, "-m", "ddm.cli", "trace", run, "--index", "0", "--samples", "2")
    done(blocked, "-m", "ddm.cli", "report", run, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert not refused.exists(), refused.read_text(encoding="utf-8")


def test_the_explorer_sends_no_requests(blocked, refused, run):
    with serve_run(run, blocked) as (_, address), logged_in(address) as client:
        visitor = Visitor(client)
        assert "test image 3" in visitor.open("?index=3")["ddm-image"].lower()
        assert "by their share" in visitor.order()["ddm-samples"]
    assert not refused.exists(), refused.read_text(encoding="utf-8")


def test_a_hub_dataset_that_the_user_names_is_requested(blocked, tmp_path):
    file = tmp_path / "refused"
    environment = blocked | {"REFUSED": str(file), "HF_HOME": str(tmp_path)}
    assert ended(environment, "-m", "ddm.cli", "fit", "hf:mnist", "--out", tmp_path / "run").returncode == 2
    assert file.exists()


@pytest.fixture(scope="module")
def downloaded(blocked, tmp_path_factory):
    """A folder with the run of a dataset that was downloaded once, and the environment in which it was."""
    folder = tmp_path_factory.mktemp("hub")
    environment = blocked | {"HF_HOME": str(folder / "home"), "REFUSED": str(folder / "refused")}
    done(environment, "-c", CACHED, folder=folder)
    done(environment, "-m", "ddm.cli", "fit", "hf:someone/set", *SMALL.split(), "--out", "run", folder=folder)
    (folder / "refused").unlink()  # the one who fits names it
    return folder, environment


def test_a_run_of_a_downloaded_dataset_is_opened_without_requests(downloaded):
    folder, environment = downloaded
    done(environment, "-m", "ddm.cli", "trace", "run", "--index", "0", folder=folder)
    assert '"state": "unchecked"' not in done(environment, "-m", "ddm.cli", "verify", "run", "--json", folder=folder)
    assert not (folder / "refused").exists(), (folder / "refused").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["hf:attacker/x", "hf:set", "hf:buckets/attacker/x"])
def test_a_run_cannot_cause_requests(downloaded, tmp_path, name):
    folder, environment = downloaded
    run = Path(shutil.copytree(folder / "run", tmp_path / "run"))
    write_json(run / "config.json", read_json(run / "config.json") | {"data": name})
    environment = environment | {"REFUSED": str(tmp_path / "refused")}
    for command in ("trace", "audit"):
        said = ended(environment, "-m", "ddm.cli", command, run, folder=folder)
        assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
        assert f"pass --data {name}" in said.stderr
    assert not (tmp_path / "refused").exists(), (tmp_path / "refused").read_text(encoding="utf-8")


def test_a_dataset_that_both_a_run_and_the_user_name_is_requested(downloaded, tmp_path):
    folder, environment = downloaded
    run = Path(shutil.copytree(folder / "run", tmp_path / "run"))
    write_json(run / "config.json", read_json(run / "config.json") | {"data": "hf:attacker/x"})
    environment = environment | {"REFUSED": str(tmp_path / "refused")}
    assert ended(environment, "-m", "ddm.cli", "trace", run, "--data", "hf:attacker/x", folder=folder).returncode == 2
    assert (tmp_path / "refused").exists()
