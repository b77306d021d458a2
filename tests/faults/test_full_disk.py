"""A disk that is full ends a command in a sentence; with room made, the same command goes on to the same result."""

import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from killing import results
from test_kills import FIT

import ddm
from ddm.compute.files import write_json
from ddm.compute.tensors import write_tensors

ROOM = "48k"
"""Too little for the run, enough for its first files."""

pytestmark = pytest.mark.slow


def small_file_system(script, folder):
    """Run a script of the shell where ``folder`` is a file system of ROOM, as no one else sees it."""
    mount = f"mount -t tmpfs -o size={ROOM} none {shlex.quote(str(folder))}"
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{mount} && cd {shlex.quote(str(folder))} && {script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture
def mountable(tmp_path):
    if shutil.which("unshare") is None or small_file_system("true", tmp_path).returncode:
        pytest.skip("this machine lets no one mount a file system")


@pytest.mark.usefixtures("mountable")
def test_a_fit_on_a_full_disk_is_refused_and_goes_on_once_there_is_room(tmp_path, attempt):
    (tmp_path / "small").mkdir()
    (tmp_path / "whole").mkdir()
    fit = f"{shlex.quote(sys.executable)} -m ddm.cli {FIT}"
    more = f"mount -o remount,size=100m {shlex.quote(str(tmp_path / 'small'))}"
    with attempt("full disks"):
        done = small_file_system(
            f"({fit} > ../out 2> ../err; echo $? > ../code; find . -name '.ddm-*' > ../left; cp -r run ../broken;"
            f" {more} && {fit} && cp -r run ../again)",
            tmp_path / "small",
        )
        assert done.returncode == 0, done.stderr
        said = [(tmp_path / name).read_text() for name in ("code", "out", "err")]
        assert said[:2] == ["2\n", ""]
        assert said[2].startswith("ddm: there is no disk space left to write 'run/")
        assert said[2].count("\n") == 1
        assert (tmp_path / "left").read_text() == ""
        with pytest.raises(ddm.InputError, match="not complete"):
            ddm.load(tmp_path / "broken")
        subprocess.run(shlex.split(fit), cwd=tmp_path / "whole", check=True, stdout=subprocess.DEVNULL, timeout=600)
        assert results(tmp_path / "again") == results(tmp_path / "whole" / "run")


@pytest.mark.parametrize("write", [lambda path: write_json(path, "x" * 5000), None], ids=["json", "tensors"])
def test_a_file_that_may_not_grow_is_refused_and_leaves_nothing(tmp_path, refused, write, attempt):
    import torch

    write = write or (lambda path: write_tensors(path, {"x": torch.zeros(5000)}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with attempt("full disks"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with refused("no disk space left", "the same command again"):
                write(tmp_path / "file")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(Path(tmp_path).iterdir()) == []
