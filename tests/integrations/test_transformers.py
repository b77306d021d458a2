"""The Hugging Face Trainer is recorded by a callback, and trains again without some samples."""

import copy
import random

import cloudpickle
import numpy as np
import pytest
import torch
from docstrings import Docstrings, collate
from tensor_dicts import same_tensors
from torch import nn

import ddm
from ddm.data.inputs import wrap
from ddm.networks.state import load_state, state_of

SGD = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1, "max_grad_norm": 0}


@pytest.fixture(scope="module")
def texts():
    return Docstrings()


@pytest.fixture(scope="module")
def hf():
    import trainers

    return trainers


def rate_of(target, name="classifier.weight"):
    """Σ of the learning rates that were recorded for one tensor."""
    return sum(steps.tensors[name].rate for steps in target.trajectory.seen[1:])


# --- what is recorded ---


def test_a_trainer_is_recorded_and_trains_again_bit_for_bit(hf, texts, tmp_path):
    callback, trainer = hf.trained(tmp_path, texts, hf.bert(dropout=0.2), weight_decay=0.1, warmup_steps=4)
    target = callback.target()
    assert same_tensors(target.trajectory[-1], state_of(trainer.model))
    assert target.trajectory.steps[-1] == 12
    rates = [1e-3 * min(step / 4, (12 - step) / 8) for step in range(12)]
    assert 0.5 * sum(rates) < rate_of(target) < 1.001 * sum(rates)  # clipped at times
    last = target.trajectory.seen[-1]
    assert last.optimizer == "AdamW"
    assert last.tensors["classifier.weight"].decoupled > 0
    assert last.tensors["classifier.bias"].decoupled == 0
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


def test_gradients_of_many_samples_are_computed_at_once(hf, texts):
    """Although the network looks into its attention mask, which ``vmap`` forbids."""
    target = ddm.Target(hf.bert(), two_checkpoints(hf.bert()))
    batch = collate([texts[row] for row in (0, 50, 100)])
    batch.pop("labels")
    x = wrap(batch)

    def of_one(inputs):
        return torch.func.jacrev(lambda theta: target.flat(theta, target.fixed, inputs[None])[0])(target.theta)

    together = torch.func.vmap(of_one)(x)
    for row, gradient in enumerate(together):
        torch.testing.assert_close(gradient, of_one(x[row]), rtol=1e-4, atol=1e-6)


def two_checkpoints(network):
    """The trajectory of a network that did not train."""
    trajectory = ddm.Trajectory()
    for step in range(2):
        trajectory.append(state_of(network), step)
    return trajectory


@pytest.mark.slow
def test_samples_are_those_of_the_trainer_without_unused_columns(hf, texts, tmp_path):
    callback, _ = hf.trained(tmp_path, texts, num_train_epochs=1)
    samples = callback.samples()
    x, y = samples.batch()
    assert x.tree.keys() == {"input_ids", "attention_mask"}
    assert torch.equal(y, torch.tensor([label for _, label in texts.rows]))
    target = callback.target()
    torch.testing.assert_close(target.outputs(x), target.network(**x.tree).logits.detach())


@pytest.mark.slow
def test_samples_of_a_hugging_face_dataset_have_the_columns_of_the_model(hf, texts, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{**one, "input_ids": (one["input_ids"] + [0] * 16)[:16]} for one in texts]
    dataset = datasets.Dataset.from_list(rows)
    callback, trainer = hf.trained(tmp_path, dataset, hf.bert(dropout=0.2), options={"data_collator": None})
    x, _ = callback.samples().batch()
    assert x.tree.keys() == {"input_ids"}
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))
    assert callback.retrain(np.arange(30), 0) is not None


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_first_step_is_the_recorded_rate_times_the_gradient_of_the_mean_loss(hf, accumulated, clip, tmp_path):
    """Some losses of transformers do not divide by the accumulated batches. The recorder measures what they do."""
    texts = hf.Seen(20)
    changes = {**SGD, "max_grad_norm": clip, "max_steps": 1, "gradient_accumulation_steps": accumulated}
    callback, _ = hf.trained(tmp_path, texts, per_device_train_batch_size=10, **changes)
    target = callback.target()
    samples = callback.samples()
    rows = texts.read[: 10 * accumulated]
    before, after = (target.flat.vector(target.state(t)) for t in (0, 1))
    from ddm.curvature.gradients import loss_gradient

    gradient = loss_gradient(target, before, target.at(0)[1], *samples.batch(rows))
    torch.testing.assert_close(before - after, rate_of(target) * gradient, rtol=1e-3, atol=1e-6)
    if clip:
        assert rate_of(target) < 0.1 * accumulated


