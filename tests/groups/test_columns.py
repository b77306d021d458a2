"""Groups made of a column: of dates, of numbers, or of the contents of the samples."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

import ddm
from ddm.groups.partition import from_groups


def numbered(count, classes=2):
    return ddm.Samples.from_arrays(np.random.default_rng(0).random((count, 2)), np.arange(count) % classes)


DATES = ["2024-03-31", "2023-12-01", "2024-03-01", None]


@pytest.mark.parametrize(
    ("period", "names"),
    [
        ("year", ["2024", "2023", "2024", "missing"]),
        ("quarter", ["2024-Q1", "2023-Q4", "2024-Q1", "missing"]),
        ("month", ["2024-03", "2023-12", "2024-03", "missing"]),
        ("week", ["2024-W13", "2023-W48", "2024-W09", "missing"]),
        ("weekday", ["Sunday", "Friday", "Friday", "missing"]),
        ("day", ["2024-03-31", "2023-12-01", "2024-03-01", "missing"]),
        ("hour", ["2024-03-31 00:00", "2023-12-01 00:00", "2024-03-01 00:00", "missing"]),
    ],
)
def test_dates_are_grouped_by_period(period, names):
    assert ddm.groups.by_date(DATES, period).tolist() == names
    assert ddm.groups.by_date(pd.Series(pd.to_datetime(DATES), index=[7, 3, 1, 0]), period).tolist() == names


def test_an_unknown_period_and_words_that_are_no_dates_are_refused():
    with refused("'decade'", "month"):
        ddm.groups.by_date(DATES, "decade")
    with refused("not dates"):
        ddm.groups.by_date(["monday", "tuesday"])


def test_quantiles_hold_about_equally_many_samples_and_keep_equal_numbers_together():
    values = np.random.default_rng(1).permutation(1000).astype(float)
    groups = ddm.groups.by_quantile(values, 4)
    names, counts = np.unique(groups, return_counts=True)
    assert counts.tolist() == [250] * 4
    assert [values[groups == name].min() for name in names] == sorted(values[groups == name].min() for name in names)
    tied = ddm.groups.by_quantile([1] * 90 + list(range(2, 12)), 5)
    assert len(set(tied[:90])) == 1


def test_missing_numbers_are_a_group_of_their_own_and_words_are_refused():
    assert ddm.groups.by_quantile([1, 2, np.nan, 3, 4], 2)[2] == "missing"
    with refused("not numbers"):
        ddm.groups.by_quantile(["a", "b"])
    with refused("at least 2"):
        ddm.groups.by_quantile([1.0, 2.0], 1)


def test_exact_copies_are_groups_and_other_samples_are_in_none():
    x = torch.arange(20.0).view(10, 2)
    x[7], x[3], x[9] = x[2].clone(), x[2].clone(), x[0].clone()
    found = ddm.groups.by_content(ddm.Samples.from_arrays(x, torch.arange(10) % 2))
    assert {name: rows.tolist() for name, rows in found.items()} == {"copies of 0": [0, 9], "copies of 2": [2, 3, 7]}


def test_copies_of_texts_are_found_by_ids_and_mask():
    ids, mask = torch.tensor([[5, 6], [5, 6], [5, 6]]), torch.tensor([[1, 1], [1, 0], [1, 1]])
    samples = ddm.Samples.from_batch({"input_ids": ids, "attention_mask": mask}, torch.tensor([0, 1, 1]))
    assert [rows.tolist() for rows in ddm.groups.by_content(samples).values()] == [[0, 2]]


def test_few_dates_are_groups_as_they_are_and_many_are_grouped_by_month():
    few = np.array(["2024-01-02", "2023-05-06"] * 60, dtype="datetime64[D]")
    for dates in (few, pd.Series(few), pd.Series(few).dt.tz_localize("UTC"), [pd.Timestamp(each) for each in few]):
        assert from_groups(numbered(120), dates).names == ("2023-05-06", "2024-01-02")
    days = [datetime.date(2023, 1, 1) + datetime.timedelta(days=day) for day in range(365)]
    for dates in (days, pd.Series(pd.to_datetime(days))):
        with pytest.warns(UserWarning, match="365 different dates.*by month"):
            assert len(from_groups(numbered(365), dates)) == 12


def test_groups_of_nearly_one_sample_each_are_refused():
    with refused("500 samples are in 500 groups", "by_quantile"):
        from_groups(numbered(500), np.random.default_rng(0).random(500))
