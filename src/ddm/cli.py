"""The command line: ``ddm demo``, ``fit``, ``attribute``, ``trace``, ``unlearn``, ``audit``.

With ``--json`` standard output holds one JSON document and nothing else; progress and notes go to standard error. What
the user got wrong is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import ddm
from ddm import demo as demos
from ddm import networks, plots
from ddm import run as runs
from ddm.datamodel import DistilledDatamodel, changed
from ddm.datasets.samples import Samples
from ddm.errors import InputError
from ddm.files import hash_of, read_json
from ddm.matching import Settings, paper
from ddm.recipe import Recipe
from ddm.run import Config
from ddm.store import EXACT
from ddm.target import accuracy_of
from ddm.words import console, describe_audit, describe_run, describe_trace, effects_table, shares_table, trust

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Of the click that typer uses, which newer ones carry with them."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Which of my training data made the model do this, and what would it be without them?",
)

Run = Annotated[Path, typer.Argument(help="Folder of a run that ddm fit made.", show_default=False)]
Root = Annotated[str | None, typer.Option(help="Folder with the dataset's files.")]
DataName = Annotated[str | None, typer.Option("--data", help="Dataset of a run that was saved from Python.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]
Index = Annotated[list[int] | None, typer.Option(help="Sample of the split; repeat it for a batch.")]
ObjectiveName = Annotated[str, typer.Option(help="What is measured: prediction, correctness, accuracy, f1 …")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run is kept.")] = Path("runs/demo"),
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train, distil, attribute and trace on scikit-learn's digits, and tell what came out."""
    found = demos.demo(out, _with_seed(Config(recipe=Recipe(epochs=20, lr=0.05), clusters=5, device=device), seed))
    if as_json:
        _print_json(found)
    else:
        demos.tell(console(), found)


