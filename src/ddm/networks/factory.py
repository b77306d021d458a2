"""A factory: the name of the code that builds a network of the user's own, so that a saved run can be opened later.

A run stores the name and its arguments, never code. The code is imported only when the user gives the same name again.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ddm.errors import InputError
from ddm.networks.state import architecture

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

FactoryLike = str | tuple[str, Mapping[str, Any]]
"""``"package.module:make"``, or that with keyword arguments: ``("package.module:Net", {"width": 8})``."""


@dataclass(frozen=True)
class Factory:
    """A function or class that returns the network.

    name:    ``package.module:make``
    options: its keyword arguments, JSON values
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Any) -> Factory:
        """A factory as users give it. Nothing is imported."""
        name, options = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, {})
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError("a factory is named as 'package.module:make': give the function or class by that name.")
        try:
            same = isinstance(options, Mapping) and json.loads(json.dumps(options)) == options
        except (TypeError, ValueError):
            same = False
        if not same:
            raise InputError(f"the arguments of '{name}' must be a dict of JSON values: give numbers, words and lists.")
        return cls(name, dict(options))

    def to_json(self) -> list[Any]:
        """As JSON values, which ``parse`` reads."""
        return [self.name, dict(self.options)]

    def build(self) -> nn.Module:
        """Import the code and build the network."""
        module, _, path = self.name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"'{self.name}' cannot be imported ({error}): start from the folder that holds it, or install it."
            ) from None
        try:
            with torch.random.fork_rng():
                network = found(**self.options)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"'{self.name}' did not build the network ({reason}): give its arguments too.") from error
        if not isinstance(network, nn.Module):
            raise InputError(
                f"'{self.name}' returned a {type(network).__name__}: name a function that returns a module."
            )
        return network


def checked_factory(given: FactoryLike, network: nn.Module) -> Factory:
    """The factory, after it has built a network like this one."""
    factory = Factory.parse(given)
    if getattr(network, "spec", None) is not None:
        raise InputError("this network is one of ddm's own, which every run can rebuild: leave out the factory.")
    if architecture(factory.build()) != architecture(network):
        raise InputError(f"'{factory.name}' builds another network than this one: give the arguments it was made with.")
    return factory
