"""The repr of data and results is one sentence, whatever their size."""

from dataclasses import replace

import ddm


def counted(samples):
    return f"of shape 1×8×8 in {len(samples.classes)} classes"


def test_data_say_how_many_samples_each_split_has(digits):
    train, validation, test = len(digits.train), len(digits.validation), len(digits.test)
    assert repr(digits) == (
        f"Data digits: {train:,} training, {validation:,} validation and {test:,} test samples {counted(digits.train)}"
    )


def test_samples_say_their_number_shape_and_classes(digits):
    assert repr(digits.test[:7]) == f"Samples: 7 {counted(digits.test)}"


def test_a_target_and_its_trajectory_say_their_size(target):
    count, steps = len(target.trajectory), f"{target.trajectory.steps[-1]:,}"
    assert repr(target.trajectory) == f"Trajectory of {count} checkpoints over {steps} optimizer steps"
    assert repr(target) == (
        f"Target: ConvNet with {target.flat.size:,} parameters and {count} checkpoints over {steps} optimizer steps"
    )
    assert repr(ddm.Trajectory()) == "Trajectory of 0 checkpoints over no steps"


def test_a_partition_says_how_large_its_groups_are(datamodel):
    partition = datamodel.partition
    said = repr(partition)
    assert said.startswith(f"Partition: {len(partition.groups):,} training samples in {len(partition)} groups of ")
    assert said.endswith("in 10 classes")
    assert repr(replace(partition, parents=None)).endswith("that cut across classes")


def test_a_synset_says_what_it_holds_and_what_is_missing(datamodel):
    synset = datamodel.synset
    assert repr(synset).startswith(f"Synset: {len(synset)} groups with {synset.images.shape[1]:,} images ")
    assert "could not" not in repr(replace(synset, stopped={}))
    assert "1 of the groups could not" in repr(replace(synset, stopped={synset.names[0]: "no signal"}))


def test_a_datamodel_says_what_it_explains(datamodel):
    count = len(datamodel.partition.groups)
    assert repr(datamodel).startswith(f"DistilledDatamodel: ConvNet trained on {count:,} samples in ")
    assert repr(datamodel).endswith("response matching")


def test_answers_say_what_was_measured_and_what_the_sign_means(datamodel, digits):
    question = digits.test[[3]]
    found, trail = datamodel.attribute(question), datamodel.trace(question)
    shares = datamodel.shares(question, trail.group)
    assert found.measured in repr(found)
    assert found.top(1)[0][0] in repr(found)
    assert f"group {trail.group}" in repr(trail)
    assert f"{len(shares):,} training samples" in repr(shares)
    for answer in (found, trail, shares):
        assert "removing the group raises the value" in repr(answer)
        assert "\n" not in repr(answer)
        assert len(repr(answer)) < 400


def test_a_diagnosis_counts_its_findings(datamodel, digits):
    found = datamodel.diagnose(digits.validation)
    assert f"on {len(digits.validation)} samples" in repr(found)
    assert f"{len(found.noisy)} look mislabelled" in repr(found)
