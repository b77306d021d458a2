"""Other methods that score groups of training data: the paper's baselines and today's influence libraries.

``BASELINES[name](request) → scores``. A method that cannot handle a network, or whose library is not installed, raises
``CannotRun``.
"""

from ddm.baselines.arnoldi import arnoldi
from ddm.baselines.chance import chance
from ddm.baselines.ekfac import ekfac
from ddm.baselines.fastif import fastif
from ddm.baselines.koh import koh_cg, koh_lissa
from ddm.baselines.nearness import centroid, predict
from ddm.baselines.protocol import Baseline, CannotRun, ScoreRequest, Scores
from ddm.baselines.size import size
from ddm.baselines.tracin import tracin
from ddm.baselines.trak import trak

BASELINES: dict[str, Baseline] = {
    "random": chance,
    "predict": predict,
    "centroid": centroid,
    "size": size,
    "tracin": tracin,
    "trak": trak,
    "ekfac": ekfac,
    "koh-cg": koh_cg,
    "koh-lissa": koh_lissa,
    "fastif": fastif,
    "arnoldi": arnoldi,
}

__all__ = ["BASELINES", "Baseline", "CannotRun", "ScoreRequest", "Scores"]
