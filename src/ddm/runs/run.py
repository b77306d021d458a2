"""Create a run, open it, and audit it. ``ddm fit`` creates runs; the other commands open them.

The config replays a run. A killed run resumes: training after its last complete epoch, matching after its last
finished block. The result is the same as without the kill.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ddm.answers.scores import score
from ddm.answers.trace import Trace
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine
from ddm.compute.files import read_json_object, write_json
from ddm.compute.folders import lock_folder
from ddm.compute.precision import check_bfloat16
from ddm.data.samples import Data, Samples
from ddm.data.tasks import Task
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.runs import store
from ddm.runs.config import Config, check_same_config
from ddm.runs.folder import CONFIG, EVIDENCE, EXACT, MANIFEST, PARTS, SUMMARY, TRAJECTORY, make_writable
from ddm.runs.inputs import load_data, load_data_of_run, read_groups, with_base
from ddm.runs.manifest import begin_run, check_free, read_manifest
from ddm.training.loop import build_network, train
from ddm.training.target import device_of
from ddm.truth.audit import Audit
from ddm.truth.refinement import Refinement


def fit(config: Config, out: Path, engine: Engine = None) -> tuple[DistilledDatamodel, Data, dict[str, Any]]:
    """Create the run of ``config`` in ``out``, or resume it, or open it if it is complete; also return its summary.

    engine: where independent tasks run; it does not change the result
    """
    device = device_of(config.device)
    if config.recipe.amp:
        check_bfloat16(device)
    Backend.parse(engine).check()
    config = with_base(config)
    data = load_data(config)
    task = Task(data.task)
    network = build_network(config.model, data.train, task, config.options)
    groups = read_groups(config, data)
    check_free(out)
    if not out.is_dir():
        make_writable(out)
    with lock_folder(out):
        if not _is_complete(out, config):
            return _make(config, out, data, network, task, groups, engine)
        shutil.rmtree(out / PARTS, ignore_errors=True)  # left by a fit that was killed after its last write
        datamodel, data = open_run(out, data=data)
        return datamodel, data, read_json_object(out / SUMMARY) | summarise_distilled(datamodel)


def _is_complete(out: Path, config: Config) -> bool:
    """True if ``out`` holds this run and it is complete; another run there is refused."""
    if not (out / CONFIG).exists():
        return False
    check_same_config(out / CONFIG, config)
    return (out / MANIFEST).exists() and bool(read_manifest(out).get("complete"))


def _make(
    config: Config,
    out: Path,
    data: Data,
    network: nn.Module,
    task: Task,
    groups: np.ndarray | None,
    engine: Engine,
) -> tuple[DistilledDatamodel, Data, dict[str, Any]]:
    """Create a run, or resume it where it was killed."""
    begin_run(out, config.to_dict())
    clock = _Clock()
    target = train(network, data.train, config.recipe, task=task, directory=out / TRAJECTORY, device=config.device)
    clock.lap("training")
    datamodel = DistilledDatamodel.fit(
        target,
        data.train,
        config.clusters,
        partition=config.partition if groups is None else groups,
        features=config.features,
        settings=config.settings,
        directory=out / PARTS,
        engine=engine,
        config=config.to_dict(),
        on_stage=clock.lap,
    )
    summary = summarise(datamodel, data) | {"seconds": clock.laps}
    write_json(out / SUMMARY, summary)
    store.save(datamodel, out)
    return datamodel, data, summary


def open_run(
    run: Path,
    *,
    data: Data | None = None,
    name: str | None = None,
    root: str | None = None,
    factory: str | None = None,
    device: str = "cpu",
) -> tuple[DistilledDatamodel, Data]:
    """The datamodel of a run and its dataset; other training data than the run's own are refused.

    factory: names the code that builds a network of the user's own
    """
    device_of(device)
    datamodel = store.load(run, factory=factory, device=device)
    if data is None:
        data = load_data_of_run(run, name, root)
    if data.train.fingerprint() != datamodel.data:
        raise InputError(
            f"the run '{run}' was made with other training data than '{data.name}' holds now "
            f"({data.train.difference_from(datamodel.training_set.described)}): restore them."
        )
    datamodel.training_set.samples = data.train
    return datamodel, data


def audit(
    run: Path,
    datamodel: DistilledDatamodel,
    data: Data,
    *,
    retrain: int,
    unions: int | None,
    seeds: int,
    seed: int,
    engine: Engine = None,
) -> Audit:
    """Audit a run and store the audit in it; a killed audit resumes from the models it has retrained."""
    with lock_folder(run):
        result = datamodel.audit(
            data.test,
            validation=data.validation,
            retrain=retrain,
            unions=unions,
            seeds=seeds,
            directory=run / EXACT,
            seed=seed,
            engine=engine,
        )
        store.save_audit(result, run)
        _save_evidence(datamodel, run)
    return result


def refine(
    run: Path,
    datamodel: DistilledDatamodel,
    *,
    retrain: int,
    seconds: float | None = None,
    question: Samples | None = None,
    general: bool = False,
    seed: int = 0,
    engine: Engine = None,
) -> Refinement:
    """Refine a run and store the evidence in it; a killed refinement resumes from the models it has retrained."""
    with lock_folder(run):
        found = datamodel.refine(
            retrain,
            seconds=seconds,
            question=question,
            general=general,
            directory=run / EXACT,
            seed=seed,
            engine=engine,
        )
        _save_evidence(datamodel, run)
    return found


def trace(
    run: Path,
    datamodel: DistilledDatamodel,
    question: Samples,
    objective: str,
    *,
    full: bool = False,
    verify: int = 0,
    engine: Engine = None,
) -> Trace:
    """Trace a question; what is retrained to verify the answer is stored as evidence."""
    if not verify:
        return datamodel.trace(question, objective, full=full)
    with lock_folder(run):
        found = datamodel.trace(question, objective, full=full, verify=verify, directory=run / EXACT, engine=engine)
        _save_evidence(datamodel, run)
    return found


def _save_evidence(datamodel: DistilledDatamodel, run: Path) -> None:
    if datamodel.evidence is not None:
        datamodel.evidence.save(run / EVIDENCE)


def distil(run: Path, datamodel: DistilledDatamodel, data: Data) -> dict[str, Any]:
    """Distil the synset of a run that was fitted without one, add it to the run, and return the run's summary."""
    with lock_folder(run):
        clock = _Clock()
        if datamodel.distilled.synset is None:
            datamodel.distil()
            clock.lap("distilling")
            store.add_synset(datamodel, run)
    stored = read_json_object(run / SUMMARY).get("seconds") if (run / SUMMARY).exists() else None
    seconds = stored if isinstance(stored, dict) else {}
    return summarise(datamodel, data) | {"seconds": {**seconds, **clock.laps}}


