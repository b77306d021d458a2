"""What a fit would take, against what it takes."""

import json

import pytest

from ddm.estimate import estimate
from ddm.matching import Settings
from ddm.recipe import Recipe
from ddm.run import Config, fit

SMALL = Config(
    data="digits",
    limit=400,
    options={"width": 8, "depth": 2},
    recipe=Recipe(epochs=6),
    clusters=3,
    settings=Settings(curvature=512, bank=64),
)


@pytest.mark.parametrize(
    "settings", [SMALL.settings, Settings(matching="reverse", steps=3)], ids=["response", "reverse"]
)
def test_the_disk_is_right_to_a_factor_of_two(settings, tmp_path):
    config = Config(**{**vars(SMALL), "settings": settings})
    wanted = estimate(config).disk
    fit(config, tmp_path / "run")
    found = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert found / 2 <= wanted <= 2 * found


def test_more_of_everything_takes_more():
    one = estimate(SMALL)
    many = Config(**{**vars(SMALL), "clusters": 12, "recipe": Recipe(epochs=60), "options": {"width": 32, "depth": 2}})
    other = estimate(many)
    assert other.seconds["training"] > 4 * one.seconds["training"]
    assert other.memory > one.memory
    assert other.disk > 10 * one.disk


def test_a_plan_is_said_and_nothing_is_written(command, tmp_path):
    answer = command("fit", "digits", "--limit", "100", "--epochs", "2", "--plan")
    assert answer.code == 0
    assert "This would take about" in answer.out
    assert "of memory" in answer.out
    assert not list(tmp_path.iterdir())
    found = json.loads(command("fit", "digits", "--limit", "100", "--epochs", "2", "--plan", "--json").out)
    assert set(found) == {"seconds", "memory", "disk"}
    assert found["seconds"]["all"] == pytest.approx(sum(v for k, v in found["seconds"].items() if k != "all"))
