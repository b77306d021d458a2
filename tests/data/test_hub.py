import builtins
import io

import numpy as np
import pytest
import torch
from PIL import Image
from published_files import pixels, write_image
from refusals import refused

from ddm.data import load

hub = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub.disable_progress_bars()


def png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def table(count, shape=(6, 5), *, seed=0, image="image", label="label", labels=None, typed=True):
    columns = {
        "id": list(range(count)),
        image: [png(pixels(*shape, seed=seed + index)) for index in range(count)],
        label: labels or [index % 3 for index in range(count)],
    }
    if not typed:
        return hub.Dataset.from_dict(columns)
    kind = hub.ClassLabel(names=["ant", "bee", "cow"])
    return hub.Dataset.from_dict(
        columns, features=hub.Features({"id": hub.Value("int64"), image: hub.Image(), label: kind})
    )


def saved(folder, **splits):
    for split, rows in splits.items():
        path = folder / "set" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(path)
    return f"hf:{folder / 'set'}"


def test_a_parquet_dataset_with_all_splits_is_read(tmp_path):
    data = load(saved(tmp_path, train=table(12), validation=table(6, seed=100), test=table(3, seed=200)))
    assert (len(data.train), len(data.validation), len(data.test)) == (12, 6, 3)
    assert data.classes == ("ant", "bee", "cow")
    assert data.train.shape == (1, 6, 5)
    np.testing.assert_array_equal(data.test.raw[1, 0].numpy(), pixels(6, 5, seed=201))
    assert data.test.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("image", ["image", "img", "photo"])
@pytest.mark.parametrize("label", ["label", "labels", "fine_label"])
def test_columns_are_found_by_type_or_name(tmp_path, image, label):
    rows = table(12, image=image, label=label)
    data = load(saved(tmp_path, train=rows, test=rows), validation=0)
    assert data.train.labels.tolist() == [0, 1, 2] * 4


def test_untyped_columns_are_found_by_name(tmp_path):
    names = ["dog", "ant", "cat"] * 4
    data = load(saved(tmp_path, train=table(12, (6, 5, 3), labels=names, typed=False)), validation=0)
    assert data.classes == ("ant", "cat", "dog")
    assert data.train.shape == (3, 6, 5)


def test_a_lone_validation_split_is_the_test_split(tmp_path):
    data = load(saved(tmp_path, train=table(12), valid=table(3, seed=100)), validation=0)
    assert (len(data.train), len(data.test)) == (12, 3)


def test_a_folder_of_images_is_read(tmp_path):
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            for index in range(count):
                write_image(tmp_path / "set" / split / name / f"{index}.png", pixels(6, 5, 3, seed=index))
    data = load(f"hf:{tmp_path / 'set'}", validation=0, limit=8)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (8, 4)
    assert torch.bincount(data.train.labels).tolist() == [4, 4]


def test_images_of_different_sizes_need_a_size(tmp_path):
    rows = hub.concatenate_datasets([table(6), table(6, (7, 7))])
    name = saved(tmp_path, train=rows)
    with refused("image 6 of", "--size"):
        load(name)
    assert load(name, size=4).train.shape == (1, 4, 4)


def test_broken_images_are_named_by_their_row(tmp_path):
    rows = table(6).to_dict()
    rows["image"][4]["bytes"] = rows["image"][4]["bytes"][:20]
    with refused("image 4 of", "train"):
        load(saved(tmp_path, train=hub.Dataset.from_dict(rows)))


@pytest.mark.parametrize("labels", [[-1, 0, 1] * 2, [None, 1, 2] * 2, [[0, 1]] * 6, [0.5] * 6])
def test_wrong_labels_are_refused(tmp_path, labels):
    with refused("labels"):
        load(saved(tmp_path, train=table(6, labels=labels, typed=False)))


def test_missing_columns_and_splits_are_named(tmp_path):
    with refused("no label column", "id, image, kind"):
        load(saved(tmp_path / "a", train=table(6, label="kind")))
    with refused("no image column", "id, photo, label"):
        load(saved(tmp_path / "b", train=table(6, image="photo", typed=False)))
    with refused("no split 'train'", "test"):
        load(saved(tmp_path / "c", test=table(6)))
    with refused("'image'", "does not hold images"):
        load(saved(tmp_path / "d", train=hub.Dataset.from_dict({"image": [1.5, 2.5], "label": [0, 1]})))


def test_a_dataset_that_cannot_be_loaded_is_refused(tmp_path):
    with refused("hf:nobody/nothing", "check the name"):
        load("hf:nobody/nothing")
    (tmp_path / "empty").mkdir()
    with refused("empty", "cannot be loaded"):
        load(f"hf:{tmp_path / 'empty'}")


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def without_datasets(name, *args):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with refused("pip install 'distilled-datamodel[hub]'"):
        load("hf:mnist")


@pytest.mark.parametrize("row", [None, "secret.png", "set/circle.png"])
def test_a_table_cannot_make_ddm_read_files_outside_the_dataset(tmp_path, row):
    write_image(tmp_path / "secret.png", pixels(6, 5))
    rows = {"image": [png(pixels(6, 5, seed=index)) for index in range(9)], "label": [index % 3 for index in range(9)]}
    rows["image"][4] = row and {"bytes": None, "path": str(tmp_path / row)}
    path = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    (tmp_path / "set" / "circle.png").symlink_to(tmp_path / "set" / "circle.png")
    plain = hub.Features(
        {"image": {"bytes": hub.Value("binary"), "path": hub.Value("string")}, "label": hub.Value("int64")}
    )
    hub.Dataset.from_dict(rows, features=plain).to_parquet(path)
    with refused("row 4"):
        load(f"hf:{tmp_path / 'set'}")
