"""Distils all groups into kept responses and synsets, in blocks of groups that fit the memory.

A block holds complete classes where they fit, because the gradient of a class is the mean of its clusters' gradients.
Each block is saved when it is finished, so that a killed run resumes with the next one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ddm.compute.engine import Engine
from ddm.compute.progress import bar
from ddm.data.samples import Samples, check_two_classes
from ddm.distil.block_store import BlockStore
from ddm.distil.blocks import Block, plan_blocks
from ddm.distil.distilled import Distilled
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.gradient.matching import GradientMatching
from ddm.distil.kept import KeptResponses, keeps_responses, kept_bytes, makes_synset
from ddm.distil.matching import DistilledBlock, LevelSynset, Matching
from ddm.distil.response.matching import ResponseMatching
from ddm.distil.response.shared_bank import MAX_BLOCK_GROUPS, SharedBank, bytes_per_group
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import SMALL_GROUP, Partition
from ddm.training.target import Target

MATCHINGS: dict[str, Callable[[Target, Samples, Settings, Engine], Matching]] = {
    "response": ResponseMatching,
    "reverse": GradientMatching,
    "forward": GradientMatching,
}
"""Every matching, by its name in the settings."""

_ZERO_ALIGNMENT = 1e-6
"""Alignments below this count as zero."""


def distil(
    target: Target,
    samples: Samples,
    partition: Partition,
    settings: Settings | None = None,
    directory: Path | None = None,
    engine: Engine = None,
) -> Distilled:
    """The kept responses and the synsets of every group, and of every class if groups lie within classes.

    directory: folder that stores finished blocks; a later call with the same folder resumes from them
    engine:    computes the pulls of response matching, or the blocks of the other matchings
    """
    settings = settings or Settings()
    check_two_classes(samples)
    upper = partition.by_class()
    if upper is not None and len(upper) == len(partition) and settings.matching != "response":
        # A group that is a class is distilled once. Response matching closes the output of the class only.
        synset = distil(target, samples, replace(partition, parents=None), settings, directory, engine).synset
        assert synset is not None
        return Distilled(synset, _rename_to_classes(synset, partition, upper))
    if settings.clip is not None:
        _warn_of_small_groups(partition)
    settings = _resolved(settings, target, partition)
    keeps = _check_budget(settings, len(partition) + len(upper or ()), target.flat.size)
    store = BlockStore(directory, synsets=bool(settings.synset), responses=keeps)
    store.check_identity(target, samples, partition, settings)
    matching = MATCHINGS[settings.matching](target, samples, settings, engine)
    blocks, origin = _distil_blocks(matching, partition, upper, settings, store), target.origin(samples.fingerprint())
    kept = [block.responses for block in blocks if block.responses is not None]
    classes = () if upper is None else upper.names
    responses = KeptResponses.join(kept, partition.names, classes, origin) if keeps else None
    if not settings.synset:
        return Distilled(None, None, responses)
    synsets = [part for block in blocks for part in block.synsets]
    return Distilled(*_join_levels(synsets, partition, settings, origin, kept=keeps), responses)


def distil_kept(
    target: Target, samples: Samples, partition: Partition, settings: Settings, responses: KeptResponses
) -> Distilled:
    """The synsets of kept responses: the same, bit for bit, as those of a fit that makes both."""
    bank = SharedBank(target, samples, settings)
    blocks = plan_blocks(partition, bytes_per_group(target), settings.memory, MAX_BLOCK_GROUPS)
    synsets: list[LevelSynset] = []
    with bar("encoding", bank.encoder.rows) as advance, _refusing_constant_targets():
        for block in blocks:
            clusters, classes = responses.clusters.part(block.clusters), responses.classes.part(block.classes)
            synsets += bank.synsets(clusters.moved(), classes.moved(), responses.damping, advance)
    origin = target.origin(samples.fingerprint())
    return Distilled(*_join_levels(synsets, partition, settings, origin, kept=True), responses)


def estimate_matching(
    target: Target, samples: Samples, partition: Partition, settings: Settings, engine: Engine = None
) -> MatchingEstimate:
    """Estimate the time, memory and disk space of ``distil`` from short trials."""
    upper, settings = partition.by_class(), _resolved(settings, target, partition)
    _check_budget(settings, len(partition) + len(upper or ()), target.flat.size)
    matching = MATCHINGS[settings.matching](target, samples, settings, engine)
    return matching.estimate(partition, upper, _blocks(matching, partition, settings), engine)


def _resolved(settings: Settings, target: Target, partition: Partition) -> Settings:
    """The settings, with the default for the synset resolved."""
    groups = len(partition) + len(partition.by_class() or ())
    return replace(settings, synset=makes_synset(settings, groups, target.flat.size))


def _blocks(matching: Matching, partition: Partition, settings: Settings) -> list[Block]:
    return plan_blocks(partition, matching.bytes_per_group, settings.memory, matching.max_block_groups)


def _check_budget(settings: Settings, groups: int, parameters: int) -> bool:
    """True if the responses are kept. A fit that could answer neither from them nor from a synset is refused."""
    keeps = keeps_responses(settings, groups, parameters)
    if not keeps and not settings.synset:
        raise InputError(
            f"the responses of {groups:,} groups and classes take {kept_bytes(groups, parameters) / 2**30:.2f} GiB, "
            f"more than keep={settings.keep:g} allows: raise keep, or distil the synset."
        )
    return keeps


def _distil_blocks(
    matching: Matching, partition: Partition, upper: Partition | None, settings: Settings, store: BlockStore
) -> list[DistilledBlock]:
    """The results of all blocks, in order. Blocks in the store are loaded, the others are distilled and saved."""
    blocks = _blocks(matching, partition, settings)
    stored = ((number, store.load(number, block)) for number, block in enumerate(blocks))
    done = {number: found for number, found in stored if found is not None}
    matching.resume(list(done.values()))
    todo = [(number, block) for number, block in enumerate(blocks) if number not in done]
    cost = sum(matching.cost(partition, upper, block) for _, block in todo) + (matching.shared_cost if todo else 0.0)
    with bar(f"{settings.matching} matching", cost) as advance, _refusing_constant_targets():
        for number, finished in matching.distil_blocks(partition, upper, todo, advance):
            done[number] = finished
            store.save(number, finished)
    return [done[number] for number in range(len(blocks))]


def _join_levels(
    parts: Sequence[LevelSynset], partition: Partition, settings: Settings, origin: dict[str, str], *, kept: bool
) -> tuple[Synset, Synset | None]:
    """The synset of all groups, and that of all classes if groups lie within classes; ``kept``: responses are kept."""
    clusters, upper = _join(parts, "cluster", partition, settings, origin), partition.by_class()
    if settings.matching == "response":
        _warn_of_encoding_error(clusters, settings, kept=kept)
    return clusters, None if upper is None else _join(parts, "class", upper, settings, origin)


def _join(
    parts: Sequence[LevelSynset], level: str, partition: Partition, settings: Settings, origin: dict[str, str]
) -> Synset:
    """One synset of all groups of a level, checked."""
    synset = Synset.join([synset for each, synset in parts if each == level], partition.names)
    _check_synset(synset, "groups" if level == "cluster" else "classes", settings)
    return replace(synset, origin=origin)


@contextlib.contextmanager
def _refusing_constant_targets() -> Iterator[None]:
    try:
        yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise InputError(
            "the predictions of the target do not change with its parameters, so nothing can be distilled: "
            "train it from other weights or with another lr."
        ) from None


def _check_synset(synset: Synset, what: str, settings: Settings) -> None:
    """Warn of groups that failed, with one warning for each kind of failure. Refuse a synset without a usable group."""
    if synset.stopped:
        first = next(iter(synset.stopped.values()))
        if len(synset.stopped) == len(synset):
            raise InputError(f"none of the {len(synset)} {what} could be distilled: {first}")
        _warn(f"{len(synset.stopped)} of {len(synset)} {what} could not be distilled: {first}")
    if bool((synset.alignment.abs() < _ZERO_ALIGNMENT).all()):
        _warn(f"the synsets of the {what} carry no signal: all gradients are close to zero. Did the model train?")
    wrong = int((synset.step_sizes < 0).sum())
    if wrong and settings.matching == "reverse":
        _warn(
            f"the synsets of {wrong} of {len(synset)} {what} point the wrong way, so their steps are reversed: "
            "use soft labels or more steps."
        )


def _warn_of_encoding_error(synset: Synset, settings: Settings, *, kept: bool) -> None:
    """Warn of a synset that misses more of the responses than the tolerance allows, and say what helps.

    kept: the responses are kept, so that answers do not depend on the synset
    """
    error = float(synset.error.mean())
    if error > settings.tolerance:
        real = "" if settings.start_images == "real" else ", or start from training samples (init='real')"
        harmless = " Answers do not depend on it: they come from the kept responses." if kept else ""
        _warn(
            f"the synset misses {error:.1%} of the change that it should make, more than the tolerance of "
            f"{settings.tolerance:.1%}: use more images (bank={2 * synset.count}){real}.{harmless}"
        )


def _warn_of_small_groups(partition: Partition) -> None:
    """Warn that clipping does not hide the samples of small groups."""
    small = int((partition.sizes < SMALL_GROUP).sum())
    if small:
        _warn(
            f"{small} of {len(partition)} groups have fewer than {SMALL_GROUP} samples. Their synsets reveal "
            "single samples, even with private settings: use fewer clusters."
        )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=5)


def _rename_to_classes(synset: Synset, partition: Partition, upper: Partition) -> Synset:
    """The synset of groups that are complete classes, with the classes' names and in their order."""
    order = [synset.names[k] for k in np.argsort(np.asarray(partition.parents))]
    names = dict(zip(order, upper.names, strict=True))
    stopped = {names[name]: why for name, why in synset.stopped.items()}
    return replace(Synset.join([synset], order), names=upper.names, stopped=stopped)
