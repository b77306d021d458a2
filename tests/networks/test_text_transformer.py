"""The network for texts: padding does not matter, and `torch.func` differentiates it."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn import functional as F

from ddm.data.inputs import Inputs
from ddm.errors import InputError
from ddm.networks import TextTransformer, initialise, load, penultimate, save
from ddm.networks.weighted_sum import WeightedSum

from .conftest import VOCABULARY

T, CLASSES = 9, 3
LENGTHS = [7, 4, 1, 6]


def network(seed=0, dtype=torch.float64, **options):
    options = {"vocabulary": VOCABULARY, "width": 8, "heads": 2, **options}
    return TextTransformer((T,), CLASSES, seed=seed, **options).to(dtype).eval()


@pytest.fixture
def batch():
    """Token ids (4, 7), their mask, and labels (4,). Random ids stand at the padding."""
    ids = torch.randint(VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return ids, mask, torch.arange(len(LENGTHS)) % CLASSES


def weights(module):
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def mean_loss(module):
    return lambda theta, ids, mask, y: F.cross_entropy(functional_call(module, theta, (ids, mask)), y)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}")


# --- padding ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
def test_padding_does_not_change_logits(dtype, kind, batch):
    ids, mask, _ = batch
    module = network(dtype=dtype)
    alone = torch.cat([module(text[None, :length]) for text, length in zip(ids, LENGTHS, strict=True)])
    assert alone.dtype == dtype
    torch.testing.assert_close(module(ids, mask.to(kind)), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(module(F.pad(ids, (0, 2)), F.pad(mask, (0, 2))), alone, rtol=0, atol=1e-5)


def test_without_a_mask_every_token_counts(batch):
    ids, mask, _ = batch
    module = network()
    torch.testing.assert_close(module(ids), module(input_ids=ids, attention_mask=torch.ones_like(ids)))
    assert not torch.allclose(module(ids), module(ids, mask))


def test_a_text_without_tokens_has_finite_logits_and_gradients(batch):
    ids, mask, y = batch
    module = network()
    empty = torch.zeros_like(mask)
    torch.testing.assert_close(module(ids, empty), module.classifier.bias.expand(len(ids), CLASSES))
    gradient = grad(mean_loss(module))(weights(module), ids, empty, y)
    assert all(value.isfinite().all() for value in gradient.values())


def test_the_order_of_tokens_matters(batch):
    ids, _, _ = batch
    assert not torch.allclose(network()(ids), network()(ids.flip(1)), atol=1e-3)


# --- torch.func ---


@pytest.fixture(autouse=True)
def _no_slow_path(recwarn):
    """Refuses torch's warning about a missing batching rule: torch would use a slow loop."""
    yield
    assert not [warning for warning in recwarn if "performance drop" in str(warning.message)]


def test_vmap_over_weights_equals_a_loop(batch):
    ids, mask, y = batch
    modules = [network(seed) for seed in range(3)]
    theta, _ = stack_module_state(modules)
    theta = {name: value.detach() for name, value in theta.items()}
    logits = vmap(lambda theta: functional_call(modules[0], theta, (ids, mask)))(theta)
    torch.testing.assert_close(logits, torch.stack([module(ids, mask) for module in modules]))
    loss = mean_loss(modules[0])
    together = vmap(grad(loss), in_dims=(0, None, None, None))(theta, ids, mask, y)
    alone = [grad(loss)(weights(module), ids, mask, y) for module in modules]
    assert_equal(together, {name: torch.stack([one[name] for one in alone]) for name in together})


def test_vmap_over_samples_equals_a_loop(batch):
    module, rows = network(), range(len(LENGTHS))
    gradient = grad(mean_loss(module))
    together = vmap(lambda *one: gradient(weights(module), *(part[None] for part in one)))(*batch)
    alone = [gradient(weights(module), *(part[i : i + 1] for part in batch)) for i in rows]
    assert_equal(together, {name: torch.stack([one[name] for one in alone]) for name in together})


