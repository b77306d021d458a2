"""Every reader, given files that are nearly valid, reads them or refuses them with ``InputError``: nothing else.

A failure names the reader and the number of its input; inputs that failed once are kept in ``seeds/`` and tried first.
"""

import gzip
import io
import pickle
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fuzzing
import mutations
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import ddm
from ddm import networks
from ddm.bench.evidence_files import StoredEvidence
from ddm.bench.outcome import Cost, Outcome
from ddm.bench.truths import Facts, StoredTruth
from ddm.compute.files import read_json, read_json_object
from ddm.compute.tensors import is_intact
from ddm.data import images
from ddm.data.readers import cifar, idx, npz
from ddm.distil.kept import KeptResponses
from ddm.distil.synset import Synset
from ddm.groups.partition import Partition
from ddm.networks.weighted_sum import WeightedSum
from ddm.runs import manifest, partition_file
from ddm.runs.config import Config
from ddm.training.steps import Steps, TensorSteps
from ddm.training.trajectory import Trajectory
from ddm.truth.audit import Audit
from ddm.truth.effects import Effects
from ddm.truth.evidence import Evidence

SEEDS = Path(__file__).parent / "seeds"
FILES = fuzzing.some(100_000, 1000)
"""Inputs for each reader."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stopped")]


@dataclass(frozen=True)
class Reader:
    """A reader: the name of a file, valid contents of it, how they are changed, and what reads them."""

    file: str
    valid: Sequence[bytes]
    change: Callable[[bytes, Random], bytes]
    read: Callable[[Path], Any]
    growth: int = fuzzing.GROWTH
    inputs: int = FILES


def fuzz(name: str, reader: Reader, place: Path, attempt: Any) -> None:
    """Give a reader its seeds, then inputs."""
    random = Random(zlib.crc32(name.encode()))
    kept = [path.read_bytes() for path in sorted((SEEDS / name).glob("*"))]
    path = place / reader.file

    def give(number: int) -> None:
        content = kept[number] if number < len(kept) else reader.change(random.choice(reader.valid), random)
        path.unlink(missing_ok=True)  # not written over: what was read before may still be mapped
        path.write_bytes(content)
        reader.read(path)

    fuzzing.give_all(name, give, len(kept) + reader.inputs, attempt, reader.growth)


def _array_file(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def _picture(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)
    Image.fromarray(values).convert(mode).save(file, kind)
    return file.getvalue()


def _one_image(path: Path) -> Any:
    with images._open([path], 0, "train") as (image, name):
        form = images.Form(1 if images._is_grey(image) else 3, image.height, image.width, resize=False)
        return images._decode(image, form, name)


def _table() -> pd.DataFrame:
    """A table with numbers, words, dates, texts and missing values."""
    words = ["an old house", "a new house", "an old tree", None]
    return pd.DataFrame(
        {
            "a": [1.5, 2.5, None, 1e300] * 6,
            "b": range(7, 31),
            "c": ["x", "y", 'x,"z"', None] * 6,
            "d": words * 6,
            "e": ["2024-01-01", "2024-02-29", "1999-12-31", None] * 6,
            "y": ["no", "no", "yes", "yes"] * 6,
        }
    )


def _read_table(path: Path, **columns: str) -> Any:
    with np.errstate(all="ignore"):
        return ddm.datasets.load(f"{path.suffix[1:]}:{path}", label="y", drop="a", **columns)


def _small_truth() -> StoredTruth:
    """The truth of a problem with 2 groups, a union, 2 batch orders, 2 test samples and a validation sample."""
    partition = Partition(np.array([0, 1, 1]), ("a/0", "b/0"), np.array([0, 1]), ("a", "b"))
    facts = Facts({"unions": 1, "orders": 2}, partition.names, partition.classes, {"test": "0"}, "0", 2, 0.5, 1.0, {})
    removed = np.array([[0, 0], [1, 0], [0, 1], [1, 0]], dtype=bool)
    return StoredTruth(facts, partition, removed, torch.arange(48.0).reshape(2, 4, 3, 2))


def _small_evidence() -> StoredEvidence:
    """The evidence of a problem with 3 groups: a retraining in each of 2 batch orders, of 3 samples and 2 classes."""
    removed, orders = np.array([[1, 1, 0], [0, 0, 1]], dtype=bool), np.array([0, 2])
    return StoredEvidence("0", removed, orders, orders, torch.ones(2, 3, 2), torch.ones(2, 3, 2))


def _readers(run: Path) -> dict[str, Reader]:
    """The readers of single files."""

    def files(*names: str) -> list[bytes]:
        return [(run / name).read_bytes() for name in names]

    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4)).astype(np.uint8)
    labels = np.array([0, 1, 2], np.uint8)
    batch = {"data": np.random.default_rng(0).integers(0, 256, (2, 3072)).astype(np.uint8), "labels": [0, 1]}
    arrays = _array_file(images=pixels, labels=labels), _array_file(x=pixels / 7, y=np.array(["a", "b", "a"]))
    pictures = [
        _picture(kind, mode)
        for kind, mode in (
            *(("PNG", "L"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("JPEG", "RGB"), ("BMP", "RGB")),
            *(("GIF", "P"), ("WEBP", "RGB"), ("PPM", "RGB"), ("TIFF", "RGB")),
        )
    ]
    return {
        "manifest": Reader(
            "manifest.json",
            files("manifest.json"),
            mutations.changed_sealed,
            lambda path: manifest.read_manifest(path.parent),
        ),
        "json": Reader("file.json", files("summary.json"), mutations.changed_json, read_json_object),
        "config": Reader(
            "file.json", files("config.json"), mutations.changed_json, lambda path: Config.from_dict(read_json(path))
        ),
        "audit": Reader(
            "file.json",
            files("audit.json"),
            mutations.changed_json,
            lambda path: Audit.from_dict(read_json_object(path)),
        ),
        "safetensors": Reader(
            "file.safetensors", files("trajectory/00000.safetensors"), mutations.changed_safetensors, is_intact
        ),
        "synset": Reader(
            "file.safetensors",
            files("synset.safetensors", "synset-class.safetensors"),
            mutations.changed_safetensors,
            Synset.load,
        ),
        "evidence": Reader(
            "file.safetensors", files("evidence.safetensors"), mutations.changed_safetensors, Evidence.load
        ),
        "responses": Reader(
            "file.safetensors", files("responses.safetensors"), mutations.changed_safetensors, KeptResponses.load
        ),
        "partition": Reader(
            "file.safetensors",
            files("partition.safetensors"),
            mutations.changed_safetensors,
            partition_file.load_partition,
        ),
        "network": Reader(
            "file.safetensors",
            files("network.safetensors", "sum.safetensors"),
            mutations.changed_safetensors,
            networks.load,
        ),
        "outcome": Reader(
            "file.safetensors", files("outcome.safetensors"), mutations.changed_safetensors, Outcome.load
        ),
        "truth": Reader(
            "file.safetensors", files("truth.safetensors"), mutations.changed_safetensors, StoredTruth.load
        ),
        "stored-evidence": Reader(
            "file.safetensors", files("stored.safetensors"), mutations.changed_safetensors, StoredEvidence.load
        ),
        "idx": Reader("file-ubyte", [_idx(pixels)], mutations.changed_bytes, lambda path: idx.read_idx(path, 3)),
        "idx-gz": Reader(
            "file-ubyte.gz", [gzip.compress(_idx(pixels))], mutations.changed_gzip, lambda path: idx.read_idx(path, 3)
        ),
        "pickle": Reader(
            "file",
            [pickle.dumps(batch, protocol=protocol) for protocol in range(6)],
            mutations.changed_bytes,
            lambda path: cifar._samples("cifar10", "train", [path], "labels", "abcdefghij"),
        ),
        "csv": Reader("file.csv", [_table().to_csv(index=False).encode()], mutations.changed_bytes, _read_table),
        "csv-text": Reader(
            "file.csv", [_table().to_csv(index=False).encode()], mutations.changed_bytes, partial(_read_table, text="d")
        ),
        "parquet": Reader("file.parquet", [_table().to_parquet()], mutations.changed_bytes, _read_table),
        "npz": Reader("file.npz", arrays, mutations.changed_npz, lambda path: npz.read(str(path))),
        "image": Reader("file.png", pictures, mutations.changed_image, _one_image, growth=9 * fuzzing.GROWTH),
    }


NAMES = (
    *("manifest", "json", "config", "audit", "safetensors", "synset", "partition", "network", "outcome"),
    *("truth", "stored-evidence", "evidence", "responses", "idx", "idx-gz", "pickle", "npz", "image"),
    *("csv", "csv-text", "parquet"),
)


@pytest.fixture(scope="module")
def readers(tiny_run, tmp_path_factory) -> dict[str, Reader]:
    run = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("files") / "run"))
    parts = [networks.ConvNet((1, 4, 4), 2, width=2, depth=1) for _ in range(2)]
    networks.save(parts[0], run / "network.safetensors")
    networks.save(WeightedSum(parts, [2.0, -1.0]), run / "sum.safetensors")
    effects = Effects(*(np.ones(shape, np.float32) for shape in ((2, 2), (2, 2), (2,), (3, 2), (2,))))
    Outcome(effects, Cost(1.0, 2.0, 3)).save(run / "outcome.safetensors")
    _small_truth().save(run / "truth.safetensors")
    _small_evidence().save(run / "stored.safetensors")
    state = {name: torch.ones(2) for name in "ab"}
    seen = Steps({name: TensorSteps(0.1, count=1) for name in state}, scaled=True, optimizer="Adam")
    Trajectory(run / "trajectory").append(state, 0, 0.0, seen, {name: tensor.clone() for name, tensor in state.items()})
    return _readers(run)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_changed_files_are_read_or_refused(name, readers, place, attempt):
    fuzz(name, readers[name], place, attempt)


def _hangs() -> None:
    time.sleep(10 * fuzzing.SECONDS)


def _takes_much() -> None:
    taken = 6 * fuzzing.GROWTH  # far more than is allowed, since the system may reclaim other pages meanwhile
    bytearray(taken)[::4096] = bytes(taken // 4096)


def _asks_for_too_much() -> None:
    bytearray(2**40)


def _asks_torch_for_too_much() -> None:
    torch.empty(2**40)


@pytest.mark.parametrize("fault", [_hangs, _takes_much, _asks_for_too_much, _asks_torch_for_too_much])
def test_a_reader_cannot_pass_off_its_fault_as_a_damaged_file(fault, place, monkeypatch):
    monkeypatch.setattr(fuzzing, "SECONDS", 5)
    failed = []

    @contextmanager
    def attempt(kind: str, count: int = 1) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            failed.append(str(error))

    def read(path: Path) -> None:
        try:
            if path.read_bytes() == b"bad":
                fault()
        except Exception:
            raise ddm.InputError("it is damaged: restore it.") from None

    contents = iter([b"good", b"bad", b"good"])
    fuzz("faulty", Reader("file", [b""], lambda *_: next(contents), read, inputs=3), place, attempt)
    assert failed
    assert all(message.startswith("faulty, input") for message in failed)
