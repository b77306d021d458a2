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
    from ddm.answers.scores import score
    from ddm.cli.text import score_change
    from ddm.compute.terminal import console
    from ddm.runs import run as runs

    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    network = datamodel.counterfactual(remove)
    own = datamodel.factory is not None
    (networks.save_weights if own else networks.save)(network, out)
    task, splits = datamodel.target.task, ("validation", "test")
    before, after = (
        {split: score(each, dataset.split(split), task) for split in splits}
        for each in (datamodel.target.network, network)
    )
    scores = {
        name: {split: {"before": before[split][name], "after": after[split][name]} for split in splits}
        for name in before["test"]
    }
    facts: dict[str, Any] = {
        "removed": [datamodel.partition.names[datamodel.partition.index(group)] for group in remove],
        "model": str(out),
        "beyond": datamodel.beyond(remove),
        **scores,
    }
    if as_json:
        print_json(facts | audited_part(datamodel))
        return
    say = console().print
    say(f"Without {', '.join(facts['removed'])}:")
    for name, values in scores.items():
        for split, value in values.items():
            say(f"  {split} {score_change(name, value['before'], value['after'])}")
    how = "its weights: load_state_dict(safetensors.torch.load_file(…))" if own else "load it with ddm.networks.load"
    say(f"Model: {out} ({how}).")
    say(datamodel.trust)
