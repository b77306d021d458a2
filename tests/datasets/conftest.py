"""Keeps Hugging Face off the network and out of the user's cache: both are decided when it is imported."""

import os
import tempfile

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HOME=tempfile.mkdtemp(prefix="ddm-hf-"),
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
)
