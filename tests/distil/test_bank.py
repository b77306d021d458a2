"""The bank of a synset has the marginals of the training inputs, and none of its rows."""

import torch

import ddm
from ddm.data.inputs import Inputs, equal
from ddm.distil.response.bank import draw_bank

PAD, START, END = 0, 1, 2


def texts(count=300, length=12):
    """Ids 10 … 99 between a start and an end id, padded to ``length``, with their mask."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 100, (count, length), generator=generator)
    lengths = torch.randint(4, length + 1, (count,), generator=generator)
    places = torch.arange(length)
    ids[:, 0] = START
    ids[torch.arange(count), lengths - 1] = END
    mask = (places < lengths[:, None]).long()
    labels = torch.randint(0, 2, (count,), generator=generator)
    return ddm.Samples.from_batch({"input_ids": ids * mask, "attention_mask": mask}, labels)


def test_drawn_texts_keep_their_form_but_are_nobodys():
    samples = texts()
    bank = draw_bank(samples, 200, seed=0)
    ids, mask = bank.tree["input_ids"], bank.tree["attention_mask"].bool()
    assert (ids[:, 0] == START).all()
    ends = mask.sum(1) - 1
    assert (ids[torch.arange(200), ends] == END).all()
    assert (ids[~mask] == PAD).all()
    inner = mask.clone()
    inner[:, 0], inner[torch.arange(200), ends] = False, False
    assert ((ids[inner] >= 10) & (ids[inner] < 100)).all()
    known = {tuple(row) for row in samples.batch()[0].tree["input_ids"].tolist()}
    assert not known & {tuple(row) for row in ids.tolist()}


def test_ids_come_from_their_own_position():
    """Columns of category numbers have vocabularies of their own, so an id must not move to another column."""
    columns = torch.stack([torch.arange(60) % 3, 10 + torch.arange(60) % 5], 1)
    bank = draw_bank(ddm.Samples.from_batch(columns, torch.arange(60) % 2), 100, seed=0).tree
    assert set(bank[:, 0].tolist()) == {0, 1, 2}
    assert set(bank[:, 1].tolist()) == {10, 11, 12, 13, 14}


def test_columns_of_a_table_are_shuffled_each_for_itself():
    values = torch.rand(500, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10, 100, 1000])
    values[:, 1] = 10 * values[:, 0]  # two columns that always agree in training
    samples = ddm.Samples.from_arrays(values, torch.arange(500) % 2)
    bank = draw_bank(samples, 300, seed=0)
    for column in range(4):
        assert set(bank[:, column].tolist()) <= set(values[:, column].tolist())
    assert torch.corrcoef(bank[:, :2].T)[0, 1].abs() < 0.2
    assert not {tuple(row) for row in values.tolist()} & {tuple(row) for row in bank.tolist()}


def test_pictures_become_noise(digits):
    bank = draw_bank(digits.train, 3, seed=0)
    assert bank.shape == (3, *digits.train.shape)
    assert torch.equal(bank, torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_the_same_seed_draws_the_same_bank():
    assert equal(draw_bank(texts(), 20, seed=4), draw_bank(texts(), 20, seed=4))
    assert not equal(draw_bank(texts(), 20, seed=4), draw_bank(texts(), 20, seed=5))


def test_a_synset_of_texts_can_be_stored(tmp_path):
    bank = draw_bank(texts(), 6, seed=0)
    images = Inputs({name: leaf[None] for name, leaf in bank.tree.items()})
    synset = ddm.Synset(("a", "b"), images, torch.rand(2, 6, 3), torch.ones(2), torch.ones(2), shared=True)
    synset.save(tmp_path / "synset.safetensors")
    again = ddm.Synset.load(tmp_path / "synset.safetensors")
    assert equal(again.images, images)
    assert again.count == 6
    assert torch.equal(again.targets, synset.targets)
