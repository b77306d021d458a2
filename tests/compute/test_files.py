"""Files are complete or absent, and broken ones are refused in one sentence."""

import errno
import os
import stat

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddm.compute.files import atomic_write, is_outside, read_json, write_json
from ddm.compute.folders import make_folder
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


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_synced_before_it_is_renamed_and_the_folder_before_the_next_file_is_written(tmp_path, monkeypatch):
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


def test_file_systems_that_cannot_sync_folders_are_tolerated(tmp_path, monkeypatch, refused):
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


def test_links_out_of_a_folder_and_in_circles_are_outside(tmp_path):
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


def test_missing_folders_are_made_and_files_get_default_permissions(tmp_path):
    write_json(tmp_path / "a" / "b.json", 1)
    write_tensors(tmp_path / "a" / "c.safetensors", TENSORS)
    plain = tmp_path / "plain"
    plain.touch()
    for path in (tmp_path / "a").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_path_that_cannot_be_written_is_refused(tmp_path, refused):
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
def test_json_is_read_as_it_was_written(tmp_path_factory, value):
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
