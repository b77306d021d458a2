"""Hostile files: each is refused with one sentence and exit code 2, with little memory and no change to other files."""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import peak_memory
import pytest
import torch
from manifests import change_manifest
from PIL import Image
from refusals import assert_refused
from torch.nn import functional as F

import ddm
import ddm.compute.files
import ddm.runs.config
import ddm.runs.inputs
import ddm.runs.run
import ddm.truth.audit
import ddm.truth.figures
from ddm import networks
from ddm.compute import memory
from ddm.compute.files import read_json, write_json
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.distil.synset import Synset
from ddm.runs import manifest
from ddm.runs.verify import verify
from ddm.training.trajectory import Trajectory

FEW = 200 * 2**20
"""Maximum bytes of memory that refusing a file may need."""

CONFIG = ddm.runs.config.Config(
    limit=24,
    options={"width": 2, "depth": 1},
    recipe=ddm.Recipe(epochs=1, batch_size=24, optimizer="adam", lr=0.01),
    partition="class",
    settings=ddm.Settings(curvature=8, bank=2),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    ddm.runs.run.fit(CONFIG, out, "serial")
    return out


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a run, which a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def frugal():
    """Fails a test that needs more than a little memory."""
    before = peak_memory.reset()
    yield
    assert peak_memory.peak() - before < FEW


def rewritten(path, change=None, **metadata):
    """Change a tensor file of a run, and update the checksums to match."""
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    if change is not None:
        change(tensors)
    write_tensors(path, tensors, read_metadata(path) | metadata)
    run = path.parent if path.parent.name != "trajectory" else path.parent.parent
    files = read_json(run / "manifest.json")["files"]
    change_manifest(run, files={name: ddm.compute.files.hash_file(run / name) for name in files})


# --- absurd sizes and bombs in datasets ---


def gigantic_idx(folder):
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**16, 2**16)
    (folder / "train-images-idx3-ubyte").write_bytes(header + bytes(100))
    return "mnist", "--root", folder


def gzip_bomb(folder):
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 10, 4, 4)
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb", 9) as file:
        file.write(header)
        for _ in range(300):
            file.write(bytes(2**20))
    return "mnist", "--root", folder


def npz_of(folder, shape, kind, content, key="x"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{key}.npy", header.getvalue() + content)
    return (f"npz:{folder / 'data.npz'}",)


def npz_with_many(folder, key):
    arrays = {"x": np.arange(48, dtype=np.uint8).reshape(3, 4, 4), "y": np.arange(3)}
    np.savez_compressed(folder / "data.npz", **(arrays | {key: np.zeros(50_000_000, np.uint8)}))
    return (f"npz:{folder / 'data.npz'}",)


def npz_of_many_classes(folder):
    return npz_with_many(folder, "classes")


def npz_of_many_labels(folder):
    return npz_with_many(folder, "y")


def npz_of_no_characters(folder):
    labels = np.array(["a", "b"] * 10)
    labels.view(np.uint32)[3] = 0x110000
    np.savez(folder / "data.npz", x=np.zeros((20, 4, 4), np.uint8), y=labels)
    return (f"npz:{folder / 'data.npz'}",)


def npz_that_declares_more(folder):
    return npz_of(folder, (2**40, 8, 8), "|u1", bytes(64))


def npz_of_nothing_a_trillion_times(folder):
    return npz_of(folder, (2**40,), "<U0", b"", "classes")


def npz_bomb(folder):
    """An archive whose directory declares 64 GiB of zeros."""
    arguments = npz_of(folder, (2**36,), "|u1", bytes(2**20))
    path = folder / "data.npz"
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    extra = struct.pack("<HHQ", 1, 8, 2**36)
    content[entry + 24 : entry + 28] = b"\xff" * 4
    content[entry + 30 : entry + 32] = struct.pack("<H", len(extra))
    place = entry + 46 + len("x.npy")
    content[place:place] = extra
    end = content.rindex(b"PK\x05\x06")
    content[end + 12 : end + 16] = struct.pack("<I", end - entry)
    path.write_bytes(content)
    return arguments


def png(width, height):
    chunks = [(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(1000)))]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def image_bomb(folder):
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").write_bytes(png(8000, 8000))
    return (f"folder:{folder}",)


