"""A dataset larger than memory, on disk: train, fit and ask, and measure the peak memory.

    python bench/bench_larger_than_memory.py --gigabytes 2.5            # a real run on made images
    python bench/bench_larger_than_memory.py --gigabytes 20 --plan      # the plan of a fit, on images made when read

The images are 3 × 224 × 224 bytes, with a pattern for each of ten classes and noise. Their float32 inputs, which the
network takes, are four times as large; ``--gigabytes`` counts these in the plan, and the bytes on disk in the real run.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ddm
from ddm.compute.memory import peak_bytes, resident_bytes

SHAPE, CLASSES = (3, 224, 224), 10


def pattern(label):
    """The pattern of a class, bytes ``(3, 224, 224)``."""
    return np.random.default_rng(label).integers(0, 120, SHAPE, dtype=np.uint8)


def write_images(path, count):
    """Write images to a file, one after another."""
    rng, patterns = np.random.default_rng(0), [pattern(label) for label in range(CLASSES)]
    noise = [rng.integers(0, 120, SHAPE, dtype=np.uint8) for _ in range(64)]
    with path.open("wb") as file:
        for row in range(count):
            shift = int(rng.integers(SHAPE[1]))
            file.write((patterns[row % CLASSES] + np.roll(noise[int(rng.integers(64))], shift, 1)).tobytes())


class Stored(Dataset):
    """Images in a file, mapped one at a time, so that the peak memory does not count the file's pages."""

    def __init__(self, path, count):
        self.path, self.count = str(path), count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        image = np.memmap(self.path, np.uint8, "r", offset=row * int(np.prod(SHAPE)), shape=SHAPE)
        return torch.from_numpy(image.copy()).float() / 128 - 1, row % CLASSES


class Made(Dataset):
    """As many images, made when they are read."""

    def __init__(self, count):
        self.count = count
        self.noise = np.random.default_rng(0).integers(0, 120, SHAPE, dtype=np.uint8)
        self.patterns = [pattern(label) for label in range(CLASSES)]

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        image = self.patterns[row % CLASSES] + np.roll(self.noise, row, 1)
        return torch.from_numpy(image).float() / 128 - 1, row % CLASSES


def network():
    """A small convolutional network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(144, CLASSES),
    )


class Clock:
    """Prints the seconds and the peak memory of each stage."""

    def __init__(self):
        self.facts, self.last = {}, time.perf_counter()

    def lap(self, stage):
        now = time.perf_counter()
        self.facts[stage] = {"seconds": round(now - self.last, 1), "peak_gib": round(peak_bytes() / 2**30, 2)}
        print(json.dumps({stage: self.facts[stage]}), flush=True)
        self.last = time.perf_counter()


def run(folder, gigabytes, workers, engine):
    """Train, fit and ask on images on disk."""
    clock, path = Clock(), Path(folder) / "images.bytes"
    count = int(gigabytes * 1e9 / np.prod(SHAPE))
    write_images(path, count)
    clock.lap("writing")
    print(f"{count:,} images, {path.stat().st_size / 1e9:.2f} GB on disk, {resident_bytes() / 2**30:.2f} GiB in memory")
    samples = ddm.Samples.from_dataset(DataLoader(Stored(path, count), num_workers=workers))
    clock.lap("labels and fingerprint")
    target = ddm.train(network(), samples, ddm.Recipe(epochs=1, lr=0.02, batch_size=64, momentum=0.9))
    clock.lap("training")
    planned = ddm.plan(target, samples, 5, engine=engine)
    clock.lap("planning")
    print(planned)
    dm = ddm.DistilledDatamodel.fit(target, samples, 5, engine=engine)
    clock.lap("fit")
    print(dm, target.accuracy(samples.subsample(500)))
    print(dm.attribute(samples.subsample(200), "loss").top(3))
    print(dm.trace(samples[7]))
    clock.lap("questions")
    return clock.facts | {"planned": planned.to_dict()}


def plan(gigabytes):
    """The plan of a fit to a target that was trained on a part of the data, for inputs of this many gigabytes."""
    count = int(gigabytes * 1e9 / (4 * np.prod(SHAPE)))
    part, clock = ddm.Samples.from_dataset(Made(640)), Clock()
    target = ddm.train(network(), part, ddm.Recipe(epochs=2, lr=0.02, batch_size=64, momentum=0.9))
    recorded = ddm.Target(target.network, target.trajectory, target.task)  # a plan needs no fingerprint of the data
    clock.lap("training on a part")
    samples = ddm.Samples.from_dataset(Made(count))
    clock.lap("labels and fingerprint")
    planned = ddm.plan(recorded, samples, 5, engine="serial")
    clock.lap("planning")
    print(f"{count:,} images, {count * samples.bytes_each / 1e9:.1f} GB of inputs. {planned}")
    return clock.facts | {"planned": planned.to_dict()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.5)
    parser.add_argument("--plan", action="store_true", help="only plan")
    parser.add_argument("--workers", type=int, default=0, help="processes that read")
    parser.add_argument("--engine", default="serial")
    parser.add_argument("--folder", help="where the images are written (default: a temporary folder)")
    given = parser.parse_args()
    if given.plan:
        print(json.dumps(plan(given.gigabytes)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(json.dumps(run(folder, given.gigabytes, given.workers, given.engine)))


if __name__ == "__main__":
    main()
