"""The report in a browser: everything fits and is drawn, nothing is asked of the network, names are harmless."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import expect

import ddm
from ddm import report
from ddm.runs import run

EVIL = "<img src=x onerror=alert(1)>"
WIDTHS = [390, 1280]
CHARTS = {
    "map": ".point",
    "bars": ".bars .point",
    "classwise": ".heatmaplayer image",
    "confusion": ".heatmaplayer image",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(datamodel, digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(datamodel, digits, path, run.summarise(datamodel, digits))
    return path


@pytest.fixture(scope="module")
def refined_file(refined, digits, tmp_path_factory):
    """A page with intervals."""
    path = tmp_path_factory.mktemp("refined") / "report.html"
    report.write(refined, digits, path, run.summarise(refined, digits))
    return path


@pytest.fixture(scope="module")
def evil_file(digits, tmp_path_factory):
    """A page about classes with long and malicious names."""
    classes = (EVIL, "a name of many words that goes on and on and on", "unbroken" * 12, *digits.classes[3:])
    parts = {split: replace(digits.split(split), classes=classes) for split in ("train", "validation", "test")}
    data = replace(digits, **parts)
    network = ddm.networks.ConvNet(data.train.shape, len(classes), width=4, depth=1)
    target = ddm.train(network, data.train, ddm.Recipe(epochs=2, lr=0.1, batch_size=16))
    datamodel = ddm.DistilledDatamodel.fit(target, data.train, clusters=2, curvature=64, bank=8)
    path = tmp_path_factory.mktemp("evil") / "report.html"
    report.write(datamodel, data, path, run.summarise(datamodel, data))
    return path


@pytest.fixture
def opened(watched):
    """``with opened(path, width) as page``: the page drawn, of which nothing but its own file was asked for."""

    @contextmanager
    def opened(path, width):
        with watched(width=width) as page:
            asked = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(path.as_uri())
            page.locator("#confusion .main-svg").first.wait_for()
            yield page
            assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}

    return opened


def overflow(page):
    return page.evaluate("document.scrollingElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_page(opened, page_file, width, scheme):
    with opened(page_file, width) as page:
        page.emulate_media(color_scheme=scheme)
        assert overflow(page) <= 0
        assert page.locator(".chart").count() == len(CHARTS)
        for name, marks in CHARTS.items():
            box = page.locator(f"#{name} .main-svg").first.bounding_box()
            assert box["width"] > 200
            assert box["height"] > 200
            assert page.locator(f"#{name} {marks}").count() > 0


@pytest.mark.parametrize("width", WIDTHS)
def test_intervals_are_drawn_and_fit_beside_effects(opened, refined_file, refined, width):
    with opened(refined_file, width) as page:
        assert overflow(page) <= 0
        bars = page.locator("#bars .bars .point").count()
        assert page.locator("#bars .xerror").count() == bars > 0
        assert page.locator("#groups .range").count() == len(refined.partition)


@pytest.mark.parametrize("width", WIDTHS)
def test_long_and_malicious_names_do_no_harm(opened, evil_file, width):
    with opened(evil_file, width) as page:
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        assert overflow(page) <= 0
        page.locator("#map .point").first.hover(force=True)
        page.wait_for_timeout(300)
        assert page.locator("img[src='x']").count() == 0
        assert page.get_by_text(f"Class {EVIL}", exact=True).count() == 1
        assert dialogs == []


def test_every_picture_can_be_read(opened, page_file):
    with opened(page_file, 1280) as page:
        broken = page.evaluate("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length")
        assert page.locator("img").count() > 50
        assert broken == 0


def test_the_heat_map_switches_to_f1_and_back(opened, page_file):
    with opened(page_file, 1280) as page:
        expect(page.locator("#classwise")).to_contain_text("class (recall)")
        page.get_by_role("button", name="F1").click()
        expect(page.locator("#classwise")).to_contain_text("class (F1)")
        expect(page.get_by_role("button", name="F1")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Recall").click()
        expect(page.locator("#classwise")).to_contain_text("class (recall)")


def test_the_contents_stay_in_sight_on_wide_screens_alone(opened, page_file):
    with opened(page_file, 1280) as page:
        page.get_by_role("link", name="Cost and settings").click()
        expect(page.locator("#cost pre")).to_be_in_viewport(timeout=30_000)
        expect(page.get_by_role("link", name="The model")).to_be_in_viewport()
    with opened(page_file, 390) as page:
        assert not page.locator("nav").is_visible()


def test_charts_follow_the_colours_of_the_page(opened, page_file):
    with opened(page_file, 1280) as page:
        name = page.locator("#bars .ytick text").first
        for scheme, colour in (("light", "rgb(95, 105, 116)"), ("dark", "rgb(154, 164, 175)")):  # --muted
            page.emulate_media(color_scheme=scheme)
            expect(name).to_have_css("fill", colour)


def test_it_prints(opened, page_file):
    with opened(page_file, 1280) as page:
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert len(printed) > 50_000
