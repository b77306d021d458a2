"""Position embeddings of the vision transformer."""

from ddm.networks.simplevit import sine_cosine


def test_every_patch_has_a_different_position_embedding():
    positions = sine_cosine(7, 9, 16)
    assert positions.shape == (63, 16)
    assert len(positions.unique(dim=0)) == 63
