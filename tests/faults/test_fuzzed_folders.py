"""Folders with one file changed, runs and half-finished trainings, are used or refused with ``InputError``."""

import contextlib
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import fuzzing
import mutations
import pytest
import torch
from torch.nn import functional as F

import ddm
from ddm.compute.files import add_checksum, hash_file, read_json, write_json
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.runs.verify import verify
from ddm.training.loop import train

FOLDERS = fuzzing.some(1000, 100)
"""Inputs for each use of a folder."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stopped")]


def fuzz_folder(
    name: str, template: Path, files: Sequence[str], use: Callable[[Path], Any], place: Path, attempt: Any
) -> None:
    """Change one of the files in copies of a folder, and use them."""
    random = Random(zlib.crc32(name.encode()))

    def give(number: int) -> None:
        shutil.rmtree(place / "run", ignore_errors=True)
        run = Path(shutil.copytree(template, place / "run"))
        path = run / random.choice(files)
        change = mutations.changed_sealed if path.suffix == ".json" else mutations.changed_safetensors
        path.write_bytes(change(path.read_bytes(), random))
        if random.random() < 0.5:
            _seal(run, path)
        use(run)

    fuzzing.give_all(name, give, FOLDERS, attempt)


def _seal(run: Path, path: Path) -> None:
    """Make the checksums of a changed file right again, in it and in the manifest, where it can still be read."""
    with contextlib.suppress(ddm.InputError, TypeError, ValueError, RuntimeError):
        if path.suffix == ".safetensors":
            tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
            write_tensors(path, tensors, read_metadata(path))
        if path.name != "manifest.json" and (run / "manifest.json").exists():
            facts = read_json(run / "manifest.json")
            facts["files"][path.relative_to(run).as_posix()] = hash_file(path)
            write_json(run / "manifest.json", add_checksum({key: facts[key] for key in facts if key != "checksum"}))


@pytest.mark.parametrize("file", ["manifest.json", "any file"])
@pytest.mark.parametrize("how", ["opened", "verified"])
def test_runs_with_a_changed_file_are_read_or_refused(how, file, tiny, tiny_run, place, attempt):
    uses: dict[str, Callable[[Path], Any]] = {
        "opened": lambda run: ddm.load(run).outputs(tiny.test.batch()[0]),
        "verified": lambda run: verify(run, tiny.train),
    }
    names = [str(path.relative_to(tiny_run)) for path in sorted(tiny_run.rglob("*")) if path.is_file()]
    fuzz_folder(f"{file}, {how}", tiny_run, names if file == "any file" else [file], uses[how], place, attempt)


@pytest.mark.parametrize("recipe", [{"momentum": 0.5}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "adam"])
def test_trainings_with_a_changed_file_are_gone_on_with_or_refused(recipe, tiny, place, tmp_path, attempt):
    network = ddm.networks.ConvNet(tiny.train.shape, len(tiny.classes), width=2, depth=1)
    recipe = ddm.Recipe(epochs=2, batch_size=24, **recipe)
    losses = 0

    def loss(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal losses
        losses += 1
        if losses == 2:
            raise KeyboardInterrupt
        return F.cross_entropy(*arguments)

    with pytest.raises(KeyboardInterrupt):
        train(network, tiny.train, recipe, loss=loss, directory=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    fuzz_folder(
        f"training by {recipe.optimizer}",
        tmp_path,
        names,
        lambda run: train(network, tiny.train, recipe, loss=loss, directory=run),
        place,
        attempt,
    )
    assert losses > FOLDERS / 5  # else steps were hardly ever made from what the files hold
