"""Kept responses: how precise they are, when they are kept, and that synsets made from them later are the same."""

from dataclasses import replace

import pytest
import torch

from ddm.counterfactual.displaced import Models
from ddm.distil import Settings, distil, distil_kept
from ddm.distil.blocks import Block
from ddm.distil.kept import Displacements, KeptResponses, Moved, kept_bytes
from ddm.distil.response.encode import Encoder
from ddm.distil.response.matching import ResponseMatching
from ddm.distil.response.solve import Responses
from ddm.groups.partition import sequential

QUICK = Settings(curvature=512, checkpoints=2, bank=20)

HALF = 2.0**-11
"""Largest relative error of rounding to half precision."""


@pytest.fixture(scope="module")
def partition(digits):
    return sequential(digits.train, 2)


@pytest.fixture(scope="module")
def both(target, digits, partition):
    """A distillation with kept responses and synsets."""
    return distil(target, digits.train, partition, QUICK)


def few_groups(target):
    """Settings whose blocks hold few groups."""
    return replace(QUICK, memory=13 * 6 * target.flat.size * 4 / 2**30)


def same(one, other):
    """True if two synsets, or two kept responses, are the same bit for bit."""
    if isinstance(one, KeptResponses):
        return same(one.clusters, other.clusters) and same(one.classes, other.classes)
    tensors = ("values", "scales", "own") if isinstance(one, Displacements) else ("images", "targets", "step_sizes")
    return one.names == other.names and all(torch.equal(getattr(one, key), getattr(other, key)) for key in tensors)


# --- precision ---


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e30])
def test_displacements_of_any_size_are_kept_in_half_precision(size):
    rows = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    rows[1] *= torch.logspace(0, -7, 200)  # far smaller than the smallest number of half precision
    wanted = rows * size
    kept = Displacements.of(Moved(tuple("abc"), wanted, torch.zeros(3)))
    assert kept.values.dtype == torch.float16
    errors = (kept.rows() / size - rows).abs()
    assert bool((errors <= 1.01 * HALF * rows.abs()).all())


def test_a_displacement_of_zeros_stays_zero():
    assert Displacements.of(Moved(("a",), torch.zeros(1, 5), torch.zeros(1))).rows().tolist() == [[0.0] * 5]


def test_answers_from_kept_responses_are_those_from_the_responses_within_half_precision(
    target, digits, partition, both
):
    work = ResponseMatching(target, digits.train, QUICK)
    exact = work.responses_of(partition, None, Block(list(range(len(partition))), []))
    kept = both.responses.clusters.rows()
    assert float((kept - exact).norm() / exact.norm()) < HALF
    x, removed = digits.test.batch()[0], torch.eye(len(partition), dtype=torch.bool)
    found, wanted = (Models(target, rows).outputs(removed, x) - target.outputs(x) for rows in (kept, exact))
    assert float((found - wanted).norm() / wanted.norm()) < 2 * HALF


# --- the budget ---


def test_responses_are_kept_if_groups_and_classes_together_fit_the_budget(target, digits, partition):
    needed = kept_bytes(len(partition) + 10, target.flat.size) / 2**30
    for keep, kept in ((needed, True), (0.99 * needed, False), (0.0, False)):
        found = distil(target, digits.train, partition, replace(QUICK, keep=keep))
        assert (found.responses is not None) == kept
        assert found.synset is not None


def test_the_kept_responses_have_the_size_that_the_budget_counts(target, partition, both):
    assert both.responses.nbytes == kept_bytes(len(partition) + 10, target.flat.size)


def test_reverse_matching_keeps_no_responses(target, digits, partition):
    assert distil(target, digits.train, partition, Settings(matching="reverse", steps=1)).responses is None


def test_groups_that_cut_across_classes_have_no_displacements_of_classes(target, digits, partition):
    found = distil(target, digits.train, replace(partition, parents=None), replace(QUICK, synset=False))
    assert len(found.responses.clusters) == len(partition)
    assert len(found.responses.classes) == 0


def test_a_fit_without_synset_needs_responses_that_fit_the_budget(target, digits, partition, refused):
    with refused("more than keep=1e-06 allows", "raise keep"):
        distil(target, digits.train, partition, replace(QUICK, keep=1e-6, synset=False))
    with refused("leave out synset=False"):
        Settings(matching="reverse", synset=False)
    with refused("leave out synset=False"):
        Settings(keep=0, synset=False)
    with refused("keep", "negative"):
        Settings(keep=-1.0)


