"""Retrain without every group of texts by the Hugging Face Trainer, in two orders, and compare with the datamodel.

    python bench/audit_trainer.py debian.csv

``bench/data/debian.py`` writes the file. The network is a tiny BERT with random initial weights.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import ddm
from ddm.data.reading import stack
from ddm.integrations.transformers import DatamodelCallback

LENGTH, EPOCHS = 48, 8


def main(path: str) -> None:
    """Train, fit, retrain without every group in two orders, and print the figures of the audit."""
    torch.set_num_threads(1)
    data = ddm.datasets.load(f"csv:{path}", label="section", text="text", length=LENGTH, limit=1200)
    ids = data.train.batch()[0].tree["input_ids"]
    train_set = [{**data.train[row][0], "labels": data.train[row][1]} for row in range(len(data.train))]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=int(data.train.options["vocabulary"]),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=ids.shape[1],
        num_labels=len(data.classes),
    )
    callback = DatamodelCallback()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=arguments,
            train_dataset=train_set,
            data_collator=stack,
            callbacks=[callback],
        )
        trainer.train()
        samples = callback.samples()
        datamodel = ddm.DistilledDatamodel.fit(callback.target(), samples, clusters=2, synset=False)
        print(f"{datamodel.target.accuracy(data.test):.3f} right; {datamodel}")
        groups = len(datamodel.partition)
        audit = datamodel.audit(
            data.test, retrain=groups, unions=4, validation=data.validation, by=callback.retrain, workers=1
        )
    print(audit)
    print(json.dumps(audit.figures, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
