"""Nothing asks the network unless a hub dataset is named: whole commands in processes that cannot reach it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from visitor import Visitor

ROOT = Path(__file__).parent.parent
SMALL = "--limit 200 --option width=4 --option depth=1 --epochs 2 --clusters 2 --setting bank=20"
EVERY_MODULE = """
import importlib, pkgutil, ddm
for module in pkgutil.walk_packages(ddm.__path__, "ddm."):
    importlib.import_module(module.name)
print(len([name for name in __import__("sys").modules if name.startswith("ddm.")]))
"""


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


def done(environment, *words):
    """What a Python process says; it must end well."""
    command = [sys.executable, *map(str, words)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_block_blocks_children_too(blocked, tmp_path):
    ways = [
        "import urllib.request; urllib.request.urlopen('http://example.org')",
        "import socket; socket.create_connection(('192.0.2.1', 80))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import httpx; httpx.get(\"http://example.org\")'])",
    ]
    for number, way in enumerate(ways):
        file = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-c", way], env=blocked | {"REFUSED": str(file)}, capture_output=True, check=False
        )
        assert re.match(r"example\.org|192\.0\.2\.1", file.read_text(encoding="utf-8"))


def test_importing_asks_nothing_of_the_network(blocked, refused):
    assert int(done(blocked, "-c", EVERY_MODULE)) > 60
    assert not refused.exists()


def test_commands_ask_nothing_of_the_network(blocked, refused, run, tmp_path):
    done(blocked, "-m", "ddm.cli", "audit", run, "--retrain", "2")
    done(blocked, "-m", "ddm.cli", "attribute", run, "--index", "0", "--plot", tmp_path / "effects.png")
    done(blocked, "-m", "ddm.cli", "trace", run, "--index", "0", "--samples", "2")
    done(blocked, "-m", "ddm.cli", "report", run, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert not refused.exists(), refused.read_text(encoding="utf-8")


def test_the_page_asks_nothing_of_the_network(blocked, refused, run):
    command = [sys.executable, "-m", "ddm.cli", "explore", str(run), "--no-open"]
    with subprocess.Popen(command, env=blocked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        site = re.search(r"http://127\.0\.0\.1:[0-9]+/", server.stdout.readline())
        assert site, server.stderr.read()
        with httpx.Client(base_url=site[0], trust_env=False, timeout=60) as client:
            visitor = Visitor(client)
            assert "Test image 3" in visitor.open("?index=3")["ddm-image"]
            assert "by their share" in visitor.order()["ddm-samples"]
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=60)[1] == ""
    assert not refused.exists(), refused.read_text(encoding="utf-8")


def test_a_hub_dataset_that_is_named_does_ask(blocked, tmp_path):
    file = tmp_path / "refused"
    command = [sys.executable, "-m", "ddm.cli", "fit", "hf:mnist", "--out", str(tmp_path / "run")]
    environment = blocked | {"REFUSED": str(file), "HF_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert file.exists()
