"""Small files in the publishers' formats, for the readers' tests."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


# --- idx ---


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, train: int = 40, test: int = 20, *, zipped: bool = True, mark: str = "-") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        for kind, values in (
            (f"images{mark}idx3", pixels(count, 28, 28)),
            (f"labels{mark}idx1", (np.arange(count) % 10).astype(np.uint8)),
        ):
            content = idx(values)
            name = f"{prefix}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


# --- CIFAR ---


class Python2Pickler:
    """Protocol 2 as Python 2's cPickle wrote it: byte strings, numpy's old names, a number for each value."""

    def __init__(self) -> None:
        self.memo = 0

    def dumps(self, value: Any) -> bytes:
        return b"\x80\x02" + self._value(value) + b"."

    def _put(self) -> bytes:
        self.memo += 1
        return b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)

    def _value(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return self._string(value) + self._put()
        if isinstance(value, str):
            return self._value(value.encode())
        if isinstance(value, int):
            return self._number(value)
        if isinstance(value, list):
            return b"]" + self._put() + b"(" + b"".join(map(self._value, value)) + b"e"
        if isinstance(value, dict):
            items = (self._value(one) for pair in value.items() for one in pair)
            return b"}" + self._put() + b"(" + b"".join(items) + b"u"
        return self._array(value)

    def _string(self, value: bytes) -> bytes:
        if len(value) < 256:
            return b"U" + bytes([len(value)]) + value
        return b"T" + struct.pack("<I", len(value)) + value

    def _number(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if 0 <= value < 65536:
            return b"M" + struct.pack("<H", value)
        return b"J" + struct.pack("<i", value)

    def _array(self, value: np.ndarray) -> bytes:
        columns_first = not value.flags.c_contiguous
        rows, columns = (self._number(side) for side in value.shape)
        return b"".join(
            [
                b"cnumpy.core.multiarray\n_reconstruct\n" + self._put(),
                b"cnumpy\nndarray\n" + self._put() + b"K\x00\x85" + self._put() + b"U\x01b\x87" + self._put(),
                b"R" + self._put() + b"(K\x01" + rows + columns + b"\x86cnumpy\ndtype\n" + self._put(),
                b"U\x02" + value.dtype.str[1:].encode() + b"K\x00K\x01\x87R" + self._put(),
                b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
                b"\x88" if columns_first else b"\x89",
                self._string(value.tobytes("F" if columns_first else "C")) + b"tb",
            ]
        )


def python2_pickle(value: Any) -> bytes:
    return Python2Pickler().dumps(value)


def cifar_batch(count: int, classes: int, *, fine: bool = False, seed: int = 0) -> dict[str, Any]:
    labels = [index % classes for index in range(count)]
    batch = {
        "batch_label": "training batch 1 of 5",
        "data": pixels(count, 3072, seed=seed),
        "filenames": [f"image_s_{index:06d}.png" for index in range(count)],
    }
    return batch | ({"fine_labels": labels, "coarse_labels": labels} if fine else {"labels": labels})


def write_cifar10(folder: Path, batches: tuple[int, ...] = (1,), count: int = 30, dumps: Any = python2_pickle) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        (folder / f"data_batch_{batch}").write_bytes(dumps(cifar_batch(count, 10, seed=batch)))
    (folder / "test_batch").write_bytes(dumps(cifar_batch(10, 10, seed=9)))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    meta = {"num_cases_per_batch": 10000, "label_names": names, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(dumps(meta))


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train").write_bytes(python2_pickle(cifar_batch(300, 100, fine=True)))
    (folder / "test").write_bytes(python2_pickle(cifar_batch(100, 100, fine=True, seed=1)))
    names = {"fine_label_names": [f"fine {i}" for i in range(100)], "coarse_label_names": ["coarse"] * 20}
    (folder / "meta").write_bytes(python2_pickle(names))


class Run:
    """An object whose pickle makes the unpickler call something."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


def python3_pickle(value: Any, protocol: int) -> bytes:
    return pickle.dumps(value, protocol=protocol)


# --- images ---


def write_image(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def write_tiny_imagenet(folder: Path, per_class: int = 5, test_per_class: int = 2) -> None:
    wnids = ["n02124075", "n01443537", "n04067472"]
    names = ["Egyptian cat", "goldfish, Carassius auratus", "reel"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    words = [f"{wnid}\t{name}" for wnid, name in zip(wnids, names, strict=True)]
    (folder / "words.txt").write_text("n00001740\tentity\n" + "\n".join(words) + "\n")
    annotations = []
    for label, wnid in enumerate(wnids):
        for index in range(per_class):
            image = pixels(64, 64, 3, seed=100 * label + index)
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", image)
        for index in range(test_per_class):
            file = f"val_{len(annotations)}.JPEG"
            annotations.append(f"{file}\t{wnid}\t0\t32\t44\t62\n")
            write_image(folder / "val" / "images" / file, pixels(64, 64, 3, seed=50 + label + 10 * index))
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