@app.command()
def fit(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="digits, mnist, cifar10, …, folder:PATH, npz:PATH or hf:NAME.")
    ] = "digits",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/DATA.")] = None,
    root: Root = None,
    limit: Annotated[int | None, typer.Option(help="At most this many samples in each split.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    model: Annotated[str, typer.Option(help="convnet, alexnet, resnet18ap or simplevit.")] = "convnet",
    option: Annotated[list[str] | None, typer.Option(help="Of the network, e.g. width=64; repeat it.")] = None,
    preset: Annotated[str | None, typer.Option(help="paper: the paper's settings for this data and model.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the training.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a training step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of the optimiser.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, cosine or step.")] = None,
    augment: Annotated[str | None, typer.Option(help="none, flip, shift or flip-shift, in training.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints; default an epoch.")] = None,
    clusters: Annotated[int, typer.Option(help="Clusters a class.")] = 10,
    partition: Annotated[str, typer.Option(help="kmeans, class or sequence.")] = "kmeans",
    groups: Annotated[Path | None, typer.Option(help="Your own groups: a line for each training sample.")] = None,
    features: Annotated[str | None, typer.Option(help="hf:NAME clusters on a pre-trained network's features.")] = None,
    matching: Annotated[str | None, typer.Option(help="response, reverse or forward.")] = None,
    setting: Annotated[list[str] | None, typer.Option(help="Of the matching, e.g. bank=200; repeat it.")] = None,
    config: Annotated[Path | None, typer.Option(help="Replay a config.json instead of all the above.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a target, cluster its training set and distil each group's influence: once for all questions."""
    if config is not None:
        wanted = Config.from_dict(read_json(config))
        _only(context, ("config", "root", "out", "device", "as_json"))
        wanted = replace(wanted, root=root or wanted.root, device=device)
    else:
        recipe, settings = _preset(preset, data, model)
        changes: dict[str, Any] = {
            "epochs": epochs,
            "lr": lr,
            "batch_size": batch_size,
            "optimizer": optimizer,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "schedule": schedule,
            "augment": augment,
            "checkpoint_every": checkpoint_every,
        }
        recipe = replace(recipe, **{name: value for name, value in changes.items() if value is not None})
        settings = changed(settings, _pairs(setting, "setting") | ({"matching": matching} if matching else {}))
        wanted = Config(
            data=data,
            root=root,
            limit=limit,
            size=size,
            model=model,
            options=_pairs(option, "option"),
            recipe=recipe,
            partition=partition,
            clusters=clusters,
            groups=str(groups) if groups is not None else None,
            groups_hash=hash_of(groups) if groups is not None else None,
            features=features,
            settings=settings,
            device=device,
        )
        wanted = _with_seed(wanted, seed, given=_pairs(setting, "setting"))
    out = out or Path("runs") / wanted.data.replace(":", "-").replace("/", "-")
    datamodel, _, facts = runs.fit(wanted, out)
    if as_json:
        _print_json(facts | {"run": str(out)} | _audited(datamodel))
    else:
        describe_run(console(), facts, str(out))
        console().print(trust(datamodel.audited))


@app.command()
def attribute(
    run: Run,
    objective: ObjectiveName = "prediction",
    index: Index = None,
    split: Split = "test",
    output: Annotated[str | None, typer.Option(help="Class in focus, for objectives with a value a class.")] = None,
    level: Annotated[str, typer.Option(help="cluster or class.")] = "cluster",
    design: Annotated[str, typer.Option(help="leave-one-out or random.")] = "leave-one-out",
    perturbations: Annotated[int | None, typer.Option(help="Of a random design; default 4 a group.")] = None,
    beta: Annotated[str, typer.Option(help="Weight of a perturbation: uniform or removed.")] = "uniform",
    fast: Annotated[
        bool, typer.Option("--fast", help="One Jacobian instead of a model a group: the same for small effects.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Groups to show.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Write the picture here (png, svg, pdf).")] = None,
    save: Annotated[Path | None, typer.Option(help="Write all effects here (json or csv).")] = None,
    data: DataName = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """What removing each group does to a behaviour: on a sample, a batch, or a whole split."""
    if plot is not None:
        plots.picture_kind(plot)
    datamodel, question = _open(run, data, root, device, split, index)
    found = datamodel.attribute(
        question, objective, level=level, design=design, perturbations=perturbations, beta=beta, seed=seed, fast=fast
    )
    if output is not None:
        found = found.on(output)
    if save is not None:
        found.save(save)
    if plot is not None:
        plots.save(found.plot(top), plot)
    if as_json:
        _print_json(found.to_dict() | _audited(datamodel))
    else:
        console().print(effects_table(found, top))
        console().print(trust(datamodel.audited))


@app.command()
def trace(
    run: Run,
    objective: ObjectiveName = "prediction",
    index: Index = None,
    split: Split = "test",
    full: Annotated[bool, typer.Option("--full", help="Search every group instead of class first.")] = False,
    verify: Annotated[int, typer.Option(min=0, help="Really retrain without so many of the best candidates.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Show so many training samples of the group found.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the picture of these samples here.")] = None,
    data: DataName = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """The class, then the cluster, then the samples most responsible for a behaviour."""
    if plot is not None:
        plots.picture_kind(plot)
    datamodel, question = _open(run, data, root, device, split, index)
    found = datamodel.trace(question, objective, full=full, verify=verify, directory=run / EXACT)
    shown = samples or (10 if plot is not None else 0)
    shares = datamodel.shares(question, found.group, objective) if shown else None
    if shares is not None and plot is not None and datamodel.samples is not None:
        plots.save(shares.plot(datamodel.samples, shown), plot)
    if as_json:
        _print_json(found.to_dict() | ({"shares": shares.to_dict()} if shares else {}) | _audited(datamodel))
        return
    describe_trace(console(), found)
    if shares is not None:
        console().print(shares_table(shares, shown))
    console().print(trust(datamodel.audited))


@app.command()
def unlearn(
    run: Run,
    remove: Annotated[
        list[str], typer.Option(help="Group to remove, by name or number; repeat it.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Where the model is written.")] = Path("counterfactual.safetensors"),
    data: DataName = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """The model as it would be without some groups, as a file that ddm.networks.load reads."""
    datamodel, dataset = runs.open_run(run, name=data, root=root, device=device)
    network = datamodel.counterfactual(remove)
    networks.save(network, out)
    facts: dict[str, Any] = {
        "removed": [datamodel.partition.names[datamodel.partition.index(group)] for group in remove],
        "model": str(out),
        "accuracy": {
            split: {
                "before": datamodel.target.accuracy(dataset.split(split)),
                "after": accuracy_of(network, dataset.split(split)),
            }
            for split in ("validation", "test")
        },
    }
    if as_json:
        _print_json(facts | _audited(datamodel))
        return
    say = console().print
    say(f"Without {', '.join(facts['removed'])}:")
    for split, value in facts["accuracy"].items():
        say(f"  {split} accuracy {value['before']:.2%} → {value['after']:.2%}")
    say(f"Model: {out} (read it with ddm.networks.load)")
    say(trust(datamodel.audited))


@app.command()
def audit(
    run: Run,
    retrain: Annotated[int, typer.Option(min=2, help="Groups to retrain without.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Batch orders of each retraining, the target's own first.")] = 2,
    unions: Annotated[
        int | None, typer.Option(min=0, help="Unions of half of the groups to retrain without; default as many.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the picture here (png, svg, pdf).")] = None,
    data: DataName = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """How far a run can be trusted: its answers against really retraining without some groups."""
    if plot is not None:
        plots.picture_kind(plot)
    datamodel, dataset = runs.open_run(run, name=data, root=root, device=device)
    found = runs.audit(run, datamodel, dataset, retrain=retrain, unions=unions, seeds=seeds, seed=seed)
    if plot is not None:
        plots.save(found.plot(), plot)
    if as_json:
        _print_json(found.to_dict())
    else:
        describe_audit(console(), found)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="fidelity, ablation, comparison, … (a wrong name lists them all).")],
    data: Annotated[str, typer.Option(help="digits, mnist, cifar10, …")] = "digits",
    root: Root = None,
    model: Annotated[str, typer.Option(help="convnet, alexnet, resnet18ap or simplevit.")] = "convnet",
    limit: Annotated[int | None, typer.Option(help="At most this many samples in each split.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    clusters: Annotated[int | None, typer.Option(help="Clusters a class.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Batch orders of each retraining.")] = None,
    tests: Annotated[int | None, typer.Option(help="Test samples that are asked about.")] = None,
    unions: Annotated[int | None, typer.Option(help="Unions of half of the groups to retrain without.")] = None,
    scale: Annotated[
        str, typer.Option(help="quick (under 30 minutes on 2 cores), paper (its full settings) or tiny.")
    ] = "quick",
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default benchmarks/DATA.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make a table or figure of the paper, or one of ours, beside the alternatives and real retraining."""
    from ddm import bench as benches

    setup = benches.preset(data, model, scale)
    given = {
        "limit": limit,
        "size": size,
        "clusters": clusters,
        "orders": seeds,
        "tests": tests,
        "unions": unions,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    recipe = setup.recipe if epochs is None else replace(setup.recipe, epochs=epochs)
    changes |= {
        "root": root,
        "seed": seed,
        "recipe": replace(recipe, seed=seed),
        "settings": replace(setup.settings, seed=seed),
    }
    setup = replace(setup, **changes)
    out = out or Path("benchmarks") / data.replace(":", "-").replace("/", "-")
    found = benches.run(name, setup, out, _command(root))
    if as_json:
        _print_json(found)
    else:
        console().print((out / f"{name}.md").read_text(encoding="utf-8"))
        console().print(f"Files: {out / name}.json, {out / name}.md")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Which of my training data made the model do this, and what would it be without them?"""
    if show:
        typer.echo(ddm.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user got wrong becomes one sentence and exit code 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"note: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except _UsageError as error:
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if not message:  # the help was asked for by saying nothing
            sys.exit(2)
        _fail(f"{message}. Try --help.")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        _fail(f"{error.strerror or error}: '{error.filename}'." if error.filename else f"{error}.")
    if code == 130:
        print("ddm: interrupted; the same command goes on where this one stopped.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> NoReturn:
    print(f"ddm: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _command(root: str | None) -> str:
    """What was typed, with the dataset's folder left to whoever types it again."""
    words = ["data" if word == root else word for word in sys.argv[1:]]
    return shlex.join(["ddm", *words])


def _audited(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """What an audit found, for JSON documents; None without one."""
    return {"audit": datamodel.audited.to_dict() if datamodel.audited is not None else None}


def _open(
    run: Path, data: str | None, root: str | None, device: str, split: str, index: list[int] | None
) -> tuple[DistilledDatamodel, Samples]:
    """The datamodel of a run and the samples that are asked about."""
    datamodel, dataset = runs.open_run(run, name=data, root=root, device=device)
    samples = dataset.split(split)
    if not index:
        return datamodel, samples
    for position in index:
        if not 0 <= position < len(samples):
            raise InputError(f"there is no sample {position}: the {split} split has 0 to {len(samples) - 1}.")
    return datamodel, samples[index]


def _only(context: typer.Context, allowed: tuple[str, ...]) -> None:
    """Refuse options beside ``--config`` that it decides itself."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--config decides {name.replace('_', '-')} itself: leave it out.")


def _with_seed(config: Config, seed: int, given: dict[str, Any] | None = None) -> Config:
    """One seed for θ_0, batch order and synsets, unless one is given apart; the data's splits do not depend on it."""
    return replace(
        config,
        options={"seed": seed, **config.options},
        recipe=replace(config.recipe, seed=seed),
        settings=replace(config.settings, seed=(given or {}).get("seed", seed)),
    )


def _preset(preset: str | None, data: str, model: str) -> tuple[Recipe, Settings]:
    if preset is None:
        return Recipe(), Settings()
    if preset == "paper":
        return paper(data, model)
    raise InputError(f"there is no preset '{preset}': use paper, or none.")


def _pairs(given: list[str] | None, what: str) -> dict[str, Any]:
    """``name=value`` options as a dictionary, numbers read as numbers."""
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--{what} takes name=value, not '{text}'.")
        name = name.replace("-", "_")
        found[name] = None if (name, value) == ("step_size", "none") else _value(value)
    return found


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    main()
