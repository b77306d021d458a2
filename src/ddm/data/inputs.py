"""Inputs: what a network takes for a few samples, whatever that is.

A batch of pictures or table rows is one tensor ``(b, ...)`` and stays one. Everything else is ``Inputs``: any nesting
of dicts, tuples and lists of tensors whose first dimension is the sample, such as the token ids and the attention mask
of a text. ``Inputs`` is sliced, split and moved like a tensor, so code that handles batches need not ask which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ddm.errors import InputError


class Inputs:
    """A nesting of tensors ``(b, ...)`` that share their first dimension.

    tree: the nesting. A network gets a dict as keyword arguments, a tuple or list as arguments, a tensor as it is
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    @property
    def leaves(self) -> list[Tensor]:
        """All tensors of the nesting."""
        return pytree.tree_leaves(self.tree)

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same nesting with every tensor changed."""
        return Inputs(pytree.tree_map(change, self.tree))

    def named_leaves(self) -> dict[str, Tensor]:
        """Every tensor by its path in the nesting, such as ``input_ids`` or ``0.mask``."""
        pairs, _ = pytree.tree_flatten_with_path(self.tree)
        return {".".join(_word(key) for key in path): leaf for path, leaf in pairs}

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, index: Any) -> Inputs:
        return self.map(lambda leaf: leaf[index])

    def __iter__(self) -> Iterator[Inputs]:
        return (self[row] for row in range(len(self)))

    def split(self, size: int) -> list[Inputs]:
        """Parts of at most ``size`` samples."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def to(self, *where: Any) -> Inputs:
        """Move to a device. Only tensors of floating-point numbers also take a type: ids and masks keep theirs."""
        device = next((each for each in map(_device, where) if each is not None), None)

        def move(leaf: Tensor) -> Tensor:
            if leaf.is_floating_point():
                return leaf.to(*where)
            return leaf if device is None else leaf.to(device)

        return self.map(move)

    def cpu(self) -> Inputs:
        """The same on the CPU."""
        return self.map(Tensor.cpu)

    def clone(self) -> Inputs:
        """A copy."""
        return self.map(Tensor.clone)

    def isfinite(self) -> Tensor:
        """False if a number is NaN or infinite ``()``."""
        return torch.tensor(all(bool(leaf.isfinite().all()) for leaf in self.leaves))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def shapes(self) -> str:
        """The shape of one sample's tensors, for messages: ``input_ids 128, attention_mask 128``."""
        parts = self.named_leaves().items()
        return ", ".join(f"{name} {'×'.join(map(str, leaf.shape[1:])) or '1'}".strip() for name, leaf in parts)

    def __repr__(self) -> str:
        return f"Inputs of {len(self):,} samples: {self.shapes}"


def _word(key: Any) -> str:
    """A step of a path: the key of a dict, or the position in a tuple."""
    return str(getattr(key, "key", getattr(key, "idx", key)))


def _device(where: Any) -> Any:
    """The device that an argument of ``to`` names; None if it names a type alone."""
    if isinstance(where, Tensor):
        return where.device
    return where if isinstance(where, (str, torch.device)) else None


pytree.register_pytree_node(Inputs, lambda one: ([one.tree], None), lambda children, _: Inputs(next(iter(children))))

X = Tensor | Inputs
"""Inputs of a few samples: one tensor ``(b, ...)`` of floating-point numbers, or ``Inputs``."""


def wrap(tree: Any) -> X:
    """A batch as users hold it: a floating-point tensor stays as it is, all else becomes ``Inputs``."""
    if isinstance(tree, Inputs) or (isinstance(tree, Tensor) and tree.is_floating_point()):
        return tree
    tree = dict(tree) if isinstance(tree, Mapping) else tree  # of transformers: a BatchEncoding
    leaves = pytree.tree_leaves(tree)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        raise InputError("a batch must be a nesting of tensors with one row for each sample: give a collate_fn.")
    if len({len(leaf) for leaf in leaves}) > 1:
        raise InputError(
            f"the tensors of a batch have {', '.join(str(len(leaf)) for leaf in leaves)} rows: give one row for each "
            "sample in all of them."
        )
    return Inputs(tree)


