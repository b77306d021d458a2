"""A datamodel without its kept responses."""

from ddm import DistilledDatamodel


def synset_alone(datamodel: DistilledDatamodel) -> DistilledDatamodel:
    """The same datamodel, which answers from its synset."""
    synsets = datamodel.synset, datamodel.class_synset
    stages = datamodel.target, datamodel.partition, *synsets, datamodel.settings, datamodel.data
    return DistilledDatamodel(*stages, samples=datamodel.samples)
