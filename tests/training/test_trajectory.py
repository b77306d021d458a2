"""A trajectory returns the appended checkpoints, from memory or disk, and reads a file only when it is used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors

from ddm import Trajectory
from ddm.compute.tensors import write_tensors
from ddm.training.steps import Steps, TensorSteps


def states(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {"weight": torch.randn(3, 2, generator=generator), "tracked": torch.randint(9, (), generator=generator)}
        for _ in range(count)
    ]


def fill(trajectory, states):
    for number, state in enumerate(states):
        trajectory.append(state, 4 * number, 0.1 * number)
    return trajectory


def seen(rate, count=2):
    return Steps({"weight": TensorSteps(rate, coupled=0.1 * rate, count=count)}, scaled=True, optimizer="Adam")


def recorded(directory=None, count=5):
    """A trajectory of an adaptive optimizer: rate t and second moment t before checkpoint t."""
    trajectory = Trajectory(directory)
    trajectory.append(states(1)[0], 0, 0.0)
    for t, state in enumerate(states(count)[1:], start=1):
        moments = {"weight": torch.full((3, 2), float(t))}
        trajectory.append(state, 2 * t, t * (t + 1) / 2, seen(float(t)), moments)
    return trajectory


def test_the_steps_and_moments_of_the_optimizer_are_stored_with_each_checkpoint(tmp_path):
    memory = recorded()
    for one in (recorded(tmp_path / "one"), Trajectory.open(tmp_path / "one"), memory.save(tmp_path / "two")):
        assert one.seen == memory.seen
        assert [one.moments(t) is None for t in range(5)] == [True, False, False, False, False]
        assert all(same_tensors(one.moments(t), memory.moments(t)) for t in range(1, 5))
        assert all(same_tensors(one[t], memory[t]) for t in range(5))
        assert one.trained == {"weight"}
    assert fill(Trajectory(tmp_path / "one"), states(2)).trained is None  # another training replaces it


def test_the_moments_around_a_checkpoint_are_the_mean_over_the_steps_on_both_sides():
    trajectory = recorded()
    for one in (trajectory, trajectory.select(range(5))):
        assert [float(one.moments_around(t)["weight"][0, 0]) for t in range(5)] == [1.0, 1.5, 2.5, 3.5, 4.0]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_thinning_keeps_every_second_checkpoint_and_all_steps(count, tmp_path):
    for directory in (None, tmp_path / str(count)):
        whole, trajectory = recorded(count=count), recorded(directory, count)
        trajectory.thin()
        kept = [*range(0, count - 1, 2), count - 1]
        for one in (trajectory, *([] if directory is None else [Trajectory.open(directory)])):
            assert all(same_tensors(one[t], whole[number]) for t, number in enumerate(kept))
            assert one.steps == [whole.steps[number] for number in kept]
            assert one.cumulative_rates == [whole.cumulative_rates[number] for number in kept]
            rates, counts = ([getattr(s.tensors["weight"], key) for s in one.seen[1:]] for key in ("rate", "count"))
            assert sum(rates) == pytest.approx(whole.cumulative_rates[-1])
            assert sum(counts) == whole.steps[-1]
            means = sum(n * float(one.moments(t)["weight"][0, 0]) for t, n in enumerate(counts, start=1))
            assert means == pytest.approx(sum(2 * t for t in range(1, count)))


def test_rescaling_multiplies_the_learning_rates_since_the_checkpoint_before(tmp_path):
    for directory in (None, tmp_path):
        trajectory = recorded(directory, 3)
        trajectory.rescale([1.0, 2.0, 10.0])
        for one in (trajectory, *([] if directory is None else [Trajectory.open(directory)])):
            assert one.cumulative_rates == [0.0, 2.0, 22.0]
            assert [steps.tensors["weight"].rate for steps in one.seen[1:]] == [2.0, 20.0]
            assert [steps.tensors["weight"].coupled for steps in one.seen[1:]] == pytest.approx([0.1, 0.2])


@pytest.fixture(params=["memory", "disk"])
def empty(request, tmp_path):
    return Trajectory(tmp_path if request.param == "disk" else None)


def test_checkpoints_are_returned_in_order(empty):
    appended = states(4)
    trajectory = fill(empty, appended)
    assert len(trajectory) == 4
    assert all(same_tensors(one, other) for one, other in zip(trajectory, appended, strict=True))
    assert same_tensors(trajectory[-1], appended[3])
    assert same_tensors(trajectory[-4], appended[0])
    assert trajectory.steps == [0, 4, 8, 12]
    assert trajectory.cumulative_rates == [0.0, 0.1, 0.2, pytest.approx(0.3)]


@pytest.mark.parametrize("t", [4, -5, 100])
def test_an_index_out_of_range_raises_index_error(empty, t):
    trajectory = fill(empty, states(4))
    with pytest.raises(IndexError, match=f"checkpoint {t} of 4"):
        trajectory[t]


def test_a_checkpoint_is_a_copy_of_the_appended_state(empty):
    state = states(1)[0]
    trajectory = fill(empty, [state])
    before = state["weight"].clone()
    state["weight"].zero_()
    assert torch.equal(trajectory[0]["weight"], before)


def test_parameters_that_require_gradients_can_be_appended(empty):
    parameter = torch.nn.Parameter(torch.ones(2))
    empty.append({"weight": parameter}, 0, 0.0)
    assert torch.equal(empty[0]["weight"], torch.ones(2))
    assert not empty[0]["weight"].requires_grad


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 6), st.booleans())
def test_appending_after_truncating_continues_after_the_remaining_checkpoints(tmp_path_factory, count, keep, on_disk):
    folder = tmp_path_factory.mktemp("trajectory") if on_disk else None
    appended, more = states(count), states(2, seed=1)
    trajectory = fill(Trajectory(folder), appended)
    trajectory.truncate(keep)
    for state in more:
        trajectory.append(state, 99, 9.9)
    expected = appended[:keep] + more
    assert all(same_tensors(one, other) for one, other in zip(trajectory, expected, strict=True))
    assert len(trajectory.steps) == len(trajectory.cumulative_rates) == len(expected)
    if folder is not None:
        assert len(Trajectory.open(folder)) == len(expected)


def test_an_opened_trajectory_equals_the_saved_one(empty, tmp_path):
    trajectory = fill(empty, states(3))
    copied = trajectory.save(tmp_path / "copy")
    for again in (copied, Trajectory.open(tmp_path / "copy"), Trajectory.open(str(tmp_path / "copy"))):
        assert again.steps == trajectory.steps
        assert again.cumulative_rates == trajectory.cumulative_rates
        assert all(same_tensors(one, other) for one, other in zip(again, trajectory, strict=True))


def test_saving_over_a_longer_trajectory_deletes_its_checkpoints(tmp_path):
    fill(Trajectory(tmp_path), states(5))
    fill(Trajectory(), states(2, seed=1)).save(tmp_path)
    assert len(Trajectory.open(tmp_path)) == 2


def test_a_checkpoint_on_disk_is_read_only_when_it_is_used(tmp_path, refused):
    appended = states(3)
    fill(Trajectory(tmp_path), appended)
    trajectory = Trajectory.open(tmp_path)
    (tmp_path / "00001.safetensors").write_bytes(b"damaged")
    assert same_tensors(trajectory[0], appended[0])
    assert same_tensors(trajectory[2], appended[2])
    with refused("00001.safetensors"):
        trajectory[1]
    (tmp_path / "00001.safetensors").unlink()
    with refused("00001.safetensors"):
        trajectory[1]


def test_a_truncated_checkpoint_is_refused(tmp_path, refused):
    fill(Trajectory(tmp_path), states(3))
    path = tmp_path / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with refused("00001.safetensors"):
        list(Trajectory.open(tmp_path))


@pytest.mark.parametrize("metadata", [{}, {"step": 1}, {"step": "x", "length": 1}])
def test_a_file_without_the_metadata_of_a_checkpoint_is_refused(metadata, tmp_path, refused):
    write_tensors(tmp_path / "00000.safetensors", states(1)[0], metadata)
    with refused("00000.safetensors"):
        Trajectory.open(tmp_path)


@pytest.mark.parametrize("count", [0, 1])
def test_a_trajectory_of_fewer_than_two_checkpoints_is_refused(count, refused):
    with refused("two checkpoints"):
        fill(Trajectory(), states(count)).check()
    fill(Trajectory(), states(2)).check()


def test_a_missing_folder_opens_as_an_empty_trajectory(tmp_path):
    assert len(Trajectory.open(tmp_path / "missing")) == 0
