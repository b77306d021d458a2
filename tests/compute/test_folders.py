"""A folder belongs to one process at a time, and only unfinished files of ddm are deleted."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile

import pytest

from ddm.compute.files import atomic_write, read_json, write_json
from ddm.compute.folders import lock_folder


def test_a_second_process_is_refused_and_unfinished_files_of_killed_processes_are_deleted(tmp_path, refused):
    script = "import sys, time\nfrom pathlib import Path\n"
    script += "from ddm.compute.files import atomic_write\nfrom ddm.compute.folders import lock_folder\n"
    script += "with lock_folder(Path(sys.argv[1])), atomic_write(Path(sys.argv[1], 'x', 'file')) as new:\n"
    script += "    new.write_text('half'); print(flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        (left,) = (tmp_path / "x").iterdir()
        with refused("another ddm is working", str(tmp_path)), lock_folder(tmp_path):
            pass
        assert left.exists()
    finally:
        other.kill()
        other.communicate()
    with atomic_write(tmp_path / "x" / "mine") as new, lock_folder(tmp_path):
        assert not left.exists()
        new.write_text("whole")
    assert os.listdir(tmp_path / "x") == ["mine"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_file_systems_without_locks_nothing_is_deleted(tmp_path, monkeypatch, number):
    def unsupported(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with atomic_write(tmp_path / "file") as new:
        new.write_text("whole")
        with lock_folder(tmp_path):
            assert new.read_text() == "whole"
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.parametrize("moment", ["before it is opened", "before it is held"])
def test_a_temporary_folder_that_is_deleted_before_it_is_locked_is_made_again(tmp_path, monkeypatch, moment):
    make, hold, swept = tempfile.mkdtemp, fcntl.flock, []

    def sweep():
        if not swept:
            swept.append(1)
            with lock_folder(tmp_path):
                pass

    def made(**options):
        folder = make(**options)
        if moment == "before it is opened":
            sweep()
        return folder

    def held(*arguments):
        if moment == "before it is held":
            sweep()
        hold(*arguments)

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    monkeypatch.setattr(fcntl, "flock", held)
    write_json(tmp_path / "file", 1)
    assert swept
    assert read_json(tmp_path / "file") == 1
    assert os.listdir(tmp_path) == ["file"]


def test_links_and_files_with_the_prefix_are_not_deleted(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "run" / ".ddm-link").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "run" / ".ddm-pipe")
    with lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "other" / "file").exists()