def many_large_images(folder):
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").write_bytes(png(7000, 7000))
    for index in range(1, 1000):
        os.link(folder / "cat" / "0.png", folder / "cat" / f"{index}.png")
    return (f"folder:{folder}",)


def program_as_an_image(folder):
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    return (f"folder:{folder}",)


def pickle_that_runs(folder):
    class Run:
        def __reduce__(self):
            return os.mkdir, (str(folder / "run"),)

    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Run(), "labels": [0]}))
    (folder / "test_batch").write_bytes(b"")
    return "cifar10", "--root", folder


def cifar_of(folder, instructions):
    (folder / "data_batch_1").write_bytes(b"\x80\x02" + instructions + b".")
    (folder / "test_batch").write_bytes(b"")
    return "cifar10", "--root", folder


def pickle_that_copies(folder):
    """A pickle that encodes a string of 1 MiB a thousand times."""
    string = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x01" + b"X\x06\x00\x00\x00latin1q\x02"
    return cifar_of(folder, b"](c_codecs\nencode\nq\x00" + string + b"h\x00h\x01h\x02\x86R" * 1000 + b"e")


def pickle_that_doubles(folder):
    """A pickle with a key of 2⁶⁰ nested parts, all of which hashing the key would visit."""
    return cifar_of(folder, b"}K\x00q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"K\x00s")


def pickle_that_copies_the_topmost(folder):
    return cifar_of(folder, b"}K\x00" + b"2\x86" * 60 + b"K\x00s")


def pickle_nested_deeply(folder):
    return cifar_of(folder, b"}K\x00" + b"\x85" * 2**20 + b"K\x00s")


def pipe_as_an_image(folder):
    (folder / "cat").mkdir()
    os.mkfifo(folder / "cat" / "0.png")
    return (f"folder:{folder}",)


def pipe_as_arrays(folder):
    os.mkfifo(folder / "data.npz")
    return (f"npz:{folder / 'data.npz'}",)


def image_that_links_to_itself(folder):
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").symlink_to(folder / "cat" / "0.png")
    return (f"folder:{folder}",)


def link_to_an_image(folder):
    secret = folder.parent / "secret"
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for index in range(6):
            Image.fromarray(np.full((4, 4), 9 * index, np.uint8)).save(folder / name / f"{index}.png")
    secret.mkdir(exist_ok=True)
    Image.fromarray(np.full((4, 4), 77, np.uint8)).save(secret / "mine.png")
    (folder / "cat" / "9.png").symlink_to(secret / "mine.png")
    return (f"folder:{folder}",)


def class_that_climbs_out(folder):
    outside = folder.parent / "outside" / "images"
    outside.mkdir(parents=True)
    for index in range(20):
        Image.fromarray(np.full((64, 64, 3), index, np.uint8)).save(outside / f"{index}.JPEG", "JPEG")
    (folder / "train").mkdir()
    (folder / "wnids.txt").write_text("../../outside\n")
    return "tiny-imagenet", "--root", folder


def class_that_cannot_be_printed(folder):
    for name in (b"\xff\xfe", b"dog"):
        os.mkdir(os.fsencode(folder) + b"/" + name)
        for index in range(6):
            with open(os.fsencode(folder) + b"/" + name + f"/{index}.png".encode(), "wb") as file:
                Image.fromarray(np.full((4, 4), 9 * index, np.uint8)).save(file, "PNG")
    return (f"folder:{folder}",)


HOSTILE = (
    *(npz_of_no_characters, gigantic_idx, gzip_bomb, npz_that_declares_more, npz_of_nothing_a_trillion_times, npz_bomb),
    *(npz_of_many_classes, npz_of_many_labels, image_bomb, many_large_images, program_as_an_image, pickle_that_runs),
    *(pickle_that_copies, pickle_that_doubles, pickle_that_copies_the_topmost, pickle_nested_deeply),
    *(pipe_as_an_image, pipe_as_arrays, image_that_links_to_itself, link_to_an_image, class_that_climbs_out),
    class_that_cannot_be_printed,
)


@pytest.mark.usefixtures("frugal")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_hostile_data_are_refused(make, command, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    arguments = make(folder)
    before = sorted(tmp_path.rglob("*"))
    assert_refused(command("fit", *arguments, "--out", tmp_path / "made"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_network_too_large_for_the_machine_is_refused(command):
    assert_refused(command("fit", "digits", "--option", "width=1000000", "--out", "run"), "memory")
    assert_refused(command("fit", "digits", "--option", "depth=1000000000", "--out", "run"), "depth")


def test_work_that_needs_more_than_the_usable_memory_is_refused(monkeypatch, refused):
    monkeypatch.setattr(memory, "usable_bytes", lambda: 100)
    memory.check_memory(100, "it", "choose less")
    with refused("it would need", "choose less"):
        memory.check_memory(101, "it", "choose less")


def limited(root, groups, **limits):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for place, limit in limits.items():
        path = root / "sys/fs/cgroup" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    return sorted(memory.cgroup_limits(root))


def test_memory_limits_of_cgroups_are_respected(tmp_path):
    assert limited(tmp_path / "none", "0::/\n") == []
    second = {"memory.max": "max", "a/memory.max": 300, "a/b/memory.max": 400, "c/memory.max": 7}
    assert limited(tmp_path / "second", "0::/a/b\n", **second) == [300, 400]
    first = {"memory/memory.limit_in_bytes": 500, "memory/a/memory.limit_in_bytes": 200, "cpu/a/memory.max": 7}
    groups = "5:cpu:/a\n4:hugetlb,memory:/a/hidden\n0::/\n"
    assert limited(tmp_path / "first", groups, **first) == [200, 500]
    assert list(memory.cgroup_limits(tmp_path / "elsewhere")) == []
    assert 0 < 2 * memory.usable_bytes() <= min([2**63, *memory.cgroup_limits()])


# --- JSON ---


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"format":' * 5000, '{"format": ' + "9" * 5000 + "}", '{"a": "\\ud800"}', '{"format": 1e999}'],
    ids=["deep", "deep table", "long number", "half a character", "infinite"],
)
def test_json_that_breaks_parsers_is_refused(run, text, command):
    (run / "manifest.json").write_text(text)
    assert_refused(command("verify", run))
    (run / "config.json").write_text(text)
    assert_refused(command("fit", "--config", run / "config.json", "--out", "again"))


@pytest.mark.usefixtures("frugal")
def test_huge_json_is_refused_without_reading_it(run, command):
    with (run / "manifest.json").open("wb") as file:
        file.truncate(2**40)  # a sparse file, which needs no disk space
    assert_refused(command("verify", run), "larger")


@pytest.mark.parametrize("name", ["config.json", "synset.safetensors", "trajectory/00000.safetensors"])
def test_a_pipe_in_a_run_is_refused_without_waiting_for_it(run, name, command):
    (run / name).unlink()
    os.mkfifo(run / name)
    assert_refused(command("trace", run, "--index", 0), "regular file")


# --- tensors ---


@pytest.mark.usefixtures("frugal")
@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 99 * 2**20])
def test_a_tensor_file_with_an_absurdly_long_header_is_refused(tmp_path, length, refused):
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(50))
    with refused(str(path)):
        read_tensors(path)


def test_tensors_larger_than_their_file_are_refused(tmp_path, refused):
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with refused("x.safetensors"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("synset.safetensors", "images"),
        ("synset-class.safetensors", "lengths"),
        ("responses.safetensors", "clusters"),
        ("responses.safetensors", "class_scales"),
        ("trajectory/00001.safetensors", "classifier.weight"),
    ],
)
def test_tensors_with_nan_or_infinite_values_are_refused(run, name, tensor, value, command):
    rewritten(run / name, lambda tensors: tensors[tensor].view(-1).__setitem__(0, value))
    assert_refused(command("trace", run, "--index", 0), "NaN")


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    """A run of a network with BatchNorm, and its retrained models."""
    out = tmp_path_factory.mktemp("normalised") / "run"
    config = replace(CONFIG, options={**CONFIG.options, "norm": "batch"}, recipe=ddm.Recipe(epochs=2, batch_size=12))
    datamodel, data, _ = ddm.runs.run.fit(config, out, "serial")
    ddm.runs.run.audit(out, datamodel, data, retrain=2, unions=0, seeds=2, seed=0, engine="serial")
    return out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("folder", ["trajectory", "exact"])
