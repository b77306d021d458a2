"""A Lightning module on digits, with dropout, a scheduler, clipping and accumulation."""

import torch
from lightning import pytorch as pl
from torch import nn
from torch.utils.data import DataLoader

import ddm

SAMPLES = 120


class Module(pl.LightningModule):
    """Digits as they come from ``Samples``."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 18)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class WithoutForward(Module):
    """Its outputs come from a submodule."""

    forward = pl.LightningModule.forward

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)


class ByHand(Module):
    """Optimizes by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Digits(pl.LightningDataModule):
    """Digits as a data module."""

    def train_dataloader(self):
        return loader()


def digits(count=SAMPLES):
    return ddm.datasets.load("digits").train[:count]


def loader(size=20, **options):
    return DataLoader(digits(), batch_size=size, **{"shuffle": True, **options})


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(max_epochs=3, accelerator="cpu", enable_model_summary=False, **quiet, **options)