def summarise(datamodel: DistilledDatamodel, data: Data) -> dict[str, Any]:
    """A run in numbers, as JSON values."""
    target, partition = datamodel.target, datamodel.partition
    return {
        "data": data.name,
        "task": target.task.kind,
        "network": type(target.network).__name__,
        "parameters": target.flat.size,
        "samples": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        **_scores(datamodel, data),
        "checkpoints": len(target.trajectory),
        "groups": len(partition),
        "group_sizes": {"smallest": int(partition.sizes.min()), "largest": int(partition.sizes.max())},
        "matching": datamodel.settings.matching,
        **summarise_distilled(datamodel),
    }


def _scores(datamodel: DistilledDatamodel, data: Data) -> dict[str, dict[str, float]]:
    """The scores of the target on each split, by name: accuracy where samples have classes."""
    target = datamodel.target
    found = {split: score(target.network, data.split(split), target.task) for split in ("train", "validation", "test")}
    return {name: {split: scores[name] for split, scores in found.items()} for name in found["train"]}


def summarise_distilled(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """The synset and the kept responses in numbers. ``ddm distil`` may have changed them since the summary."""
    distilled = datamodel.distilled
    synset, responses = distilled.synset, distilled.responses
    return {
        "alignment": None if synset is None else float(synset.alignment.mean()),
        "stopped": distilled.stopped,
        "synset_bytes": 0 if synset is None else synset.nbytes,
        "kept_bytes": 0 if responses is None else responses.nbytes,
        "damping": distilled.damping,
    }


class _Clock:
    """Measures the seconds of each stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = round(now - self._last, 3)
        self._last = now