def test_batchnorm_statistics_with_nan_or_infinite_values_are_refused(normalised, folder, value, tmp_path, command):
    run = Path(shutil.copytree(normalised, tmp_path / "run"))
    for path in sorted((run / folder).glob("0000[01].safetensors" if folder == "trajectory" else "*")):
        tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
        (name,) = (name for name in tensors if name.endswith("running_var"))
        tensors[name][0] = value
        write_tensors(path, tensors, read_metadata(path))
    (run / "audit.json").unlink()
    assert_refused(command("audit", run, "--retrain", 2, "--unions", 0, "--engine", "serial"), "NaN", "running_var")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.update(groups=tensors["groups"] + 2**60),
        lambda tensors: tensors.update(groups=-tensors["groups"]),
        lambda tensors: tensors.update(groups=torch.zeros_like(tensors["groups"])),
        lambda tensors: tensors.update(groups=tensors["groups"].float()),
        lambda tensors: tensors.update(groups=tensors["groups"].bfloat16()),
        lambda tensors: tensors.update(groups=tensors["groups"][None]),
        lambda tensors: tensors.update(parents=tensors["parents"] + 10),
        lambda tensors: tensors.update(parents=tensors["parents"][1:]),
        lambda tensors: tensors.pop("groups"),
    ],
    ids=["far", "negative", "empty groups", "fractions", "halves", "matrix", "far parents", "few parents", "none"],
)
@pytest.mark.usefixtures("frugal")
def test_a_partition_with_invalid_group_numbers_is_refused(run, change, refused):
    rewritten(run / "partition.safetensors", change)
    with refused("partition.safetensors"):
        ddm.load(run)


