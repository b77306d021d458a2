"""``ddm unlearn``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ddm.cli.options import AsJson, DataName, Device, FactoryName, Root, Run, audited_part, output_path, print_json


def unlearn(
    run: Run,
    remove: Annotated[
        list[str], typer.Option(help="Group to remove, by name or number; repeat for several.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(parser=output_path, metavar="PATH", help="File for the model.")] = Path(
        "counterfactual.safetensors"
    ),
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Write the model as it would be without some groups, as a file for ddm.networks.load (or load_state_dict)."""
    from ddm import networks
    from ddm.compute.terminal import console
    from ddm.runs import run as runs
    from ddm.training.target import accuracy_of

    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    network = datamodel.counterfactual(remove)
    own = datamodel.factory is not None
    (networks.save_weights if own else networks.save)(network, out)
    facts: dict[str, Any] = {
        "removed": [datamodel.partition.names[datamodel.partition.index(group)] for group in remove],
        "model": str(out),
        "beyond": datamodel.beyond(remove),
        "accuracy": {
            split: {
                "before": datamodel.target.accuracy(dataset.split(split)),
                "after": accuracy_of(network, dataset.split(split)),
            }
            for split in ("validation", "test")
        },
    }
    if as_json:
        print_json(facts | audited_part(datamodel))
        return
    say = console().print
    say(f"Without {', '.join(facts['removed'])}:")
    for split, value in facts["accuracy"].items():
        change = 100 * (value["after"] - value["before"])
        say(f"  {split} accuracy {value['before']:.1%} → {value['after']:.1%} ({change:+.1f} points)")
    how = "its weights: load_state_dict(safetensors.torch.load_file(…))" if own else "load it with ddm.networks.load"
    say(f"Model: {out} ({how}).")
    say(datamodel.trust)