def test_vmap_over_weights_and_samples_equals_a_loop(batch):
    ids, mask, _ = batch
    modules = [network(seed) for seed in range(len(LENGTHS))]
    theta, _ = stack_module_state(modules)
    logits = vmap(lambda theta, *one: functional_call(modules[0], theta, tuple(part[None] for part in one))[0])
    expected = torch.stack([module(ids, mask)[i] for i, module in enumerate(modules)])
    torch.testing.assert_close(logits(theta, ids, mask), expected)


def test_derivatives_forwards_and_backwards_agree(batch):
    ids, mask, _ = batch
    module = network()
    theta = weights(module)
    rng = torch.Generator().manual_seed(1)
    step = {name: torch.randn(value.shape, generator=rng).double() for name, value in theta.items()}

    def logits(theta):
        return functional_call(module, theta, (ids, mask))

    jacobian = jacrev(logits)(theta)
    along = sum((jacobian[name] * step[name]).flatten(2).sum(2) for name in theta)
    torch.testing.assert_close(jvp(logits, (theta,), (step,))[1], along)
    weight = torch.randn(len(ids), CLASSES, generator=rng).double()
    (slope,) = vjp(logits, theta)[1](weight)
    assert_equal(slope, {name: torch.einsum("bl,bl...->...", weight, value) for name, value in jacobian.items()})


def test_second_derivatives_equal_finite_differences(batch):
    module = network()
    theta = weights(module)
    rng = torch.Generator().manual_seed(1)
    step = {name: torch.randn(value.shape, generator=rng).double() for name, value in theta.items()}
    gradient = grad(mean_loss(module))

    def product(theta):
        slope = gradient(theta, *batch)
        return sum((slope[name] * step[name]).sum() for name in slope)

    def moved(size):
        return gradient({name: value + size * step[name] for name, value in theta.items()}, *batch)

    ahead, behind = moved(1e-6), moved(-1e-6)
    curved = grad(product)(theta)
    for name, value in curved.items():
        torch.testing.assert_close(value, (ahead[name] - behind[name]) / 2e-6, rtol=1e-4, atol=1e-6)


# --- training, features and storage ---


def test_it_learns_the_topic_of_texts_with_its_default_learning_rate():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % CLASSES
    ids = 10 * labels[:, None] + torch.randint(15, (60, T), generator=rng)
    module = network(dtype=torch.float32, vocabulary=40, width=64).train()
    optimizer = torch.optim.SGD(module.parameters(), module.learning_rate)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(module(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_dropout_acts_only_in_training(batch):
    ids, mask, _ = batch
    plain, dropping = network(), network(dropout=0.3)
    torch.testing.assert_close(dropping(ids, mask), plain(ids, mask))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert not torch.allclose(dropping.train()(ids, mask), plain(ids, mask))


def test_features_take_the_mask(batch):
    ids, mask, _ = batch
    module = network()
    features = penultimate(module, Inputs({"input_ids": ids, "attention_mask": mask}))
    assert features.shape == (len(ids), 8)
    assert torch.equal(module.classifier(features), module(ids, mask))


def test_a_stored_network_or_weighted_sum_takes_the_mask(batch, tmp_path):
    ids, mask, _ = batch
    other = network()
    initialise(other, "xavier", 1)
    for module in (other, WeightedSum([network(), other], [1.0, -0.5])):
        save(module, tmp_path / "network.safetensors")
        again = load(tmp_path / "network.safetensors")
        assert torch.equal(again(ids, attention_mask=mask), module(ids, mask))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((torch.zeros(2, T),), "int64, not torch.float32: use mlp for tables"),
        ((torch.zeros(2, T, dtype=torch.bool),), "int64"),
        ((torch.zeros(2, T + 1).long(),), f"from 1 to {T}"),
        ((torch.zeros(2, 0).long(),), f"from 1 to {T}"),
        ((torch.zeros(T).long(),), r"\(b, t\)"),
        ((torch.zeros(2, T).long(), torch.ones(2, T - 1)), "attention mask"),
        ((torch.zeros(2, T).long(), torch.ones(T)), "attention mask"),
    ],
)
def test_other_inputs_are_refused(inputs, says):
    with pytest.raises(InputError, match=says) as caught:
        network()(*inputs)
    assert str(caught.value).endswith(".")
