"""A trajectory returns the appended checkpoints, from memory or disk, and reads a file only when it is used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors

from ddm import Trajectory
from ddm.compute.tensors import write_tensors


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


def test_the_learning_rates_of_each_parameter_are_stored_with_the_last_checkpoint(tmp_path):
    trajectory = Trajectory(tmp_path / "one")
    for number, state in enumerate(states(3)):
        trajectory.append(state, number, 0.1 * number, {"weight": torch.full((3, 2), float(number))})
    for one in (trajectory, Trajectory.open(tmp_path / "one"), trajectory.save(tmp_path / "two")):
        assert float(one.parameter_rates["weight"].mean()) == 2.0
    assert fill(Trajectory(tmp_path / "one"), states(2)).parameter_rates is None  # another training replaces it
    assert Trajectory.open(tmp_path / "one").parameter_rates is None


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
