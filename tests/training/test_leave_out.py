"""``ddm.leave_out``: the batches of another loader in the same order, without some samples."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import ddm

COUNT, EPOCHS = 23, 3
GONE = np.array([0, 3, 4, 11, 17, 22])


class Augmented(Dataset):
    """Each sample is its position, and random numbers of two kinds that are drawn whenever it is read."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return int(index), torch.rand(()), random.random()


class AugmentedTogether(Augmented):
    """The same, but a batch is read in one call."""

    def __getitems__(self, indices):
        return list(zip(map(int, indices), torch.rand(len(indices)), (random.random() for _ in indices), strict=True))


class Halves:
    """A sampler that yields a tensor for each position: the even ones, then the odd ones in random order."""

    def __iter__(self):
        yield from torch.arange(0, COUNT, 2)
        yield from 1 + 2 * torch.randperm(COUNT // 2)

    def __len__(self):
        return COUNT


class Growing:
    """A batch sampler whose batches grow, with another order each epoch."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(COUNT)
        yield from (order[start : start + size].tolist() for start, size in ((0, 1), (1, 2), (3, 4), (7, 16)))

    def __len__(self):
        return 4


def collate_as_dict(items):
    """Collate to a dictionary, as for transformers."""
    positions, *noise = zip(*items, strict=True)
    return {"positions": torch.tensor(positions), "noise": torch.tensor(noise).T}


def seed_by_worker(extra, worker):
    torch.manual_seed(100 * extra + worker)


LOADERS = {
    "in order": lambda **more: DataLoader(Augmented(), 4, **more),
    "shuffled by the global seed": lambda **more: DataLoader(Augmented(), 4, shuffle=True, **more),
    "shuffled by a generator": lambda **more: DataLoader(
        Augmented(), 4, shuffle=True, generator=torch.Generator().manual_seed(7), **more
    ),
    "read together, last batch dropped": lambda **more: DataLoader(
        AugmentedTogether(), 4, shuffle=True, drop_last=True, **more
    ),
    "sampler": lambda **more: DataLoader(Augmented(), 5, sampler=Halves(), **more),
    "batch sampler": lambda **more: DataLoader(Augmented(), batch_sampler=Growing(), **more),
    "batch sampler with a generator": lambda **more: DataLoader(
        Augmented(),
        batch_sampler=BatchSampler(RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(3)), 3, False),
        generator=torch.Generator().manual_seed(4),
        **more,
    ),
    "own collation": lambda **more: DataLoader(Augmented(), 4, shuffle=True, collate_fn=collate_as_dict, **more),
    "batches of one": lambda **more: DataLoader(Augmented(), shuffle=True, **more),
}


def epochs_of(loader):
    """All batches of a few epochs from a fixed seed, and the state of the global generator after them."""
    torch.manual_seed(5)
    random.seed(5)
    return [list(loader) for _ in range(EPOCHS)], torch.get_rng_state()


def parts_of(batch):
    """The tensors of a batch, the positions first."""
    return list(batch.values()) if isinstance(batch, dict) else batch


def without(batch, gone):
    """The tensors of a batch without some samples."""
    kept = ~np.isin(parts_of(batch)[0].numpy(), gone)
    return [part[kept] for part in parts_of(batch)]


def assert_same_without(loader, remaining, gone):
    """Both loaders give the same batches but for some samples, and leave the global generator in the same state."""
    (whole, state), (found, state_found) = epochs_of(loader), epochs_of(remaining)
    for old, new in zip(whole, found, strict=True):
        assert any(np.isin(parts_of(batch)[0], gone).any() for batch in old)
        expected = [parts for parts in (without(batch, gone) for batch in old) if len(parts[0])]
        for parts, batch in zip(expected, new, strict=True):
            assert all(torch.equal(*pair) for pair in zip(parts, parts_of(batch), strict=True))
    assert torch.equal(state, state_found)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_every_batch_is_the_old_one_without_the_rows(kind, workers):
    more = {"num_workers": workers}
    if workers:
        more |= {"worker_init_fn": functools.partial(seed_by_worker, 3), "prefetch_factor": 3}
    loader, again = LOADERS[kind](**more), LOADERS[kind](**more)
    assert_same_without(loader, ddm.leave_out(again, GONE), GONE)


def test_persistent_workers_keep_their_random_numbers(recwarn):
    more = {"num_workers": 2, "persistent_workers": True, "pin_memory": True}
    loader, again = (LOADERS["shuffled by a generator"](**more) for _ in range(2))
    assert_same_without(loader, ddm.leave_out(again, GONE), GONE)


def test_rows_can_be_left_out_in_two_steps():
    loader, again = (LOADERS["shuffled by a generator"]() for _ in range(2))
    assert_same_without(loader, ddm.leave_out(ddm.leave_out(again, GONE[:2]), GONE[2:]), GONE)


@pytest.mark.parametrize(
    "rows", [GONE, GONE.tolist(), torch.as_tensor(GONE), np.isin(np.arange(COUNT), GONE), [*GONE, *GONE]]
)
def test_rows_are_positions_or_a_mask(rows):
    found = torch.cat([positions for positions, *_ in ddm.leave_out(LOADERS["in order"](), rows)])
    assert found.tolist() == sorted(set(range(COUNT)) - set(GONE.tolist()))


def test_leaving_out_nothing_changes_nothing():
    loader, again = (LOADERS["shuffled by the global seed"]() for _ in range(2))
    (whole, _), (found, _) = epochs_of(loader), epochs_of(ddm.leave_out(again, []))
    assert all(torch.equal(one[0], other[0]) for one, other in zip(whole[2], found[2], strict=True))


def test_an_empty_batch_is_skipped_but_counted_by_len():
    remaining = ddm.leave_out(LOADERS["in order"](), [4, 5, 6, 7])
    assert [positions.tolist() for positions, *_ in remaining][:2] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert (len(list(remaining)), len(remaining)) == (5, 6)


def test_the_new_loader_has_the_batch_size_and_the_sampler_of_the_old_one():
    loader = LOADERS["read together, last batch dropped"]()
    remaining = ddm.leave_out(loader, GONE)
    assert isinstance(remaining, DataLoader)
    assert (remaining.batch_size, remaining.drop_last, remaining.sampler) == (4, True, loader.sampler)
    assert len(remaining.dataset) == COUNT


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([COUNT], "from 0 to 22"),
        ([-1], "from 0 to 22"),
        ([0.5], "positions"),
        ([[1, 2]], "positions"),
        (np.ones(COUNT - 1, dtype=bool), "mask"),
        (np.ones(COUNT, dtype=bool), "keep at least one"),
        (range(COUNT), "keep at least one"),
    ],
)
def test_bad_rows_are_refused(refused, rows, words):
    with refused(words):
        ddm.leave_out(LOADERS["in order"](), rows)


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(COUNT)


class OwnIteration(DataLoader):
    def __iter__(self):
        return map(tuple, super().__iter__())


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(Endless(), 4), "IterableDataset"),
        (DataLoader(Augmented(), batch_size=None), "batch_size"),
        (OwnIteration(Augmented()), "plain DataLoader"),
        ([1, 2, 3], "not list"),
    ],
)
def test_loaders_that_cannot_be_followed_are_refused(refused, loader, words):
    with refused(words):
        ddm.leave_out(loader, GONE)


def test_a_loop_of_ones_own_retrains_as_train_does_without_the_rows(digits):
    """Given the batches of ``ddm.train``, both retrainings take the same steps."""
    recipe = ddm.Recipe(epochs=2, lr=0.1, batch_size=32)
    network = ddm.networks.ConvNet(digits.train.shape, len(digits.classes), width=4, depth=1)
    rows = np.arange(0, 300, 7)
    expected = ddm.train(network, digits.train, recipe, without=rows)

    model = ddm.networks.ConvNet(digits.train.shape, len(digits.classes), width=4, depth=1)
    model.load_state_dict(expected.trajectory[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        shuffle = torch.Generator().manual_seed(ddm.training.loop._epoch_seed(0, epoch))
        order = torch.randperm(len(digits.train), generator=shuffle).tolist()
        dataset = TensorDataset(*digits.train.batch())
        loader = ddm.leave_out(DataLoader(dataset, batch_sampler=BatchSampler(order, 32, False)), rows)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    x, _ = digits.test.batch()
    torch.testing.assert_close(model.eval()(x), expected.outputs(x))
