"""``ddm fit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddm.cli.options import (
    AsJson,
    Device,
    EngineName,
    Root,
    Seed,
    audited_part,
    chosen,
    output_path,
    print_json,
    with_seed,
)
from ddm.errors import InputError

if TYPE_CHECKING:
    from ddm.distil import Settings
    from ddm.runs.config import Config
    from ddm.training.recipe import Recipe

_RECIPE = (
    "epochs",
    "lr",
    "batch_size",
    "optimizer",
    "momentum",
    "weight_decay",
    "schedule",
    "augment",
    "checkpoint_every",
    "amp",
    "nesterov",
    "warmup",
    "clip_norm",
)
"""Options that change the recipe."""


def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="Dataset: digits, mnist, cifar10 …, folder:PATH, npz:PATH, csv:PATH, parquet:PATH or hf:NAME."
        ),
    ] = "digits",
    out: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="Folder for the run; default runs/DATA.")
    ] = None,
    root: Root = None,
    limit: Annotated[int | None, typer.Option(help="Maximum samples of each split.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of a table to predict; repeat for several labels of 0 and 1."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="What the label of a table is: classification, multilabel or regression.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table with the text that the network reads.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Hugging Face tokenizer, by name or folder; default: lower-case words."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Maximum tokens of a text; default 128.")] = None,
    group_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table with the group of each row.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column of a table with the name of each row.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of a table that the network must not read; repeat for several."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Network: convnet, alexnet, resnet18ap or simplevit for images, mlp for tables, text-transformer for "
            "texts. Default: convnet, mlp or text-transformer, by the data."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the network, e.g. width=64; repeat for several."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper uses the settings of the paper for this data and model.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; the default depends on --optimizer, for sgd on --model.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per training step.")] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Optimizer: sgd, adam, adamw, nadam, radam, rmsprop or adagrad. Default: adamw for texts and "
            "regressions, else sgd."
        ),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of SGD.")] = None,
    nesterov: Annotated[
        bool | None, typer.Option("--nesterov", help="Nesterov's momentum instead of the usual one.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of the optimizer.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Schedule of the learning rate: constant, cosine or step.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Epochs in which the learning rate grows to --lr.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Maximum norm of the gradient of a step.")] = None,
    augment: Annotated[
        str | None, typer.Option(help="Augmentation in training: none, flip, shift or flip-shift.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints; default one epoch.")] = None,
    amp: Annotated[
        bool | None, typer.Option("--amp", help="Train with automatic mixed precision, in bfloat16.")
    ] = None,
    clusters: Annotated[int, typer.Option(help="Clusters per class.")] = 10,
    partition: Annotated[str, typer.Option(help="How to make groups: kmeans, class or sequence.")] = "kmeans",
    groups: Annotated[
        Path | None, typer.Option(help="File with your own groups: one line per training sample.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="hf:NAME clusters the features of a pre-trained network.")
    ] = None,
    matching: Annotated[str | None, typer.Option(help="How to distil: response, reverse or forward.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Setting of the matching, e.g. bank=200; repeat for several."),
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="Start from noise and clip gradients, so that the synset reveals less of single samples."
        ),
    ] = False,
    no_synset: Annotated[
        bool, typer.Option("--no-synset", help="Only keep the responses; ddm distil makes the synset later.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Replay this config.json instead of the options above.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    engine: EngineName = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only estimate time, memory and disk space.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model, split its training set into groups and distil the influence of each group."""
    from ddm.cli.text import describe_run
    from ddm.compute.files import hash_file
    from ddm.compute.terminal import console
    from ddm.runs import run as runs
    from ddm.runs.config import Config, usual_model, usual_optimizer

    if config is not None:
        wanted = _read_replay(context, config, root, device)
    else:
        columns = chosen(
            label=label, task=task, text=text, tokenizer=tokenizer, length=length, group_by=group_by, id=id_, drop=drop
        )
        model = usual_model(data, columns) if model is None else model
        recipe, settings = _preset(preset, data, model)
        if preset is None:
            recipe = replace(recipe, optimizer=usual_optimizer(model, columns))
        recipe, given = _recipe(context, recipe), _pairs(setting, "setting")
        given |= {"synset": False} if no_synset else {}
        settings = _settings(settings, given, matching, private)
        described = Config(
            data=data,
            root=root,
            limit=limit,
            size=size,
            columns=_columns(data, columns),
            model=model,
            options=_pairs(option, "option"),
            recipe=recipe,
            partition=partition,
            clusters=clusters,
            groups=str(groups) if groups is not None else None,
            groups_hash=hash_file(groups) if groups is not None else None,
            features=features,
            settings=settings,
            device=device,
        )
        wanted = with_seed(described, seed, given)
    if plan:
        _plan(wanted, engine, as_json)
        return
    out = out or Path("runs") / wanted.data.replace(":", "-").replace("/", "-")
    datamodel, _, facts = runs.fit(wanted, out, engine)
    if as_json:
        print_json(facts | {"run": str(out)} | audited_part(datamodel))
    else:
        describe_run(console(), facts, str(out))
        console().print(datamodel.distilled.sentence)
        console().print(datamodel.trust)


def _read_replay(context: typer.Context, path: Path, root: str | None, device: str) -> Config:
    """The config of a file, with the root and device of this command."""
    from ddm.runs.config import Config, read_config

    config = Config.from_dict(read_config(path))
    _refuse_other_options(context, ("config", "root", "out", "device", "engine", "plan", "as_json"))
    return replace(config, root=root or config.root, device=device)


def _refuse_other_options(context: typer.Context, allowed: tuple[str, ...]) -> None:
    """Refuse options that ``--config`` decides."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--config decides {name.replace('_', '-')} itself: leave it out.")


def _columns(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """The use of each column of a table; refused for data without columns."""
    from ddm.data import is_table
    from ddm.data.columns import Columns

    if is_table(data):
        return Columns.parse(given).to_dict()
    if given:
        name = next(iter(given)).replace("_", "-")
        raise InputError(f"--{name} is for tables (csv:PATH or parquet:PATH), not for {data}: leave it out.")
    return {}


def _recipe(context: typer.Context, start: Recipe) -> Recipe:
    """The recipe with the changes of the command line."""
    return replace(start, **chosen(**{name: context.params[name] for name in _RECIPE}))


def _settings(start: Settings, given: dict[str, Any], matching: str | None, private: bool) -> Settings:
    """The settings with the changes of ``--setting``, ``--matching`` and ``--private``."""
    from ddm.distil import changed
    from ddm.distil import private as made_private

    settings = changed(start, given | ({"matching": matching} if matching else {}))
    return made_private(settings) if private else settings


def _plan(config: Config, engine: str | None, as_json: bool) -> None:
    from ddm.cli.text import describe_estimate
    from ddm.compute.terminal import console
    from ddm.runs.plan import estimate

    found = estimate(config, engine)
    if as_json:
        print_json(found.to_dict())
    else:
        describe_estimate(console(), found)


def _preset(preset: str | None, data: str, model: str) -> tuple[Recipe, Settings]:
    from ddm.distil import Settings, paper
    from ddm.training.recipe import Recipe

    if preset is None:
        return Recipe(), Settings()
    if preset == "paper":
        return paper(data, model)
    raise InputError(f"there is no preset '{preset}': use paper, or none.")


def _pairs(given: list[str] | None, what: str) -> dict[str, Any]:
    """``name=value`` options as a dictionary, with numbers, true and false read as such."""
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--{what} takes name=value, not '{text}'.")
        name = name.replace("-", "_")
        found[name] = None if (name, value) == ("step_size", "none") else _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
