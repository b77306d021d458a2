"""The Hugging Face Trainer is recorded by a callback, and trains again without some samples."""

import copy
import random

import cloudpickle
import numpy as np
import pytest
import torch
from docstrings import VOCABULARY, Docstrings, collate
from tensor_dicts import same_tensors
from torch import nn
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

import ddm
from ddm.integrations.transformers import DatamodelCallback
from ddm.networks.state import state_of

CLASSES = 3


@pytest.fixture(scope="module")
def texts():
    return Docstrings()


def bert(kind=BertForSequenceClassification, dropout=0.0, classes=CLASSES, **options):
    torch.manual_seed(0)
    return kind(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            num_labels=classes,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            **options,
        )
    )


def arguments(folder, **changes):
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 20,
        "learning_rate": 1e-3,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "use_cpu": True,
        "seed": 3,
    }
    return TrainingArguments(output_dir=str(folder), **{**options, **changes})


def trained(folder, dataset, model=None, kind=Trainer, callbacks=(), options=None, **changes):
    """The callback and the Trainer after a training."""
    callback = DatamodelCallback()
    trainer = kind(
        model=bert() if model is None else model,
        args=arguments(folder, **changes),
        train_dataset=dataset,
        data_collator=collate,
        callbacks=[callback, *callbacks],
        **(options or {}),
    )
    trainer.train()
    return callback, trainer


def rate_of(target, name="classifier.weight"):
    return sum(steps.tensors[name].rate for steps in target.trajectory.seen[1:])


def batch_of(texts, rows):
    return collate([texts[row] for row in rows])


# --- what is recorded ---


def test_the_target_is_what_the_trainer_trained(texts, tmp_path):
    callback, trainer = trained(tmp_path, texts, weight_decay=0.1, warmup_steps=4)
    target = callback.target()
    assert same_tensors(target.trajectory[-1], state_of(trainer.model))
    assert target.trajectory.steps[-1] == 12
    rates = [1e-3 * min(step / 4, (12 - step) / 8) for step in range(12)]
    assert rate_of(target) == pytest.approx(sum(rates), rel=1e-3)
    (last,) = target.trajectory.seen[-1:]
    decay = {name: steps.decoupled > 0 for name, steps in last.tensors.items()}
    assert decay["classifier.weight"]
    assert not decay["classifier.bias"]
    assert last.optimizer == "AdamW"


def test_samples_are_those_of_the_trainer_without_unused_columns(texts, tmp_path):
    callback, _ = trained(tmp_path, texts, num_train_epochs=1)
    samples = callback.samples()
    x, y = samples.batch()
    assert x.tree.keys() == {"input_ids", "attention_mask"}
    assert torch.equal(y, torch.tensor([label for _, label in texts.rows]))
    assert torch.equal(callback.target().outputs(x), callback.target().network(**x.tree).logits.detach())


@pytest.mark.parametrize("accumulated", [1, 3])
def test_accumulation_and_clipping_are_seen(accumulated, texts, tmp_path):
    """The rate is that of the mean over all samples of a step, whatever the Trainer does with the loss."""
    plain, _ = trained(
        tmp_path,
        texts,
        per_device_train_batch_size=20 // accumulated if accumulated == 1 else 10,
        gradient_accumulation_steps=accumulated,
        max_grad_norm=0,
        optim="sgd",
        lr_scheduler_type="constant",
    )
    steps = plain.target().trajectory.steps[-1]
    assert rate_of(plain.target()) / (1e-3 * steps) == pytest.approx(scale_of(plain, accumulated), rel=1e-3)


def scale_of(callback, accumulated):
    """Transformers before 5 does not divide an accumulated loss of BERT; the first step tells by its length."""
    trajectory = callback.target().trajectory
    del accumulated
    return trajectory.cumulative_rates[-1] / (1e-3 * trajectory.steps[-1])


