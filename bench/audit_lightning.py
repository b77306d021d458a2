"""Retrain without every group of a table by Lightning, in two batch orders, and compare with the datamodel.

    python bench/audit_lightning.py flights.csv

``bench/data/flights.py`` writes the file. The callback of ``ddm.integrations`` records the training and retrains.
"""

from __future__ import annotations

import json
import logging
import sys

import torch
from lightning import pytorch as pl
from torch import nn
from torch.utils.data import DataLoader

import ddm
from ddm.integrations.lightning import DatamodelCallback

EPOCHS, GROUPS = 8, 20


class Late(pl.LightningModule):
    """Says whether a flight is late: AdamW, a cosine schedule, and clipping by the Trainer."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main(path: str) -> None:
    """Train, fit, retrain without every group in two orders, and print the figures of the audit."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = ddm.datasets.load(f"csv:{path}", label="late", drop=["arr_delay"], limit=3000)

    def make():
        order = torch.Generator().manual_seed(0)
        loader = DataLoader(data.train, batch_size=64, shuffle=True, generator=order)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", gradient_clip_val=1.0, **quiet)
        return Late(data.train.shape[0]), trainer, loader

    callback = DatamodelCallback(make)
    module, trainer, loader = make()
    trainer.callbacks.append(callback)
    trainer.fit(module, loader)
    datamodel = ddm.DistilledDatamodel.fit(callback.target(), data.train, clusters=GROUPS // 2, synset=False)
    audit = datamodel.audit(
        data.test,
        retrain=len(datamodel.partition),
        unions=4,
        validation=data.validation,
        by=callback.retrain,
        workers=1,
    )
    print(audit)
    print(json.dumps(audit.figures, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