@pytest.mark.parametrize(
    "metadata",
    [
        {"names": [1, 2]},
        {"names": ["0"] * 10},
        {"names": ["\ud800", *"123456789"]},
        {"names": None},
        {"steps": 10**12},
        {"steps": 0},
        {"steps": True},
        {"hard": "yes"},
        {"shared": False},
        {"stopped": ["0"]},
        {"stopped": {"elsewhere": "why"}},
        {"stopped": {"0": 5}},
        {"origin": 3},
        {"origin": {"data": 5}},
        {"origin": {"network": None}},
        {"unknown": 3},
    ],
    ids=str,
)
def test_a_synset_with_invalid_metadata_is_refused(run, metadata, refused):
    rewritten(run / "synset.safetensors", **metadata)
    with refused("synset"):
        ddm.load(run)
    with refused("synset"):
        raise ddm.InputError(verify(run).sentence)


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: x[:, :-1], lambda x: x.long(), lambda x: x[..., 0]])
@pytest.mark.parametrize("tensor", ["targets", "lengths"])
def test_a_synset_with_wrong_shapes_or_dtypes_is_refused(run, tensor, change, refused):
    def spoil(tensors):
        try:
            tensors[tensor] = change(tensors[tensor]).contiguous()
        except IndexError:
            tensors[tensor] = tensors[tensor][None]

    rewritten(run / "synset.safetensors", spoil)
    with refused("synset.safetensors"):
        Synset.load(run / "synset.safetensors")


@pytest.mark.parametrize(
    "metadata",
    [
        {"clusters": 3},
        {"clusters": ["0"]},
        {"classes": [str(number) for number in range(9)] + ["8"]},
        {"classes": []},
        {"clusters": [str(number) for number in range(1, 11)]},
        {"damping": {"scale": -1.0}},
        {"damping": {"scale": "1"}},
        pytest.param({"damping": {"scale": 10**400}}, id="a damping of 400 digits"),
        {"damping": 3},
        {"origin": 3},
        {"origin": {"data": 5}},
        {"origin": {"target": "another"}},
    ],
    ids=str,
)
def test_responses_with_invalid_metadata_are_refused(run, metadata, refused):
    rewritten(run / "responses.safetensors", **metadata)
    with refused("responses"):
        ddm.load(run)
    with refused("responses"):
        raise ddm.InputError(verify(run).sentence)


