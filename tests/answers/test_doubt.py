"""What the audit rejects is not named, and is marked wherever it is shown."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import ddm
from ddm.cli.text import describe_trace, effects_table
from ddm.truth.audit import SAME, Audit
from ddm.truth.figures import FIGURES


def audit(**scores):
    """An audit that trusts all uses but those in ``scores``, each given with the score of another retraining."""
    good = {"value": 0.8, "low": 0.6, "high": 0.9, "retrain": 0.9, "ceiling": 0.95}
    bad = {"value": 0.05, "low": -0.02, "high": 0.08, "ceiling": None}
    figures = {name: (bad | {"retrain": scores[name]}) if name in scores else good for name in FIGURES}
    return Audit({SAME: figures}, ("0/0",), 3, 2, (20, 30), 12, 0.25)


@pytest.fixture
def judged(refined):
    """Gives a refined datamodel the verdict of an audit; the datamodel is as before afterwards."""
    before = refined.audited

    def judge(**scores):
        refined.audited = audit(**scores)
        return refined

    yield judge
    refined.audited = before


def text(show, *arguments):
    out = io.StringIO()
    show(Console(file=out, width=200), *arguments)
    return out.getvalue()


def test_a_rejected_trace_names_no_group(judged, digits):
    trusted = judged().trace(digits.test[3])
    assert trusted.clusters.doubt is None
    rejected = judged(oracle_fraction=0.9).trace(digits.test[3])
    assert rejected.group == trusted.group
    if not rejected.clusters.measured_alone[rejected.clusters.order()[0]]:
        assert not rejected.stands_out
        assert "No group is named. The audit rejects it" in str(rejected.no_stand_out)
        assert "No group is named" in text(describe_trace, rejected)
    assert rejected.to_dict()["clusters"]["doubt"] == rejected.clusters.doubt


def test_rejected_effects_are_marked_but_for_groups_that_were_retrained(judged, digits):
    found = judged(rho_global=0.02).attribute(digits.validation, "loss")
    assert "retrainings disagree" in str(found.doubt)
    assert not found.stands_out[~found.measured_alone].any()
    assert {found.mark(k) for k in range(len(found)) if not found.measured_alone[k]} == {"rejected by the audit"}
    table = text(lambda out: out.print(effects_table(found, len(found))))
    assert "rejected by the audit" in table
    assert judged(rho_global=0.02).attribute(digits.test[3], "loss").doubt is None  # one prediction is another use


def test_a_rejected_diagnosis_names_neither_harmful_nor_useless_groups(judged, digits):
    trusted, rejected = (judged(**scores).diagnose(digits.validation) for scores in ({}, {"rho_global": 0.9}))
    assert rejected.doubt is not None
    assert any("not named" in sentence for sentence in rejected.sentences())
    assert rejected.merely_harmful == ()
    assert rejected.noisy == trusted.noisy
    assert rejected.to_dict()["harmful"] == trusted.to_dict()["harmful"]
    plain = replace(rejected, doubt=None)
    assert plain.sentences()[:-1] == trusted.sentences()[:-1]


def test_without_an_audit_nothing_is_doubted(datamodel, digits):
    assert isinstance(datamodel, ddm.DistilledDatamodel)
    assert datamodel.attribute(digits.test[3]).doubt is None
