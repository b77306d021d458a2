"""The network of a run: a built-in one is rebuilt from the manifest; the user's own must be given, and is checked."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddm import networks
from ddm.errors import InputError
from ddm.networks.state import State, architecture, check_state, shapes_of
from ddm.runs.manifest import check_trained, factory_of


def build_by_factory(manifest: Mapping[str, Any], given: str | None, run: Path) -> nn.Module | None:
    """The network that the run's factory builds, if the user names that factory; None without a factory."""
    stored = factory_of(manifest)
    if given is None:
        if stored is None or manifest["spec"] is not None:
            return None
        raise InputError(
            f"the run '{run}' uses a network of your own, which '{stored.name}' builds: give that name again as "
            f"factory='{stored.name}' (--factory {stored.name}), and ddm imports this code."
        )
    if stored is None:
        raise InputError(f"the run '{run}' names no factory: leave it out{_OR_NETWORK[manifest['spec'] is None]}.")
    if given != stored.name:
        raise InputError(f"the run '{run}' was saved with the factory '{stored.name}': give that one.")
    return stored.build()


_OR_NETWORK = {True: ", and give the network itself as network=…", False: ""}


def rebuild_network(manifest: Mapping[str, Any], network: nn.Module | None, run: Path) -> nn.Module:
    """A copy of the given network, or the built-in one that the manifest names; frozen parameters stay frozen."""
    if network is None:
        if manifest["spec"] is None:
            raise InputError(
                f"the run '{run}' uses a network of your own and names no factory of it: give the network as network=…."
            )
        network = networks.from_spec(manifest["spec"])
    network = copy.deepcopy(network).to(getattr(torch, manifest["dtype"]))
    parameters = dict(network.named_parameters())
    check_trained(run, manifest, parameters)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in manifest.get("retrained", manifest["trained"]))
    return network


def check_network(manifest: Mapping[str, Any], network: nn.Module | None, state: State, run: Path) -> None:
    """Refuse a network or a checkpoint that does not fit the manifest.

    A built-in network is created without memory for its parameters, because a file declares how large it is.
    """
    if network is None and manifest["spec"] is not None:
        network = networks.outline(manifest["spec"])
    if network is None:
        return
    structure = _structure(getattr(network, "spec", None))
    if architecture(network) != manifest["network"] or structure != _structure(manifest["spec"]):
        raise InputError(f"the run '{run}' was made with another network: {_difference(network, manifest)}.")
    check_state(state, shapes_of(network), f"the trajectory in '{run}'")


def _difference(network: nn.Module, manifest: Mapping[str, Any]) -> str:
    """The first difference between a network and the network that a manifest describes."""
    here, there = (re.split(r": |(?<=\]) ", text) for text in (architecture(network), manifest["network"]))
    for given, stored in itertools.zip_longest(here, there, fillvalue="nothing"):
        if given != stored:
            return f"{stored} there, {given} in the one given"
    spec, known = _structure(getattr(network, "spec", None)) or {}, _structure(manifest["spec"]) or {}
    names = [name for name in {**spec, **known} if spec.get(name) != known.get(name)]
    return ", ".join(f"{name} is {known.get(name)} there, {spec.get(name)} in the one given" for name in names)


def _structure(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """The options of a built-in network, without those that only choose its initial weights."""
    return spec and {name: value for name, value in spec.items() if name not in ("init", "seed")}
