"""Time of an answer from a fitted datamodel: 100 groups, the default ConvNet on digits.

make bench
"""

import numpy as np
import pytest
import torch

import ddm


@pytest.fixture(scope="module")
def data_and_datamodel():
    torch.set_num_threads(1)
    data = ddm.datasets.load("digits")
    target = ddm.train(ddm.networks.ConvNet(), data.train, ddm.Recipe(epochs=3))
    return data, ddm.DistilledDatamodel.fit(target, data.train, clusters=10, steps=5)


@pytest.mark.benchmark(group="one more test sample, 100 groups")
@pytest.mark.parametrize("objective", ["prediction", "probabilities"])
def bench_attribute_one_more_sample(benchmark, data_and_datamodel, objective):
    data, datamodel = data_and_datamodel
    datamodel.attribute(data.test[0], objective)
    assert len(datamodel.partition) == 100
    assert len(benchmark(lambda: datamodel.attribute(data.test[1], objective))) == 100


@pytest.mark.benchmark(group="one more test sample, 100 groups")
def bench_trace_one_more_sample(benchmark, data_and_datamodel):
    data, datamodel = data_and_datamodel
    datamodel.trace(data.test[0])
    assert benchmark(lambda: datamodel.trace(data.test[1])).models == 20


@pytest.mark.benchmark(group="validation accuracy without each of 100 groups")
def bench_attribute_validation_accuracy(benchmark, data_and_datamodel):
    data, datamodel = data_and_datamodel
    assert np.isfinite(benchmark(lambda: datamodel.attribute(data.validation, "accuracy")).scores).all()
