"""Pictures of results, one kind per file, in colours that colour-blind people can tell apart."""

from ddm.plots.audit_figures import audit
from ddm.plots.colours import ACCENT, BAD, GOOD, NEUTRAL, WITHIN_NOISE
from ddm.plots.distances import distances
from ddm.plots.effect_bars import effects
from ddm.plots.images import image_grid
from ddm.plots.saving import picture_kind, save
from ddm.plots.shared_synset import shared_synset
from ddm.plots.trail import trail

__all__ = [
    "ACCENT",
    "BAD",
    "GOOD",
    "NEUTRAL",
    "WITHIN_NOISE",
    "audit",
    "distances",
    "effects",
    "image_grid",
    "picture_kind",
    "save",
    "shared_synset",
    "trail",
]
