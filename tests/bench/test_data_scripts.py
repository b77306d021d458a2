"""The scripts of bench/data, without the network: how they choose and clean what they write."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pandas as pd
import pytest

from ddm.errors import InputError


def script(name):
    spec = spec_from_file_location(name, Path(__file__).parents[2] / "bench" / "data" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


debian, flights = script("debian"), script("flights")


def document(package, source, text="a text that is long enough " * 5, section="games", maintainer="A Team"):
    return debian.Document(package, source, section, text, maintainer)


def test_a_description_becomes_running_text():
    text = debian.clean("game of chess\n Plays well.\n .\n  * and fast")
    assert text == "game of chess. Plays well. * and fast"


def test_a_long_description_ends_at_a_word():
    text = debian.clean("short\n " + "word " * 500)
    assert len(text) <= debian.MAX_CHARACTERS
    assert text.endswith("word")


def test_continued_fields_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(debian, "CAT_FILE", ("cat",))
    (tmp_path / "list").write_text("Package: a\nTag: x,\n y\nSection: net\n\nPackage: b\n")
    assert list(debian.read_stanzas(tmp_path / "list")) == [
        {"Package": "a", "Tag": "x,\n y", "Section": "net"},
        {"Package": "b"},
    ]


def test_only_releases_of_debian_count(tmp_path):
    heads = {
        "base_": "Label: Debian\nSuite: stable\n",
        "updates_": "Label: Debian\nSuite: stable-updates\n",
        "security_": "Label: Debian-Security\nSuite: stable-security\n",
        "other_": "Label: Other\nSuite: stable\n",
    }
    for prefix, head in heads.items():
        (tmp_path / f"{prefix}InRelease").write_text(head)
    assert debian.find_releases(tmp_path) == ["base_"]


def test_a_source_package_gives_one_text_and_no_companion():
    found = debian.drop_siblings(
        [document("chess-data", "chess"), document("chess", "chess"), document("a", "chess"), document("b-dev", "b")]
    )
    assert [one.package for one in found] == ["chess"]


def test_near_copies_are_dropped():
    first = document("one", "one", "this engine plays chess against people over the network")
    copy = document("two", "two", "this engine plays chess against people over the wire")
    other = document("three", "three", "a library that draws maps of the sky at night")
    assert debian.drop_near_copies([first, copy, other]) == [first, other]


def test_sections_give_equal_shares_where_they_can():
    assert debian.share_out(9, {"a": 1, "b": 10, "c": 10}) == {"a": 1, "b": 4, "c": 4}
    with pytest.raises(InputError, match="from 1 to 21"):
        debian.share_out(22, {"a": 1, "b": 10, "c": 10})


def test_the_same_seed_draws_the_same_documents():
    documents = [document(f"p{i}", f"p{i}", section=section) for section in debian.SECTIONS for i in range(5)]
    assert debian.draw(documents, 20, 0) == debian.draw(documents, 20, 0)
    assert debian.draw(documents, 20, 0) != debian.draw(documents, 20, 1)


def test_small_teams_are_merged():
    documents = [document(f"p{i}", f"p{i}") for i in range(debian.MIN_TEAM)]
    merged = debian.merge_small_teams([*documents, document("q", "q", maintainer="B Team")])
    assert [one.maintainer for one in merged] == ["A Team"] * debian.MIN_TEAM + ["others"]


@pytest.fixture
def table():
    """Three flights: one late from an unknown aircraft, one in time, one cancelled."""
    shared = {"year": 2013, "month": 1, "day": 1, "hour": 5, "carrier": "UA", "origin": "EWR", "dest": "IAH"}
    rows = [("N1", 0.0, 16.0), ("N2", 20.0, 15.0), ("N2", None, None)]
    departures = pd.DataFrame(
        [
            shared | {"tailnum": tail, "dep_delay": left, "arr_delay": arrived, "distance": 1400, "time_hour": "t"}
            for tail, left, arrived in rows
        ]
    )
    weather = pd.DataFrame([{"origin": "EWR", "time_hour": "t"} | dict.fromkeys(flights.WEATHER, 1.0)])
    return flights.join_tables(departures, weather, pd.DataFrame([{"tailnum": "N2", "year": 1999.0, "seats": 55}]))


def test_flights_that_arrived_get_a_label(table):
    assert list(table.columns) == flights.COLUMNS
    assert table["late"].tolist() == ["yes", "no"]
    assert table["weekday"].tolist() == ["Tue", "Tue"]


def test_unknown_aircraft_stay_missing(table):
    assert table["plane_year"].isna().tolist() == [True, False]


def test_more_rows_than_there_are_is_refused(table):
    with pytest.raises(InputError, match="from 1 to 2"):
        flights.sample_rows(table, 3, 0)