@pytest.mark.slow
def test_mixed_precision_is_recorded_and_explained_in_full_precision(hf, texts, tmp_path, bfloat16):
    callback, trainer = hf.trained(tmp_path, texts, hf.bert(dropout=0.2), bf16=True)
    target, (x, _) = callback.target(), callback.samples().batch([0, 1])
    assert target.outputs(x).dtype == torch.float32
    full = hf.bert()
    load_state(full, state_of(trainer.model))
    torch.testing.assert_close(target.outputs(x), full.eval()(**x.tree).logits.detach())
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


# --- the same training again ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.0},
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 8, "data_seed": 5},
        {"eval_strategy": "epoch"},
        {"train_sampling_strategy": "group_by_length", "max_steps": 7},
        {"train_sampling_strategy": "sequential"},
        {"accelerator_config": {"use_seedable_sampler": False}},
    ],
    ids=["without dropout", "accumulation", "evaluation", "by length", "in order", "another sampler"],
)
def test_a_retraining_without_removals_is_the_same_bit_for_bit(hf, changes, texts, tmp_path):
    changes = {"dropout": 0.2, **changes}
    options = {"eval_dataset": Docstrings(4)} if "eval_strategy" in changes else None
    model = hf.bert(dropout=changes.pop("dropout"))
    callback, trainer = hf.trained(tmp_path, texts, model, options=options, **changes)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), torch.get_rng_state()
    again = callback.retrain([], 0)
    assert same_tensors(state_of(again), state_of(trainer.model))
    assert not same_tensors(state_of(callback.retrain([], 1)), state_of(again))
    assert (random.getstate(), torch.get_rng_state().tolist()) == (before[0], before[1].tolist())


@pytest.mark.slow
def test_random_numbers_between_the_trainer_and_its_training_do_not_matter(hf, texts, tmp_path):
    callback = hf.DatamodelCallback()
    trainer = hf.Trainer(hf.bert(dropout=0.2), hf.arguments(tmp_path), collate, texts, callbacks=[callback])
    torch.manual_seed(77)
    trainer.train()
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


@pytest.mark.slow
def test_a_retraining_is_the_targets_training_minus_the_rows(hf, tmp_path):
    texts = hf.Seen(20)
    callback, _ = hf.trained(tmp_path, texts, per_device_train_batch_size=2, num_train_epochs=1, **SGD)
    batches = [texts.read[start : start + 2] for start in range(0, 60, 2)]
    removed = {*batches[3], batches[7][0], *batches[29]}  # two whole batches and a sample
    model = hf.bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        if kept := [row for row in batch if row not in removed]:
            optimizer.zero_grad()
            model(**collate([texts[row] for row in kept])).loss.backward()
            optimizer.step()
    again = state_of(callback.retrain(np.array(sorted(removed)), 0))
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_an_accumulated_step_that_loses_a_batch_keeps_the_others(hf, tmp_path):
    texts = hf.Seen(20)
    changes = {**SGD, "gradient_accumulation_steps": 2, "max_steps": 3}
    callback, _ = hf.trained(tmp_path, texts, per_device_train_batch_size=10, **changes)
    removed = np.array(texts.read[20:30])
    model = hf.bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for start in (20 * step, 20 * step + 10):
            rows = [row for row in texts.read[start : start + 10] if row not in removed]
            if rows:
                model(**collate([texts[row] for row in rows])).loss.backward()
        optimizer.step()
    again = state_of(callback.retrain(removed, 0))
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_trainer_of_the_users_own_is_made_again(hf, texts, tmp_path):
    options = {"weights": torch.tensor([1.0, 2.0, 4.0])}
    callback, trainer = hf.trained(tmp_path, texts, kind=hf.Weighted, options=options)
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


@pytest.mark.slow
def test_a_training_that_stopped_early_is_as_short_again(hf, texts, tmp_path):
    patient = hf.EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)
    callback, trainer = hf.trained(
        tmp_path,
        texts,
        hf.bert(dropout=0.2),
        callbacks=[patient],
        options={"eval_dataset": Docstrings(4)},
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
    )
    assert trainer.state.global_step < 12
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


