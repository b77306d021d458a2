"""A Lightning Trainer is recorded by a callback, and trains again without some samples."""

import cloudpickle
import numpy as np
import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn

import ddm
from ddm.networks.state import state_of

pytestmark = [
    pytest.mark.slow,  # importing Lightning takes seconds
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]


@pytest.fixture(scope="module")
def given():
    import lightning_module

    return lightning_module


def fitted(make, **options):
    """The callback, and the module after the training of ``make``."""
    from ddm.integrations.lightning import DatamodelCallback

    callback = DatamodelCallback(make, **options)
    module, trainer, data = make()
    trainer.callbacks.append(callback)
    if hasattr(data, "train_dataloader"):
        trainer.fit(module, datamodule=data)
    else:
        trainer.fit(module, data)
    return callback, module


def test_the_target_is_what_lightning_trained(given):
    callback, module = fitted(lambda: (given.Module(), given.trainer(gradient_clip_val=0.5), given.loader()))
    target = callback.target()
    assert same_tensors(target.trajectory[-1], state_of(module))
    assert target.trajectory.steps[-1] == 18
    rates = [0.1 / (1 - 0.9) * (1 - 0.9 * step / 18) for step in range(18)]
    assert 0.1 * sum(rates) < target.trajectory.cumulative_rates[-1] < 0.9 * sum(rates)  # clipped
    assert callback.samples().fingerprint_parts()["labels"] == given.digits().fingerprint_parts()["labels"]


@pytest.mark.parametrize("case", ["plain", "accumulated", "generator", "data module", "submodule"])
def test_a_retraining_without_removals_is_the_same_bit_for_bit(case, given):
    def make():
        kind = given.WithoutForward if case == "submodule" else given.Module
        options = {"accumulate_grad_batches": 2} if case == "accumulated" else {}
        shuffle = {"generator": torch.Generator().manual_seed(4)} if case == "generator" else {}
        data = given.Digits() if case == "data module" else given.loader(**shuffle)
        return kind(), given.trainer(**options), data

    callback, module = fitted(make, network="net" if case == "submodule" else "")
    final = state_of(module.net)
    state = torch.get_rng_state()
    again = callback.retrain([], 0)
    other = callback.retrain([], 1)
    assert torch.equal(torch.get_rng_state(), state)
    again, other = (state_of(one if case == "submodule" else one.net) for one in (again, other))
    assert same_tensors(again, final)
    assert not same_tensors(other, final)


def test_a_retraining_is_the_targets_training_minus_the_rows(given):
    def make():
        return given.Module(dropout=0.0), given.trainer(), given.loader(size=4, shuffle=False)

    callback, _ = fitted(make)
    rows = np.array([8, 9, 10, 11, 50, 118])  # a whole batch, and more
    again = callback.retrain(rows, 0)
    model = given.Module(dropout=0.0)
    ddm.networks.state.load_state(model, callback.target().trajectory[0])
    optimizer = model.configure_optimizers()
    samples = given.digits()
    for step in range(3 * 30):
        kept = [row for row in range(step % 30 * 4, step % 30 * 4 + 4) if row not in rows]
        optimizer["optimizer"].zero_grad()
        if kept:
            x, y = samples.batch(kept)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer["optimizer"].step()
        optimizer["lr_scheduler"]["scheduler"].step()
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(state_of(again)[name], tensor, rtol=1e-4, atol=1e-6)


def test_another_process_can_train_again(given):
    callback, module = fitted(lambda: (given.Module(), given.trainer(), given.loader()))
    retrain = cloudpickle.loads(cloudpickle.dumps(callback.retrain))
    assert same_tensors(state_of(retrain([], 0)), state_of(module))


def test_a_datamodel_of_a_lightning_module_is_audited_by_lightning(given, tmp_path):
    callback, module = fitted(lambda: (given.Module(), given.trainer(), given.loader()))
    dm = ddm.DistilledDatamodel.fit(callback.target(), callback.samples(), partition="class", engine="serial")
    audit = dm.audit(given.digits(40), retrain=2, unions=2, by=callback.retrain, workers=1)
    assert len(audit.groups) == 2
    x, _ = given.digits(3).batch()
    assert not torch.equal(dm.counterfactual(remove=[0])(x), module.eval()(x))


def test_the_older_package_name_works(given):
    """``pytorch_lightning`` is the same library under another name."""
    import pytorch_lightning

    class Old(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = given.Module().net

        forward, training_step = given.Module.forward, given.Module.training_step
        configure_optimizers = given.Module.configure_optimizers

    def make():
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        return Old(), pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", **options), given.loader()

    callback, module = fitted(make)
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(module))


def test_wrong_uses_are_refused_in_one_sentence(given, refused):
    from ddm.integrations.lightning import DatamodelCallback

    with refused("no forward", "network='net'"):
        fitted(lambda: (given.WithoutForward(), given.trainer(), given.loader()))
    with refused("no submodule 'head'"):
        fitted(lambda: (given.Module(), given.trainer(), given.loader()), network="head")
    with refused("automatic optimization", "ddm.record"):
        fitted(lambda: (given.ByHand(), given.trainer(), given.loader()))
    with refused("nothing was recorded", "trainer.fit"):
        DatamodelCallback().target()
    callback, _ = fitted(lambda: (given.Module(), given.trainer(), given.loader()))
    callback._make = None
    with refused("cannot be copied", "DatamodelCallback(make)"):
        callback.retrain  # noqa: B018
