"""A tiny BERT and the Trainer of ``transformers``, whose import takes seconds: tests import this when they run."""

import torch
from docstrings import VOCABULARY, Docstrings, collate
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

from ddm.integrations.transformers import DatamodelCallback

__all__ = ["BertForTokenClassification", "DatamodelCallback", "EarlyStoppingCallback", "Trainer"]


def bert(kind=BertForSequenceClassification, dropout=0.0, classes=3, layers=1, width=16, **options):
    torch.manual_seed(0)
    return kind(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=2 * width,
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


def trained(folder, dataset, model=None, kind=Trainer, callbacks=(), options=None, every=None, **changes):
    """The callback and the Trainer after a training."""
    callback = DatamodelCallback(every=every)
    trainer = kind(
        model=bert() if model is None else model,
        args=arguments(folder, **changes),
        train_dataset=dataset,
        callbacks=[callback, *callbacks],
        **{"data_collator": collate, **(options or {})},
    )
    trainer.train()
    return callback, trainer


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


class Seen(Docstrings):
    """Notes the rows that are read."""

    def __init__(self, each):
        super().__init__(each)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


class Stream(IterableDataset):
    """Texts without positions."""

    def __iter__(self):
        return iter(Docstrings(4))
