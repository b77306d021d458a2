"""Every plot is a plain matplotlib figure, the only kind that experiment trackers take."""

import pytest
from matplotlib.figure import Figure
from other_data import table, texts

import ddm


def test_every_plot_is_a_matplotlib_figure(datamodel, refined, digits):
    question = digits.test[[3]]
    figures = [
        refined.attribute(question, "loss").plot(),
        refined.trace(question, "loss").plot(),
        datamodel.shares(question, 4, "loss").plot(),
        datamodel.synset.plot(),
        datamodel.target.trajectory.plot(),
    ]
    assert all(type(figure) is Figure for figure in figures)


@pytest.mark.parametrize("made", [texts, table])
def test_answers_about_texts_and_rows_have_figures_and_words_in_notebooks(made, refused):
    datamodel, data = made()
    found = datamodel.trace(data.test[[3]], "loss")
    assert isinstance(found.plot(), Figure)
    shares = datamodel.shares(data.test[[3]], found.group, "loss")
    with refused("images", "to_dataframe"):
        shares.plot()
    shown = shares._repr_html_()
    assert "what it is" in shown
    assert data.train.view.text(int(shares.rows[0])).split(",")[0].split()[-1] in shown
    assert "<script>" not in shown


def test_names_of_samples_stand_in_the_table_of_shares():
    datamodel, data = table()
    shares = datamodel.shares(data.test[[3]], 0, "value")
    assert shares.to_dataframe()["id"].tolist() == [data.train.id(row) for row in shares.rows]
    assert isinstance(shares, ddm.answers.shares.Shares)