@pytest.mark.slow
def test_another_process_can_train_again(hf, texts, tmp_path):
    callback, trainer = hf.trained(tmp_path, texts, hf.bert(dropout=0.2), num_train_epochs=1)
    retrain = cloudpickle.loads(cloudpickle.dumps(callback.retrain))
    assert same_tensors(state_of(retrain([], 0)), state_of(trainer.model))


# --- tasks ---


@pytest.mark.slow
def test_the_task_is_that_of_the_models_configuration(hf, texts, tmp_path):
    def task_of(model, labels, **changes):
        def collated(items):
            batch = collate(items)
            return {**batch, "labels": labels(batch)}

        callback, _ = hf.trained(tmp_path, texts, model, options={"data_collator": collated}, max_steps=2, **changes)
        target = callback.target()
        assert len(target.outputs(callback.samples().batch([0, 1])[0])) == 2
        return target.task

    smoothed = task_of(hf.bert(), lambda batch: batch["labels"], label_smoothing_factor=0.1)
    assert smoothed.given.label_smoothing == 0.1
    assert task_of(hf.bert(classes=1), lambda batch: batch["labels"].float()).kind == "regression"
    several = hf.bert(problem_type="multi_label_classification")
    assert task_of(several, lambda batch: nn.functional.one_hot(batch["labels"], 3).float()).kind == "multilabel"
    tokens = hf.bert(hf.BertForTokenClassification)
    assert task_of(tokens, lambda batch: batch["input_ids"] % 3).kind == "tokens"


# --- wrong inputs ---


@pytest.mark.slow
def test_what_cannot_be_recorded_is_refused_in_one_sentence(hf, texts, tmp_path, refused):
    with refused("IterableDataset", "a length and an index"):
        hf.trained(tmp_path, hf.Stream(), max_steps=2)
    with refused("load_best_model_at_end", "turn it off"):
        hf.trained(
            tmp_path,
            texts,
            load_best_model_at_end=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            options={"eval_dataset": Docstrings(4)},
        )
    with refused("frozen", "requires_grad_(True)"):
        hf.trained(tmp_path, texts, hf.bert().requires_grad_(False))
    with refused("nothing was recorded", "trainer.train()"):
        hf.DatamodelCallback().target()
    trainer = hf.Trainer(hf.bert(), hf.arguments(tmp_path), collate, texts)
    trainer.add_callback(hf.DatamodelCallback())
    with refused("must see how the Trainer is made", "callbacks=[callback]"):
        trainer.train()


@pytest.mark.slow
def test_an_optimizer_that_was_given_cannot_be_made_again(hf, texts, tmp_path, refused):
    model = hf.bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    callback, _ = hf.trained(tmp_path, texts, model, options={"optimizers": (optimizer, None)})
    assert len(callback.target().trajectory) > 2
    with refused("was given its optimizer", "retrain(rows, order)"):
        callback.retrain  # noqa: B018


@pytest.mark.slow
def test_a_model_that_returns_a_tuple_needs_a_task_of_its_own(hf, texts, tmp_path, refused):
    callback, _ = hf.trained(tmp_path, texts, hf.bert(return_dict=False))
    with refused("returns a tuple", "Task of your own"):
        ddm.DistilledDatamodel.fit(callback.target(), callback.samples(), clusters=2)


# --- end to end ---


@pytest.mark.slow
def test_a_datamodel_of_a_trainer_is_audited_refined_and_verified_by_the_trainer(hf, tmp_path):
    texts = Docstrings(60)
    model = hf.bert(dropout=0.1, layers=2, width=32)
    callback, trainer = hf.trained(tmp_path, texts, model, num_train_epochs=12, learning_rate=3e-3)
    samples, target = callback.samples(), callback.target()
    assert target.accuracy(samples) > 0.7
    dm = ddm.DistilledDatamodel.fit(target, samples, clusters=2, engine="serial")
    removed = dm.counterfactual(remove=[0])
    x, _ = samples.batch([0])
    assert not torch.equal(removed(**x.tree).logits, trainer.model.eval()(**x.tree).logits)
    kept = copy.deepcopy(state_of(trainer.model))
    options = {"by": callback.retrain, "workers": 1, "directory": tmp_path / "retrained"}
    audit = dm.audit(samples[:60], retrain=2, unions=2, **options)
    assert len(audit.groups) == 2
    assert dm.refine(1, **options) is not None
    verified = dm.trace(samples[3], verify=1, **options)
    assert verified.verified is not None
    assert same_tensors(kept, state_of(trainer.model))