@pytest.mark.parametrize(
    ("tensor", "change"),
    [
        ("clusters", lambda x: x[:-1]),
        ("clusters", lambda x: x[:, :-1]),
        ("clusters", lambda x: x.float()),
        ("clusters", lambda x: x[..., 0]),
        ("clusters", lambda x: x[:, :0]),
        ("classes", lambda x: x.long()),
        ("classes", lambda x: x[:0]),
        ("cluster_scales", lambda x: x[:-1]),
        ("cluster_scales", lambda x: x.double()),
        ("cluster_scales", lambda x: -x),
        ("class_scales", lambda x: torch.full_like(x, 1e38)),
    ],
)
def test_responses_with_wrong_shapes_dtypes_or_scales_are_refused(run, tensor, change, refused):
    def spoil(tensors):
        tensors[tensor] = change(tensors[tensor]).contiguous()

    rewritten(run / "responses.safetensors", spoil)
    with refused("responses.safetensors"):
        ddm.load(run)


def test_responses_of_another_number_of_parameters_are_refused(run, refused):
    def spoil(tensors):
        for level in ("clusters", "classes"):
            tensors[level] = tensors[level][:, :-1].contiguous()

    rewritten(run / "responses.safetensors", spoil)
    with refused("parameters, but the network has"):
        ddm.load(run)