def test_settings_of_older_versions_equal_the_defaults():
    assert {"keep", "synset"}.isdisjoint(Settings().to_dict())
    assert Settings(keep=0.0, synset=True).to_dict()["keep"] == 0.0
    assert Settings(synset=False).to_dict()["synset"] is False


# --- the synset later ---


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["one block", "several blocks"])
def test_a_synset_distilled_later_is_that_of_a_fit_with_it_bit_for_bit(target, digits, partition, both, blocks):
    settings = QUICK if blocks == "one block" else few_groups(target)
    whole = both if blocks == "one block" else distil(target, digits.train, partition, settings)
    first = distil(target, digits.train, partition, replace(settings, synset=False))
    assert first.synset is None
    assert first.class_synset is None
    assert same(first.responses, whole.responses)
    later = distil_kept(target, digits.train, partition, replace(settings, synset=False), first.responses)
    assert same(later.synset, whole.synset)
    assert same(later.class_synset, whole.class_synset)
    assert later.synset.damping == whole.synset.damping
    assert later.synset.origin == whole.synset.origin


def test_a_fit_without_synset_encodes_nothing(target, digits, partition, monkeypatch):
    monkeypatch.setattr(Encoder, "__init__", lambda *given: pytest.fail("it encodes"))
    assert distil(target, digits.train, partition, replace(QUICK, synset=False)).synset is None


def test_a_poor_synset_is_a_warning_that_says_that_answers_do_not_depend_on_it(target, digits, partition):
    poor = replace(QUICK, bank=2)
    with pytest.warns(UserWarning, match=r"more than the tolerance.*Answers do not depend on it"):
        distil(target, digits.train, partition, poor)
    with pytest.warns(UserWarning, match=r"more than the tolerance") as warned:
        distil(target, digits.train, partition, replace(poor, keep=0))
    assert not any("Answers do not depend" in str(one.message) for one in warned)


# --- kills ---


class Killed(BaseException):
    """Simulates a kill: a ``BaseException``, so no handler of ``Exception`` catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("synset", [True, False])
def test_a_killed_fit_resumes_to_the_same_responses_and_synset(
    target, digits, partition, synset, tmp_path, monkeypatch
):
    settings = replace(few_groups(target), synset=synset)
    wanted, pulls, calls = distil(target, digits.train, partition, settings), Responses.pulls, []

    def dying(self, members, advance=lambda amount: None):
        calls.append(len(members))
        if len(calls) == 3:
            raise Killed
        return pulls(self, members, advance)

    monkeypatch.setattr(Responses, "pulls", dying)
    with pytest.raises(Killed):
        distil(target, digits.train, partition, settings, tmp_path)
    assert list(tmp_path.glob("*-responses.safetensors"))
    assert bool(list(tmp_path.glob("*-cluster.safetensors"))) == synset
    found = distil(target, digits.train, partition, settings, tmp_path)
    assert len(list(tmp_path.glob("*-responses.safetensors"))) > 1
    assert same(found.responses, wanted.responses)
    assert (found.synset is not None) == synset
    if synset:
        assert same(found.synset, wanted.synset)


def test_a_block_of_an_older_version_has_no_responses_and_is_distilled_again(
    target, digits, partition, both, tmp_path, refused
):
    distil(target, digits.train, partition, QUICK, tmp_path)
    (stored,) = tmp_path.glob("*-responses.safetensors")
    content = bytearray(stored.read_bytes())
    content[-3] ^= 1
    stored.write_bytes(content)
    with refused("has changed since it was written", "delete it"):
        distil(target, digits.train, partition, QUICK, tmp_path)
    stored.unlink()
    found = distil(target, digits.train, partition, QUICK, tmp_path)
    assert stored.exists()
    assert same(found.responses, both.responses)


# --- files ---


def test_kept_responses_survive_saving(both, tmp_path):
    both.responses.save(tmp_path / "responses.safetensors")
    again = KeptResponses.load(tmp_path / "responses.safetensors")
    assert same(again, both.responses)
    assert again.damping == both.responses.damping
    assert again.origin == both.responses.origin
    assert repr(again) == repr(both.responses)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "responses.safetensors").read_bytes()
