"""LoRA adapters through ``peft``: only what is trained is displaced."""

import numpy as np
import pytest
import torch
from docstrings import Docstrings
from tensor_dicts import same_tensors

import ddm
from ddm.networks.state import state_of

pytestmark = pytest.mark.slow  # importing transformers takes seconds


@pytest.fixture(scope="module")
def hf():
    import trainers

    return trainers


@pytest.fixture(scope="module")
def adapted(hf, tmp_path_factory):
    """The callback and the Trainer of a BERT with LoRA."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], lora_dropout=0.1)
    model = peft.get_peft_model(hf.bert(width=32, layers=2), config)
    return hf.trained(tmp_path_factory.mktemp("lora"), Docstrings(), model, learning_rate=1e-2)


def test_only_adapters_and_the_head_are_part_of_the_target(adapted):
    callback, trainer = adapted
    target = callback.target()
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert set(target.flat.shapes) == trained
    assert all("lora_" in name or "classifier" in name for name in trained)
    assert target.flat.size < sum(parameter.numel() for parameter in trainer.model.parameters()) / 5


def test_a_datamodel_of_adapters_attributes_and_makes_models(adapted):
    callback, trainer = adapted
    samples = callback.samples()
    dm = ddm.DistilledDatamodel.fit(callback.target(), samples, partition="class", engine="serial")
    assert np.isfinite(dm.attribute(samples[:20], "loss").matrix).all()
    x, _ = samples.batch([0, 1])
    without = dm.counterfactual(remove=[0])
    assert not torch.equal(without(**x.tree).logits, trainer.model.eval()(**x.tree).logits)
    before, after = state_of(trainer.model), state_of(without)
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed <= set(callback.target().flat.shapes)


def test_adapters_train_again_bit_for_bit(adapted):
    callback, trainer = adapted
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))