def test_responses_that_declare_more_than_their_file_holds_are_refused(run, frugal, command):
    header = {"clusters": {"dtype": "F16", "shape": [10, 2**38], "data_offsets": [0, 20 * 2**38]}}
    text = json.dumps(header).encode()
    (run / "responses.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    files = read_json(run / "manifest.json")["files"]
    change_manifest(run, files={name: ddm.compute.files.hash_file(run / name) for name in files})
    assert_refused(command("trace", run, "--index", 0), "responses.safetensors")


def test_entries_of_responses_that_a_later_version_adds_do_no_harm(run, finished):
    rewritten(run / "responses.safetensors", lambda tensors: tensors.update(later=torch.ones(2)), later=3)
    assert torch.equal(ddm.load(run).responses.clusters.values, ddm.load(finished).responses.clusters.values)


@pytest.mark.parametrize(
    "metadata", [{"step": 1e999}, {"step": -5}, {"length": 10**400}, {"length": 1e999}, {"step": None}, {"length": []}]
)
def test_a_checkpoint_with_an_invalid_step_or_length_is_refused(run, metadata, refused):
    path = run / "trajectory" / "00001.safetensors"
    write_tensors(path, read_tensors(path), read_metadata(path) | metadata)
    with refused(str(path)):
        Trajectory.open(run / "trajectory")


def test_a_checkpoint_with_a_wrong_shape_is_refused_and_the_message_names_the_tensor(run, refused):
    rewritten(
        run / "trajectory" / "00001.safetensors",
        lambda tensors: tensors.update({"classifier.bias": tensors["classifier.bias"][None]}),
    )
    with refused("another network", "classifier.bias", "(1, 10)"):
        ddm.load(run)


@pytest.mark.parametrize(
    "metadata",
    [
        {"checkpoint": -1},
        {"checkpoint": "2"},
        {"epoch": -1},
        {"step": 10**9},
        {"epoch": 0.5},
        {"recorder": None},
        {"recorder": {"step": 2, "every": None, "checkpoints": 0, "sums": {}, "probes": []}},
        {"recorder": {"step": 2, "every": 0, "checkpoints": 2, "sums": {}, "probes": []}},
        {
            "recorder": {
                "step": 2,
                "every": None,
                "checkpoints": 2,
                "sums": {"a": [1.0, 0.0, 0.0, 0.0, 1]},
                "probes": [],
            }
        },
        {"recorder": {"step": 2, "every": None, "checkpoints": 2, "sums": {}, "probes": [3]}},
    ],
    ids=str,
)
def test_training_does_not_resume_from_progress_with_wrong_counts(run, metadata, refused):
    path = run / "trajectory" / "progress.safetensors"
    write_tensors(path, read_tensors(path), read_metadata(path) | metadata)
    data = ddm.runs.inputs.load_data(CONFIG)
    network = networks.build("convnet", data.train.shape, 10, width=2, depth=1)
    with refused("progress.safetensors"):
        ddm.train(network, data.train, CONFIG.recipe, directory=run / "trajectory")


@pytest.mark.parametrize(
    ("optimizer", "name", "change"),
    [
        ("sgd", "optimizer.0.momentum_buffer", lambda x: x[:1]),
        ("sgd", "optimizer.0.momentum_buffer", lambda x: x.long()),
        ("adam", "optimizer.0.exp_avg", lambda x: x[None]),
        ("adam", "optimizer.0.exp_avg_sq", lambda x: x.double()),
        ("adam", "optimizer.0.exp_avg_sq", lambda x: None),
        ("adam", "optimizer.0.step", lambda x: x[None]),
        ("adam", "optimizer.0.step", lambda x: -x),
        ("adam", "recorder.moment:blocks.0.0.weight", lambda x: x[:1]),
        ("adam", "recorder.moment:blocks.0.0.weight", lambda x: x.int()),
        ("adam", "recorder.probe:0:slopes", lambda x: x[:, :1]),
        ("adam", "recorder.probe:0:outputs", lambda x: None),
    ],
)
def test_training_does_not_resume_with_an_optimizer_state_that_does_not_fit(tmp_path, optimizer, name, change, refused):
    data, path = ddm.runs.inputs.load_data(CONFIG), tmp_path / "progress.safetensors"
    network = networks.build("convnet", data.train.shape, 10, width=2, depth=1)
    momentum = 0.5 if optimizer == "sgd" else 0.0
    recipe = ddm.Recipe(epochs=2, optimizer=optimizer, momentum=momentum, lr=0.01, checkpoint_every=10**6)
    calls = iter(range(1))

    def fails_in_the_second_epoch(logits, labels):
        next(calls)
        return F.cross_entropy(logits, labels)

    with pytest.raises(StopIteration):
        ddm.train(network, data.train, recipe, loss=fails_in_the_second_epoch, directory=tmp_path)
    tensors, metadata = read_tensors(path), read_metadata(path)
    changed = change(tensors.pop(name))
    write_tensors(path, tensors if changed is None else tensors | {name: changed}, metadata)
    with refused("progress.safetensors", "delete it"):
        ddm.train(network, data.train, recipe, directory=tmp_path)


@pytest.mark.parametrize("name", ["data", "network", "target", "files"])
@pytest.mark.parametrize("value", [5, [1], ...], ids=str)
def test_a_manifest_with_values_of_wrong_types_is_refused(run, name, value, command):
    change_manifest(run, **{name: value})
    tensors, metadata = read_tensors(run / "partition.safetensors"), read_metadata(run / "partition.safetensors")
    write_tensors(run / "partition.safetensors", tensors, metadata | {"data": "0" * 64})
    shutil.copy(run / "trajectory" / "00000.safetensors", run / "trajectory" / "00001.safetensors")
    assert_refused(command("verify", run))
    assert_refused(command("trace", run, "--index", 0))


def test_a_manifest_with_an_invalid_description_of_the_data_is_refused(run, refused):
    change_manifest(run, described=[1])
    for use in (lambda: verify(run, ddm.datasets.load("digits", limit=30).train), lambda: ddm.runs.run.open_run(run)):
        with refused("manifest.json", "described"):
            use()


def test_a_listed_file_whose_name_is_too_long_counts_as_missing(run):
    change_manifest(run, files=read_json(run / "manifest.json")["files"] | {"a" * 5000: "0" * 64})
    assert [one.state for one in verify(run).bad] == ["missing"]


@pytest.mark.usefixtures("frugal")
@pytest.mark.parametrize("change", [{"width": 20_000}, {"depth": 999}, {"classes": 2**20}, {"shape": [2**20] * 3}])
def test_a_manifest_of_a_gigantic_network_is_refused(run, change, refused):
    change_manifest(run, spec=read_json(run / "manifest.json")["spec"] | change)
    with refused():
        ddm.load(run)


@pytest.mark.usefixtures("frugal")
def test_a_network_file_of_a_gigantic_network_is_refused(tmp_path, refused):
    path = tmp_path / "network.safetensors"
    networks.save(networks.ConvNet(width=2, depth=1), path)
    spec = read_metadata(path)["network"]
    for change in ({"width": 20_000}, {"depth": 10**9}, {"classes": 10**12}, {"name": ["convnet"]}):
        write_tensors(path, read_tensors(path), {"network": spec | change})
        with refused("network.safetensors"):
            networks.load(path)


@pytest.mark.parametrize("dtype", ["load", "complex64", "int8", "", None])
def test_a_manifest_with_an_unsupported_dtype_is_refused(run, dtype, refused):
    change_manifest(run, dtype=dtype)
    with refused("manifest.json"):
        ddm.load(run)


@pytest.mark.parametrize("trained", [[], ["nothing"], [1], [[]], "blocks"], ids=str)
def test_a_manifest_must_name_the_trained_parameters(run, trained, refused):
    change_manifest(run, trained=trained)
    with refused("manifest.json"):
        ddm.load(run)


def test_an_audit_with_numbers_too_large_for_a_float_is_refused(finished, run, refused):
    figure = {"value": 10**400, "low": 0, "high": 1, "retrain": None, "ceiling": None}
    figures = {"same run": dict.fromkeys(ddm.truth.figures.FIGURES, figure)}
    audit = ddm.truth.audit.Audit(figures, ("0",), 1, 2, (3, 4), 6, 0.1)
    with refused("not an audit"):
        ddm.truth.audit.Audit.from_dict(vars(audit))


# --- links ---


@pytest.mark.parametrize("name", ["trajectory", "exact", "parts", "synset.safetensors", "trajectory/00001.safetensors"])
def test_nothing_is_read_or_written_through_a_link_out_of_a_run(run, name, tmp_path, command):
    outside = tmp_path / "outside"
    outside.mkdir()
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    else:
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside if "." not in name else outside / "file")
    for arguments in (
        ("verify", run),
        ("trace", run, "--index", 0),
        ("audit", run, "--retrain", 2),
        ("report", run),
        ("fit", "--config", run / "config.json", "--out", run),
    ):
        assert_refused(command(*arguments), "link", str(run / name))
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", ["x", "synset.safetensors", "trajectory"])
def test_circular_links_are_refused(run, name, command):
    if (run / name).exists():
        (run / name).rename(run / "away")
    (run / name).symlink_to(name)
    for arguments in (("verify", run), ("trace", run, "--index", 0), ("fit", "digits", "--out", run / name)):
        assert_refused(command(*arguments), str(run / name))


def test_the_run_folder_may_itself_be_a_link(run, tmp_path, command):
    (tmp_path / "link").symlink_to(run)
    assert command("verify", tmp_path / "link").code == 0


def test_a_manifest_that_lists_files_outside_of_its_run_is_refused(run, command):
    files = read_json(run / "manifest.json")["files"]
    for name in ("../../secret", "/etc/passwd"):
        change_manifest(run, files=files | {name: "0" * 64})
        assert_refused(command("verify", run), "manifest.json")


def test_a_groups_file_that_is_endless_or_has_an_invalid_name_is_refused(tmp_path, command):
    config = CONFIG.to_dict()
    for groups in ("/dev/zero", "a\0b"):
        write_json(tmp_path / "config.json", config | {"groups": groups, "groups_hash": "0" * 64})
        assert_refused(command("fit", "--config", tmp_path / "config.json", "--out", tmp_path / "made"))


def test_a_format_version_below_the_first_is_refused(run, refused):
    change_manifest(run, format=-1)
    with refused("manifest.json"):
        manifest.read_manifest(run)