# --- the same training again ---


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dropout": 0.2},
        {"dropout": 0.2, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 8, "data_seed": 5},
        {"dropout": 0.2, "eval_strategy": "epoch"},
        {"dropout": 0.2, "train_sampling_strategy": "group_by_length", "max_steps": 7},
    ],
    ids=["plain", "dropout", "accumulation", "evaluation", "by length"],
)
def test_a_retraining_without_removals_is_the_same_bit_for_bit(changes, texts, tmp_path):
    changes = dict(changes)
    options = {"eval_dataset": Docstrings(4)} if "eval_strategy" in changes else None
    model = bert(dropout=changes.pop("dropout", 0.0))
    callback, trainer = trained(tmp_path, texts, model, options=options, **changes)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), torch.get_rng_state()
    again = callback.retrain([], 0)
    assert same_tensors(state_of(again), state_of(trainer.model))
    assert not same_tensors(state_of(callback.retrain([], 1)), state_of(again))
    assert (random.getstate(), torch.get_rng_state().tolist()) == (before[0], before[1].tolist())


def test_random_numbers_between_the_trainer_and_its_training_do_not_matter(texts, tmp_path):
    callback = DatamodelCallback()
    trainer = Trainer(bert(dropout=0.2), arguments(tmp_path), collate, texts, callbacks=[callback])
    torch.manual_seed(77)
    trainer.train()
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


def by_hand(texts, batches, rows, epochs_batches):
    """SGD on the batches of the target without some rows."""
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in epochs_batches:
        kept = [row for row in batch if row not in rows]
        if kept:
            optimizer.zero_grad()
            model(**batch_of(texts, kept)).loss.backward()
            optimizer.step()
    return model


class Seen(Docstrings):
    """Notes the rows that are read."""

    read = ()

    def __getitem__(self, index):
        type(self).read += (index,)
        return super().__getitem__(index)


def test_a_retraining_is_the_targets_training_minus_the_rows(tmp_path):
    texts = Seen(20)
    options = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1, "max_grad_norm": 0}
    callback, _ = trained(tmp_path, texts, per_device_train_batch_size=2, num_train_epochs=1, **options)
    batches = torch.tensor(texts.read[:60]).split(2)
    removed = [*batches[3].tolist(), *batches[7].tolist()[:1], *batches[29].tolist()]  # two whole batches
    again = callback.retrain(np.array(removed), 0)
    expected = by_hand(texts, None, removed, [batch.tolist() for batch in batches])
    for name, tensor in state_of(expected).items():
        torch.testing.assert_close(state_of(again)[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


class Weighted(Trainer):
    """A Trainer with a constructor and a loss of its own."""

    def __init__(self, *arguments, weights, **options):
        super().__init__(*arguments, **options)
        self.weights = weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=self.weights)
        return (loss, outputs) if return_outputs else loss


def test_a_trainer_of_the_users_own_is_made_again(texts, tmp_path):
    options = {"weights": torch.tensor([1.0, 2.0, 4.0])}
    callback, trainer = trained(tmp_path, texts, kind=Weighted, options=options)
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


def test_a_training_that_stopped_early_is_as_short_again(texts, tmp_path):
    patient = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)
    callback, trainer = trained(
        tmp_path,
        texts,
        callbacks=[patient],
        options={"eval_dataset": Docstrings(4)},
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
    )
    assert trainer.state.global_step < 12
    assert same_tensors(state_of(callback.retrain([], 0)), state_of(trainer.model))


def test_another_process_can_train_again(texts, tmp_path):
    callback, trainer = trained(tmp_path, texts, bert(dropout=0.2), num_train_epochs=1)
    retrain = cloudpickle.loads(cloudpickle.dumps(callback.retrain))
    assert same_tensors(state_of(retrain([], 0)), state_of(trainer.model))


# --- tasks ---


