"""Pictures of results, in colours that colour-blind people can tell apart: one a file."""

from ddm.plots.colours import LOWERS, RAISES
from ddm.plots.distances import distances
from ddm.plots.effect_bars import effects
from ddm.plots.figures import audit
from ddm.plots.images import image_grid
from ddm.plots.saving import picture_kind, save
from ddm.plots.shared import shared_synset
from ddm.plots.trail import trail

__all__ = [
    "LOWERS",
    "RAISES",
    "audit",
    "distances",
    "effects",
    "image_grid",
    "picture_kind",
    "save",
    "shared_synset",
    "trail",
]
