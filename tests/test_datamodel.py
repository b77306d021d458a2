"""The datamodel as the assembler of the stages."""

import ddm


def test_fit_reports_its_stages_in_order_and_keeps_the_config(target, digits):
    stages = []
    datamodel = ddm.DistilledDatamodel.fit(
        target, digits.train, partition="class", curvature=64, bank=4, config={"data": "digits"}, on_stage=stages.append
    )
    assert stages == ["partition", "matching"]
    assert datamodel.config == {"data": "digits"}
    assert datamodel.samples is digits.train
