"""The examples that ``ddm demo`` explains."""

import io
import warnings

from rich.console import Console

from ddm.cli import demo
from ddm.cli.text import predictions


def test_an_example_beyond_reach_says_so_beside_its_prediction(datamodel, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_REMOVED", 15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is printed before everything else, far from the prediction
        story = demo._explain(datamodel, digits.test, 7, tmp_path)
    assert story["beyond"] == datamodel.beyond(story["drivers"]) is not None
    out = io.StringIO()
    demo._describe_example(Console(file=out, width=10_000), story)
    (line,) = [line for line in out.getvalue().splitlines() if story["beyond"] in line]
    assert f"the model would say: {story['prediction_without']}" in line


def test_an_example_within_reach_shows_the_prediction_of_the_counterfactual(datamodel, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_REMOVED", 1)
    story = demo._explain(datamodel, digits.test, 7, tmp_path)
    assert story["beyond"] is None
    outputs = datamodel.counterfactual(story["drivers"])(digits.test[7][0][None])[0]
    assert story["prediction_without"] == predictions(outputs.detach(), digits.classes)