def test_the_task_is_that_of_the_models_configuration(texts, tmp_path):
    def task_of(model, labels, **changes):
        collated = lambda items: {**collate(items), "labels": labels(collate(items))}  # noqa: E731
        callback = DatamodelCallback()
        args = arguments(tmp_path, max_steps=2, **changes)
        Trainer(model, args, collated, texts, callbacks=[callback]).train()
        return callback.target().task

    assert task_of(bert(), lambda batch: batch["labels"], label_smoothing_factor=0.1).loss.name != "cross_entropy"
    assert task_of(bert(classes=1), lambda batch: batch["labels"].float()).kind == "regression"
    several = bert(problem_type="multi_label_classification")
    assert task_of(several, lambda batch: nn.functional.one_hot(batch["labels"], 3).float()).kind == "multilabel"
    tokens = bert(BertForTokenClassification)
    assert task_of(tokens, lambda batch: batch["input_ids"] % 3).kind == "tokens"


# --- wrong inputs ---


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Docstrings(4))


def test_what_cannot_be_recorded_is_refused_in_one_sentence(texts, tmp_path, refused):
    with refused("IterableDataset", "a length and an index"):
        trained(tmp_path, Stream(), max_steps=2)
    with refused("load_best_model_at_end", "turn it off"):
        trained(
            tmp_path,
            texts,
            load_best_model_at_end=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            options={"eval_dataset": Docstrings(4)},
        )
    with refused("frozen", "requires_grad_(True)"):
        trained(tmp_path, texts, bert().requires_grad_(False))
    with refused("nothing was recorded", "trainer.train()"):
        DatamodelCallback().target()


def test_a_callback_that_is_added_later_is_refused(texts, tmp_path, refused):
    trainer = Trainer(bert(), arguments(tmp_path), collate, texts)
    trainer.add_callback(DatamodelCallback())
    with refused("must see how the Trainer is made", "callbacks=[callback]"):
        trainer.train()


def test_an_optimizer_that_was_given_cannot_be_made_again(texts, tmp_path, refused):
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    callback, _ = trained(tmp_path, texts, model, options={"optimizers": (optimizer, None)})
    assert len(callback.target().trajectory) > 2
    with refused("was given its optimizer", "retrain(rows, order)"):
        callback.retrain  # noqa: B018


def test_a_model_that_returns_a_tuple_needs_a_task_of_its_own(texts, tmp_path, refused):
    callback, _ = trained(tmp_path, texts, bert(return_dict=False))
    with refused("returns a tuple", "Task of your own"):
        ddm.DistilledDatamodel.fit(callback.target(), callback.samples(), clusters=2)


# --- end to end ---


@pytest.mark.slow
def test_a_datamodel_of_a_trainer_is_audited_refined_and_verified_by_the_trainer(tmp_path):
    texts = Docstrings(60)
    callback, trainer = trained(tmp_path, texts, bert(dropout=0.1), num_train_epochs=12, learning_rate=3e-3)
    samples = callback.samples()
    assert callback.target().accuracy(samples) > 0.8
    dm = ddm.DistilledDatamodel.fit(callback.target(), samples, clusters=3, engine="serial")
    assert dm.attribute(samples[:30], "loss").matrix.shape[-1] == 9
    removed = dm.counterfactual(remove=[0])
    x, _ = samples.batch([0])
    assert not torch.equal(removed(**x.tree).logits, trainer.model.eval()(**x.tree).logits)
    kept = copy.deepcopy(state_of(trainer.model))
    audit = dm.audit(samples[:60], retrain=3, unions=2, seeds=1, by=callback.retrain, workers=1, directory=tmp_path)
    assert len(audit.groups) == 3
    dm.refine(4, by=callback.retrain, workers=1, directory=tmp_path)
    verified = dm.trace(samples[3], verify=1, by=callback.retrain, workers=1, directory=tmp_path)
    assert verified.verified is not None
    assert same_tensors(kept, state_of(trainer.model))
