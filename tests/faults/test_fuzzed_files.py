"""Every reader, given files that are nearly valid, reads them or refuses them with ``InputError``: nothing else.

A failure names the reader and the number of its input; inputs that failed once are kept in ``seeds/`` and tried first.
"""

import gzip
import io
import pickle
import resource
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np
import pytest
import torch
from PIL import Image

import ddm
from ddm import networks, store
from ddm.audit import Audit
from ddm.bench.outcome import Cost, Outcome
from ddm.datasets import cifar, idx, images, npz
from ddm.effects import Effects
from ddm.files import is_whole, read_json, read_table
from ddm.run import Config
from ddm.synset import Synset
from ddm.training import train
from ddm.trajectory import Trajectory
from ddm.verification import verify

SEEDS = Path(__file__).parent / "seeds"
FILES, SLOW, FOLDERS = 100_000, 20_000, 500
"""Inputs for each reader of a file, for the one that builds networks, and for each of whole folders."""
SECONDS = 60
"""In which a thousand inputs, or a single one of a folder, must be done: a reader that hangs is stopped."""
GROWTH = 300 * 2**20
"""Bytes that the process may grow by while a reader is fuzzed; images may have many pixels in few bytes."""


@dataclass(frozen=True)
class Reader:
    """A reader: valid files, how they are changed, and what reads them."""

    suffix: str
    valid: Sequence[bytes]
    change: Callable[[bytes, Random], bytes]
    read: Callable[[Path], Any]
    inputs: int = FILES
    growth: int = GROWTH


def fuzz(name: str, reader: Reader, place: Path, attempt: Any) -> None:
    """Give a reader its seeds, then inputs by the thousand."""
    random = Random(zlib.crc32(name.encode()))
    kept = [path.read_bytes() for path in sorted((SEEDS / name).glob("*"))]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    failures = 0
    for number in range(len(kept) + reader.inputs):
        if number % 1000 == 0:
            signal.alarm(SECONDS)
        content = kept[number] if number < len(kept) else reader.change(random.choice(reader.valid), random)
        try:
            _give(reader, content, place)
        except (Exception, RecursionError) as error:
            failures += 1
            with attempt("inputs"):
                raise AssertionError(f"{name}, input {number}: {type(error).__name__}: {error}") from error
    signal.alarm(0)
    with attempt("inputs", len(kept) + reader.inputs - failures):
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - grown
        assert grown < reader.growth, f"{name} took {grown / 2**20:.0f} MiB of memory"


def _give(reader: Reader, content: bytes, place: Path) -> None:
    place.unlink(missing_ok=True)  # not written over: what was read before may still be mapped
    place.write_bytes(content)
    try:
        reader.read(place)
    except ddm.InputError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error


@pytest.fixture(autouse=True)
def stopped():
    """A reader that hangs is interrupted, and takes no more memory than a small machine has."""

    def hang(*_: object) -> None:
        raise TimeoutError("it hangs")

    before, limits = signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + 4 * 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


# --- valid files, as small as they come ---


@pytest.fixture(scope="module")
def tiny() -> ddm.Data:
    return ddm.datasets.load("digits", limit=24)


