"""Files are whole or absent, and broken ones are refused in one sentence."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors

from ddm.compute.files import atomic_write, is_outside, read_json, write_json
from ddm.compute.folders import lock_folder, make_folder
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}


def fail_halfway(path, error):
    with atomic_write(path) as temporary:
        temporary.write_text("half of the n")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(error, tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(error):
        fail_halfway(tmp_path / "file", error)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_block_that_fails_leaves_no_file_where_there_was_none(tmp_path):
    with pytest.raises(KeyError):
        fail_halfway(tmp_path / "file", KeyError)
    assert os.listdir(tmp_path) == []


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_before_the_next_file(tmp_path, monkeypatch):
    """Else a power cut could leave a name without contents, or a later file without an earlier one."""
    done, sync, rename = [], os.fsync, os.replace

    def synced(handle):
        done.append(f"sync {os.readlink(f'/proc/self/fd/{handle}').removeprefix(str(tmp_path))}")
        sync(handle)

    def renamed(source, destination):
        done.append(f"rename {str(destination).removeprefix(str(tmp_path))}")
        rename(source, destination)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    make_folder(tmp_path / "run")
    write_tensors(tmp_path / "run" / "a", TENSORS)
    assert done[:1] == ["sync "]  # the name of the folder
    assert done[1].startswith("sync /run/.ddm-")
    assert done[2:] == ["rename /run/a", "sync /run"]


def test_one_process_works_in_a_folder_and_what_killed_ones_left_is_removed(tmp_path, refused):
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
def test_where_nobody_can_tell_who_writes_nothing_is_removed(tmp_path, monkeypatch, number):
    def unsupported(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with atomic_write(tmp_path / "file") as new:
        new.write_text("whole")
        with lock_folder(tmp_path):
            assert new.read_text() == "whole"
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.parametrize("moment", ["before it is opened", "before it is held"])
def test_a_folder_that_is_swept_away_before_it_is_held_is_made_again(tmp_path, monkeypatch, moment):
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


def test_a_file_system_that_does_not_sync_folders_is_written_to(tmp_path, monkeypatch, refused):
    sync, failing = os.fsync, errno.EINVAL

    def only_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(failing, "not a file")
        sync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    write_json(tmp_path / "new" / "file", 1)
    assert read_json(tmp_path / "new" / "file") == 1
    failing = errno.EIO
    with refused("cannot write"):
        write_json(tmp_path / "new" / "file", 2)


def test_a_link_leads_out_or_stays_or_goes_round_in_circles(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    for name, goal in (("out", tmp_path / "file"), ("up", "../file"), ("loop", "loop"), ("here", "file")):
        (home / name).symlink_to(goal)
    assert {name: is_outside(home / name, home) for name in ("out", "up", "loop", "here", "file")} == {
        "out": True,
        "up": True,
        "loop": True,
        "here": False,
        "file": False,
    }


def test_only_folders_of_ones_own_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "run" / ".ddm-link").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "run" / ".ddm-pipe")
    with lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "other" / "file").exists()


def test_folders_are_made_and_permissions_are_ordinary(tmp_path):
    write_json(tmp_path / "a" / "b.json", 1)
    write_tensors(tmp_path / "a" / "c.safetensors", TENSORS)
    plain = tmp_path / "plain"
    plain.touch()
    for path in (tmp_path / "a").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_place_that_cannot_be_written_is_refused(tmp_path, refused):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "inside", tmp_path / "x" / ".." / "file" / "a" / "b"):
        with refused("cannot write"):
            write_json(path, 1)
    with refused("cannot write"):
        write_tensors(tmp_path.joinpath("/proc/nowhere/file"), TENSORS)


def test_a_folder_is_not_replaced_by_a_file(tmp_path, refused):
    (tmp_path / "folder").mkdir()
    with refused("cannot write"):
        write_json(tmp_path / "folder", 1)
    assert os.listdir(tmp_path) == ["folder"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(json_values)
def test_json_comes_back(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert read_json(path) == value


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}}', b"\xff\xfe", b"no json", b'{"a": 1'])
def test_broken_json_is_refused(content, tmp_path, refused):
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with refused("value.json", "JSON"):
        read_json(path)


def test_missing_files_are_refused(tmp_path, refused):
    for read in (read_json, read_tensors, read_metadata):
        for path in (tmp_path / "missing", tmp_path):
            with refused(str(path)):
                read(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_and_metadata_come_back(dtype, tmp_path):
    tensors = {
        "a": (torch.randn(3, 4) * 10).to(dtype),
        "empty": torch.zeros(0, 2, dtype=dtype),
        "zero": torch.tensor(1),
    }
    metadata = {"names": ["ä", "b/1"], "step": 3, "length": 0.1, "nested": {"none": None}}
    write_tensors(tmp_path / "file", tensors, metadata)
    assert same_tensors(read_tensors(tmp_path / "file"), tensors)
    assert read_metadata(tmp_path / "file") == metadata


def test_views_of_other_tensors_can_be_written(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    tensors = {"turned": whole.T, "column": whole[:, 1], "repeated": torch.ones(1).expand(5)}
    write_tensors(tmp_path / "file", tensors)
    assert same_tensors(read_tensors(tmp_path / "file"), tensors)


def test_the_same_contents_give_the_same_bytes(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"x": 1, "y": 2})
    write_tensors(tmp_path / "b", {name: TENSORS[name] for name in ("b", "a")}, {"y": 2, "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_truncated_file_of_tensors_is_refused_wherever_it_ends(tmp_path_factory, refused, data):
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    write_tensors(path, TENSORS, {"step": 1})
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    for read in (read_tensors, read_metadata):
        with refused("cut.safetensors"):
            read(path)


@pytest.mark.parametrize("content", [bytes(range(256)) * 4, b"\xff" * 64, json.dumps({}).encode()])
def test_something_else_than_tensors_is_refused(content, tmp_path, refused):
    (tmp_path / "file").write_bytes(content)
    for read in (read_tensors, read_metadata):
        with refused(str(tmp_path / "file")):
            read(tmp_path / "file")


def test_a_pickle_is_never_read(tmp_path, refused):
    torch.save(TENSORS, tmp_path / "file")
    with refused(str(tmp_path / "file")):
        read_tensors(tmp_path / "file")
