"""Report and explorer of a text run and of a table run without classes, in a real browser from the real commands."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explore_command import DDM, serve_run
from playwright.sync_api import expect

import ddm
from ddm.runs.config import Config
from ddm.runs.run import fit, open_run

EVIL = "<img src=x onerror=alert(1)>"
PATIENCE = 60_000
"""Milliseconds that a shared machine may take."""

expect.set_options(timeout=PATIENCE)

pytestmark = pytest.mark.slow


def fitted(folder, frame, **config) -> Path:
    frame.to_csv(folder / "data.csv", index=False)
    settings = ddm.Settings(curvature=128, bank=16)
    fit(Config(data=f"csv:{folder / 'data.csv'}", clusters=3, settings=settings, **config), folder / "run", "serial")
    return folder / "run"


@pytest.fixture(scope="module")
def text_run(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    words = {"sport": "match goal team player", "money": "stock market bank price"}
    labels = rng.choice(list(words), 240)
    texts = [f"{EVIL} {' '.join(rng.permutation(words[label].split()))}" for label in labels]
    frame = pd.DataFrame({"topic": labels, "news": texts})
    columns = {"label": ["topic"], "text": "news", "length": 8}
    options = {"width": 16, "depth": 1}
    recipe = ddm.Recipe(epochs=4, optimizer="adamw", lr=5e-3, batch_size=32)
    folder = tmp_path_factory.mktemp("texts")
    return fitted(folder, frame, columns=columns, model="text-transformer", options=options, recipe=recipe)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 9, 240), "size": rng.normal(80, 20, 240).round(1)})
    frame["street"] = rng.choice([EVIL, "Main Street"], 240)
    frame["price"] = (20 * frame["rooms"] + frame["size"]).round(1)
    columns = {"label": ["price"], "task": "regression"}
    recipe = ddm.Recipe(epochs=8, optimizer="adam", lr=1e-2, batch_size=32)
    return fitted(tmp_path_factory.mktemp("table"), frame, columns=columns, model="mlp", recipe=recipe)


@pytest.mark.parametrize("made", ["text_run", "table_run"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_is_drawn_and_fits(made, width, watched, request):
    run = request.getfixturevalue(made)
    subprocess.run([*DDM, "report", str(run)], check=True, capture_output=True, timeout=300)
    with watched(width=width) as page:
        page.goto((run / "report.html").as_uri())
        expect(page.locator("#map .point").first).to_be_visible()
        chart = "#residuals-chart .point" if made == "table_run" else "#confusion .heatmaplayer image"
        expect(page.locator(chart).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("section .snippet").count() > 10
        assert page.locator("img[src=x]").count() == 0
        assert EVIL in page.inner_text("main")


def opened(page, address):
    page.goto(address)
    expect(page.locator("#ddm-bars tbody tr").first).to_be_visible()
    expect(page.locator("#ddm-samples")).not_to_contain_text("Ordering the training samples")


def test_a_typed_text_is_asked_about(text_run, watched):
    datamodel, data = open_run(text_run)
    with serve_run(text_run) as (_, address), watched() as page:
        opened(page, address)
        assert page.locator("#ddm-snippets label").count() == len(data.test) or page.locator("#ddm-position")
        page.locator("#ddm-text textarea").fill(f"{EVIL} the team of the goal")
        page.locator("#ddm-ask").click()
        expect(page.locator("[data-verdict]")).to_contain_text("your text")
        expect(page.locator(".ddm-text")).to_contain_text(EVIL)
        x = data.encode(f"{EVIL} the team of the goal").batch()[0]
        truth = datamodel.target.outputs(x).double().softmax(1)[0].tolist()
        cells = page.locator("#ddm-bars td[data-when=before]").all()
        assert [float(cell.get_attribute("data-value")) for cell in cells] == pytest.approx(truth, abs=1e-5)
        assert page.locator("img[src=x]").count() == 0
        page.wait_for_url(lambda url: "typed=" in url, wait_until="commit")


def test_a_value_of_a_row_is_changed_and_a_group_removed(table_run, watched):
    datamodel, data = open_run(table_run)
    with serve_run(table_run) as (_, address), watched() as page:
        opened(page, f"{address}&index=3&show=all")
        page.locator("#ddm-snippets label").nth(5).click()
        expect(page.locator("[data-verdict]")).to_contain_text("test row 5")
        cell = page.locator("#ddm-columns-of-row [data-testid=cell-0-1]")
        expect(cell).to_contain_text(str(data.test.view.frame["rooms"].iloc[5]))
        cell.dblclick()
        editor = page.locator("#ddm-columns-of-row :is(input, textarea):focus")
        editor.fill("42")
        editor.press("Enter")
        page.locator("#ddm-ask").click()
        expect(page.locator("[data-verdict]")).to_contain_text("your row")
        expect(page.locator(".ddm-text")).to_contain_text("rooms 42")
        values = {name: str(value) for name, value in data.test.view.frame.iloc[5].items()} | {"rooms": "42"}
        x = data.encode(values).batch()[0]
        said = float(page.locator("#ddm-bars td[data-when=before]").get_attribute("data-value"))
        assert said == pytest.approx(float(datamodel.target.outputs(x)[0, 0]), rel=1e-4)
        page.locator("#ddm-ticks input").first.click()
        expect(page.locator("[data-removal]")).to_contain_text("Without cluster")
        name = re.search(r"cluster \d+", page.locator("[data-removal]").inner_text())[0]
        without = datamodel.outputs(x, datamodel.partition.mask(name)[None])[0, 0, 0]
        after = float(page.locator("#ddm-bars td[data-when=after]").get_attribute("data-value"))
        assert after == pytest.approx(float(without), rel=1e-3)
