"""The page of ``ddm explore`` in a real browser, served by the real command from a real run."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from explore_command import fit_run, serve_run
from playwright.sync_api import expect

import ddm
import ddm.training.target
from ddm.data.samples import Data
from ddm.runs.run import open_run

PATIENCE = 60_000
"""Milliseconds that a shared machine may take."""

expect.set_options(timeout=PATIENCE)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    return fit_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="session")
def asked(run) -> tuple[ddm.DistilledDatamodel, Data]:
    """The datamodel and the data, to compare the page with."""
    return open_run(run)


@pytest.fixture(scope="session")
def site(run):
    """The address of the page, with its token, while the command serves it."""
    with serve_run(run) as (_, address):
        yield address


def opened(page, address):
    """Open a page until it has answered. What it still waits for is in the set that this returns."""
    streams = set()
    page.on("request", lambda request: streams.add(request) if "/queue/data" in request.url else None)
    for ended in ("requestfinished", "requestfailed"):
        page.on(ended, lambda request: streams.discard(request))
    page.goto(address)
    expect(page.locator("#ddm-bars tbody tr").first).to_be_visible(timeout=PATIENCE)
    return streams


def reload(page, streams):
    """The same page again, once nothing is on its way: Gradio calls a broken stream an error."""
    expect(page.locator("#ddm-samples")).not_to_contain_text("Ordering the training samples", timeout=PATIENCE)
    for _ in range(PATIENCE // 50):
        if streams:
            page.wait_for_timeout(50)
    assert not streams
    page.reload()


def at(page, *parts):
    """Until the address has these parts."""
    for part in parts:
        page.wait_for_url(lambda url, part=part: part in url, timeout=PATIENCE, wait_until="commit")


def probabilities(page, when):
    """The probability of every class on the page ``(L,)``."""
    cells = page.locator(f"#ddm-bars td[data-when={when}]")
    return np.array([float(cell.get_attribute("data-value")) for cell in cells.all()])


def tick(page, group):
    page.locator("#ddm-ticks label").filter(has_text=re.compile(rf"^\s*{re.escape(group)}\s")).click()
    at(page, f"remove={group}")


def choose(page, control, words):
    """An option of a dropdown."""
    page.locator(f"#{control} input").click()
    page.get_by_role("option", name=words, exact=True).click()


def strongest(page):
    """The first group that can be ticked."""
    words = page.locator("#ddm-ticks label").first.inner_text()
    return words.split()[0]


def test_an_image_is_chosen_in_the_gallery(site, watched, asked):
    with watched() as page:
        opened(page, f"{site}&show=all")
        page.locator("#ddm-gallery button.thumbnail-lg, #ddm-gallery .gallery-item button").nth(4).click()
        at(page, "index=4")
        expect(page.locator("[data-verdict]")).to_contain_text("test image 4")
        datamodel, data = asked
        truth = datamodel.target.outputs(data.test[4][0][None]).double().softmax(1)[0].numpy()
        assert probabilities(page, "before") == pytest.approx(truth, abs=1e-5)


def test_another_objective_is_another_question(site, watched):
    with watched() as page:
        opened(page, f"{site}&index=3")
        expect(page.locator("#ddm-strongest")).to_contain_text("points")
        choose(page, "ddm-objective", "loss on this sample")
        at(page, "objective=loss")
        expect(page.locator("#ddm-strongest")).to_contain_text("the loss on this sample by")
        expect(page.locator("#ddm-output")).to_be_hidden()


def test_removing_a_group_shows_the_prediction_of_the_library(site, watched, asked):
    datamodel, data = asked
    with watched() as page:
        opened(page, f"{site}&index=3")
        group = strongest(page)
        tick(page, group)
        expect(page.locator("[data-removal]")).to_contain_text(f"Without {group}")
        network = datamodel.counterfactual([group])
        after = network(data.test[3][0][None]).detach().double().softmax(1)[0].numpy()
        assert probabilities(page, "after") == pytest.approx(after, abs=1e-5)
        assert np.abs(after - probabilities(page, "before")).max() > 1e-3
        right = ddm.training.target.accuracy_of(network, data.test)
        assert page.locator("[data-accuracy=after]").inner_text() == f"{right:.2%}"
        page.locator("#ddm-clear").click()
        expect(page.locator("[data-removal]")).to_contain_text("No group is removed")
        page.wait_for_url(lambda url: "remove" not in url, timeout=PATIENCE, wait_until="commit")


def test_groups_ticked_at_once_are_all_removed(site, watched):
    with watched() as page:
        opened(page, f"{site}&index=3")
        ticks = page.locator("#ddm-ticks input")
        for number in range(4):
            ticks.nth(number).click()
        page.wait_for_url(lambda url: url.count("remove=") == 4, timeout=PATIENCE, wait_until="commit")
        assert page.locator("#ddm-ticks input:checked").count() == 4
        names = [words.split()[0] for words in page.locator("#ddm-ticks label").all_inner_texts()[:4]]
        expect(page.locator("[data-removal]")).to_contain_text(f"Without {', '.join(names)}")


def test_the_trail_ends_in_training_samples_of_the_group_found(site, watched, asked):
    datamodel, data = asked
    with watched() as page:
        opened(page, f"{site}&index=3&objective=prediction")
        trace = datamodel.trace((data.test[3][0], data.test[3][1]), "prediction")
        assert page.locator("#ddm-trail .ddm-trail").get_attribute("data-group") == trace.group
        expect(page.locator("#ddm-samples")).to_contain_text("by their share", timeout=PATIENCE)
        captions = page.locator("#ddm-samples figcaption").all_inner_texts()
        rows = {int(words.split()[0]) for words in captions}
        assert rows
        assert rows <= set(datamodel.partition.members(trace.group).tolist())


def test_a_saved_model_is_in_the_run(site, watched, run, asked):
    datamodel, data = asked
    with watched() as page:
        opened(page, f"{site}&index=3&remove=0")
        page.locator("#ddm-save").click()
        saved = page.locator("[data-saved]")
        expect(saved).to_be_visible(timeout=PATIENCE)
        x = data.test.batch()[0]
        model = ddm.networks.load(run / saved.inner_text())
        assert torch.allclose(model(x), datamodel.counterfactual([0])(x), atol=1e-5)
        assert not torch.allclose(model(x), datamodel.target.outputs(x), atol=1e-3)


def test_exact_retraining_is_shown_beside_the_prediction(site, watched, run):
    with watched() as page:
        opened(page, f"{site}&index=3&remove=1")
        expect(page.get_by_text("A comparison trains the model twice")).to_contain_text("about")
        page.locator("#ddm-compare").click()
        table = page.locator("#ddm-comparison table")
        expect(table).to_be_visible(timeout=PATIENCE)
        expect(table).to_contain_text("retrained")
        assert any((run / "exact").iterdir())


def test_a_picture_of_ones_own_is_asked_about(site, watched, asked, tmp_path):
    from PIL import Image

    datamodel, data = asked
    Image.fromarray(data.test.raw[5, 0].numpy()).save(tmp_path / "mine.png")
    with watched() as page:
        streams = opened(page, site)
        page.locator("#ddm-upload input[type=file]").set_input_files(tmp_path / "mine.png")
        expect(page.locator("[data-verdict]")).to_contain_text("your picture", timeout=PATIENCE)
        at(page, "picture=")
        truth = datamodel.target.outputs(data.test[5][0][None]).double().softmax(1)[0].numpy()
        assert probabilities(page, "before") == pytest.approx(truth, abs=1e-5)
        reload(page, streams)
        expect(page.locator("[data-verdict]")).to_contain_text("your picture", timeout=PATIENCE)


def test_a_broken_picture_gets_a_sentence(site, watched, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n but no picture")
    with watched() as page:
        opened(page, f"{site}&index=3")
        page.locator("#ddm-upload input[type=file]").set_input_files(tmp_path / "broken.png")
        expect(page.locator("#ddm-notice")).to_contain_text("not a picture", timeout=PATIENCE)
        expect(page.locator("[data-verdict]")).to_contain_text("test image 3")


def test_reloading_keeps_the_state(site, watched):
    with watched() as page:
        streams = opened(page, f"{site}&index=3")
        group = strongest(page)
        tick(page, group)
        expect(page.locator("[data-removal]")).to_contain_text(f"Without {group}")
        after = probabilities(page, "after")
        reload(page, streams)
        expect(page.locator("[data-removal]")).to_contain_text(f"Without {group}", timeout=PATIENCE)
        assert probabilities(page, "after") == pytest.approx(after, abs=1e-6)


def test_a_shared_address_opens_the_same_state_for_someone_else(site, watched, asked):
    first, second = asked[0].partition.names[:2]
    query = f"&index=9&objective=logits&output=8&remove={first}&remove={second}&show=all"
    with watched() as page, watched() as other:
        opened(page, site + query)
        address, words = page.url, page.locator("#ddm-bars").inner_text()
        assert f"remove={first}&remove={second}" in address
        opened(other, f"{address}&{site.partition('?')[2]}")
        assert other.url == address
        assert other.locator("#ddm-bars").inner_text() == words
        assert other.locator("#ddm-ticks input:checked").count() == 2
        expect(other.locator("[data-verdict]")).to_contain_text("test image 9")


def test_visitors_do_not_see_each_others_choices(site, watched):
    with watched() as page, watched() as other:
        opened(page, f"{site}&index=3")
        opened(other, f"{site}&index=3")
        tick(page, strongest(page))
        expect(page.locator("[data-removal]")).to_contain_text("Without")
        choose(other, "ddm-objective", "shift of the prediction")
        at(other, "objective=prediction")
        expect(other.locator("[data-removal]")).to_contain_text("No group is removed")


def test_the_address_with_the_token_opens_the_page_and_hides_it(run, watched):
    token = "letters-and-digits-0123456789"
    with serve_run(run, DDM_TOKEN=token) as (_, address), watched() as page:
        opened(page, f"{address}?index=3&token={token}")
        expect(page.locator("[data-verdict]")).to_contain_text("test image 3")
        at(page, "index=3")
        assert token not in page.url
        assert token not in page.evaluate("document.cookie + document.documentElement.outerHTML")
        tick(page, strongest(page))
        expect(page.locator("[data-removal]")).to_contain_text("Without")


def test_nonsense_in_the_address_gets_a_sentence(site, watched):
    with watched() as page:
        opened(page, f"{site}&index=banana&remove=%3Cb%3E&objective=loss")
        expect(page.locator("#ddm-notice p")).to_have_count(2)
        expect(page.locator("#ddm-notice")).to_contain_text("banana")
        at(page, "objective=loss")


def test_the_page_says_how_far_to_trust_it(site, watched, run):
    assert not (run / "audit.json").exists()
    with watched() as page:
        opened(page, site)
        expect(page.locator(".ddm-trust")).to_contain_text("Not audited")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(site, watched, asked, width):
    with watched(width=width) as page:
        opened(page, f"{site}&index=3&remove=0&remove=1")
        page.locator("#ddm-save").click()
        expect(page.locator("[data-saved]")).to_be_visible(timeout=PATIENCE)
        page.locator("#ddm-compare").click()
        expect(page.locator("#ddm-comparison table")).to_be_visible(timeout=PATIENCE)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