def equal(one: X, other: X) -> bool:
    """True if two batches are the same, with the same types and on the same device."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        pairs: list[tuple[object, object]] = [(one, other)]
    else:
        known, found = one.named_leaves(), other.named_leaves()
        if known.keys() != found.keys():
            return False
        pairs = [(leaf, found[name]) for name, leaf in known.items()]
    return all(
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        and torch.equal(a, b)
        for a, b in pairs
    )


_AT_ONCE = 2**25
"""Maximum bytes of inputs that a network processes at once. What its layers compute is many times as large."""


def at_once(most: int, bytes_each: int) -> int:
    """Samples of ``bytes_each`` that a network processes at once: ``most``, or fewer if they are large."""
    return max(1, min(most, _AT_ONCE // max(1, bytes_each)))


def parts(x: X, most: int) -> Sequence[X]:
    """Parts of a batch that a network processes one after another."""
    return x.split(at_once(most, x.nbytes // max(1, len(x))))


def unwrap(x: X) -> Any:
    """The batch as users hold it."""
    return x.tree if isinstance(x, Inputs) else x


def join(parts: Sequence[X]) -> X:
    """All samples of some batches ``(b, ...)`` in one. Shorter sequences are padded with zeros on the right."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))  # type: ignore[arg-type]
    columns = zip(*(pytree.tree_leaves(unwrap(part)) for part in parts), strict=True)
    spec = pytree.tree_structure(unwrap(parts[0]))
    return Inputs(pytree.tree_unflatten([_join_padded(column) for column in columns], spec))


def _join_padded(parts: Sequence[Tensor]) -> Tensor:
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    largest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    joined = parts[0].new_zeros(sum(map(len, parts)), *largest)
    start = 0
    for part in parts:
        joined[(slice(start, start + len(part)), *(slice(size) for size in part.shape[1:]))] = part
        start += len(part)
    return joined


def call(network: nn.Module, x: X) -> Any:
    """Whatever the network returns for a batch."""
    args, kwargs = arguments(x)
    try:
        return network(*args, **kwargs)
    except IndexError as error:
        raise InputError(
            f"the inputs hold an id that the network does not know ({error}): use the tokenizer that it was made "
            "for, or build it with a larger vocabulary."
        ) from None


def arguments(x: X) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """How a network gets a batch: dicts become keyword arguments, tuples and lists arguments."""
    tree = unwrap(x)
    if isinstance(tree, Mapping):
        return (), tree
    return (tree if isinstance(tree, (tuple, list)) else (tree,)), {}


def skeleton(x: Inputs) -> Any:
    """The nesting as JSON values, with the name of each tensor in its place."""
    spec, names = pytree.tree_structure(x.tree), list(x.named_leaves())
    return pytree.tree_unflatten(names, spec)


def rebuild(form: Any, tensor: Callable[[str], Tensor]) -> Inputs:
    """The nesting that ``skeleton`` described, with ``tensor(name)`` in place of each name."""
    if isinstance(form, str):
        return Inputs(tensor(form))
    if isinstance(form, Mapping):
        return Inputs({str(key): rebuild(part, tensor).tree for key, part in form.items()})
    if isinstance(form, (list, tuple)):
        return Inputs(tuple(rebuild(part, tensor).tree for part in form))
    raise ValueError("the form of the inputs is damaged")


def tensor_of(x: object) -> Tensor:
    """Inputs that are one tensor, such as pictures; refuse any others."""
    if not isinstance(x, Tensor):
        raise InputError("this needs inputs that are one tensor of numbers, such as pictures or rows of a table.")
    return x