@pytest.fixture(scope="module")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run of a network of a hundred parameters."""
    run = tmp_path_factory.mktemp("run")
    config = Config(
        limit=24,
        options={"width": 2, "depth": 1, "pooling": "max"},
        recipe=ddm.Recipe(epochs=1, batch_size=24, momentum=0.5),
        clusters=1,
        settings=ddm.Settings(curvature=8, bank=2),
    )
    ddm.run.fit(config, run, "serial")
    figures = {
        name: {"value": 0.5, "low": 0.1, "high": 0.9, "retrain": 0.8, "ceiling": None} for name in ddm.fidelity.FIGURES
    }
    store.save_audit(Audit({"same run": figures}, 1.0, ("0", "1"), 2, 2, (3, 4), 6, 0.1), run)
    return run


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
    with images._opened([path], 0, "train") as (image, name):
        form = images.Form(1 if images._is_grey(image) else 3, image.height, image.width, resize=False)
        return images._decode(image, form, name)


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
        "json": Reader(".json", files("summary.json"), mutations.changed_json, read_table),
        "config": Reader(
            ".json", files("config.json"), mutations.changed_json, lambda path: Config.from_dict(read_json(path))
        ),
        "audit": Reader(
            ".json", files("audit.json"), mutations.changed_json, lambda path: Audit.from_dict(read_table(path))
        ),
        "safetensors": Reader(
            ".safetensors", files("trajectory/reach.safetensors"), mutations.changed_safetensors, is_whole
        ),
        "synset": Reader(
            ".safetensors",
            files("synset.safetensors", "synset-class.safetensors"),
            mutations.changed_safetensors,
            Synset.load,
        ),
        "partition": Reader(
            ".safetensors", files("partition.safetensors"), mutations.changed_safetensors, store.load_partition
        ),
        "network": Reader(
            ".safetensors", files("network.safetensors"), mutations.changed_safetensors, networks.load, SLOW
        ),
        "outcome": Reader(".safetensors", files("outcome.safetensors"), mutations.changed_safetensors, Outcome.load),
        "idx": Reader("-ubyte", [_idx(pixels)], mutations.changed_bytes, lambda path: idx.read_idx(path, 3)),
        "idx-gz": Reader(
            "-ubyte.gz", [gzip.compress(_idx(pixels))], mutations.changed_gzip, lambda path: idx.read_idx(path, 3)
        ),
        "pickle": Reader(
            "",
            [pickle.dumps(batch, protocol=protocol) for protocol in range(6)],
            mutations.changed_bytes,
            lambda path: cifar._samples("cifar10", "train", [path], "labels", "abcdefghij"),
        ),
        "npz": Reader(".npz", arrays, mutations.changed_npz, lambda path: npz.read(str(path))),
        "image": Reader(".png", pictures, mutations.changed_image, _one_image, growth=3 * GROWTH),
    }


NAMES = (
    *("json", "config", "audit", "safetensors", "synset", "partition", "network", "outcome"),
    *("idx", "idx-gz", "pickle", "npz", "image"),
)


@pytest.fixture(scope="module")
def readers(tiny_run, tmp_path_factory) -> dict[str, Reader]:
    run = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("files") / "run"))
    networks.save(networks.ConvNet((1, 4, 4), 2, width=2, depth=1), run / "network.safetensors")
    effects = Effects(*(np.ones(shape, np.float32) for shape in ((2, 2), (2, 2), (2,), (3, 2), (2,))))
    Outcome(effects, Cost(1.0, 2.0, 3)).save(run / "outcome.safetensors")
    state = {name: torch.ones(2) for name in "ab"}
    Trajectory(run / "trajectory").append(state, 0, 0.0, reach=state)
    return _readers(run)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ddm-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_changed_files_are_read_or_refused(name, readers, place, attempt):
    fuzz(name, readers[name], place / f"file{readers[name].suffix}", attempt)


# --- folders: a file of a whole run is changed, and the run is opened ---


@pytest.mark.parametrize("how", ["opened", "verified", "gone on with"])
def test_runs_with_a_changed_file_are_read_or_refused(how, tiny, tiny_run, place, attempt):
    run = Path(shutil.copytree(tiny_run, place / "run"))
    network = ddm.networks.from_spec(read_json(run / "manifest.json")["spec"])
    recipe = ddm.Recipe(epochs=1, batch_size=24, momentum=0.5)
    uses: dict[str, Callable[[], Any]] = {
        "opened": lambda: ddm.load(run).outputs(tiny.test.batch()[0]),
        "verified": lambda: verify(run, tiny.train),
        "gone on with": lambda: train(network, tiny.train, recipe, directory=run / "trajectory"),
    }
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    if how == "gone on with":
        names = [name for name in names if name.parent.name == "trajectory"]
    random, failures = Random(zlib.crc32(how.encode())), 0
    for number in range(FOLDERS):
        path = run / random.choice(names)
        content = path.read_bytes()
        change = mutations.changed_json if path.suffix == ".json" else mutations.changed_safetensors
        signal.alarm(SECONDS)
        try:
            _give(Reader(path.suffix, (), change, lambda _: uses[how]()), change(content, random), path)
        except Exception as error:
            failures += 1
            with attempt("inputs"):
                raise AssertionError(f"{path.name}, input {number}: {type(error).__name__}: {error}") from error
        finally:
            for name in names:  # going on with a training deletes checkpoints
                if name == path.relative_to(run) or not (run / name).exists():
                    shutil.copy(tiny_run / name, run / name)
    signal.alarm(0)
    with attempt("inputs", FOLDERS - failures):
        pass
