"""The run directory: the files of a datamodel, each written atomically, none of them pickled.

    manifest.json                  format version, fingerprints, library versions, checksums of the files, and whether
                                   the run is complete
    config.json                    replays the run
    summary.json                   accuracies, sizes and seconds, for people
    trajectory/00000.safetensors…  checkpoints θ_0 … θ_τ
    partition.safetensors          the group of each training sample
    synset.safetensors             the synset of every group
    synset-class.safetensors       the synset of every class
    responses.safetensors          the kept responses of every group and class, from which answers come
    evidence.safetensors           retrained networks that correct the answers, once ddm refine or ddm audit made some
    audit.json                     how far to trust the run, once ddm audit has measured it
    exact/                         models retrained without some groups
    parts/                         finished blocks of a run that is not complete

No file holds the training images. A synset that starts from training images (reverse and forward matching) can show
some of them.
"""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from ddm.compute.files import is_outside
from ddm.compute.folders import make_folder
from ddm.errors import InputError

MANIFEST, CONFIG = "manifest.json", "config.json"
TRAJECTORY, PARTS, EXACT, AUDIT, SUMMARY = "trajectory", "parts", "exact", "audit.json", "summary.json"
PARTITION, SYNSET, CLASS_SYNSET = "partition.safetensors", "synset.safetensors", "synset-class.safetensors"
RESPONSES, EVIDENCE = "responses.safetensors", "evidence.safetensors"

FILES = (CONFIG, SUMMARY, PARTITION, SYNSET, CLASS_SYNSET, RESPONSES)
"""Files that a complete run may have beside its manifest and trajectory."""


def manifest_files(run: Path) -> list[str]:
    """Names of the files that the manifest of a complete run lists."""
    known = [run / name for name in FILES]
    checkpoints = sorted((run / TRAJECTORY).glob("*.safetensors"))
    return [path.relative_to(run).as_posix() for path in (*known, *checkpoints) if path.exists()]


def answers_file(files: Container[str]) -> str:
    """The file of a run from which its answers come, among the files that its manifest lists."""
    return RESPONSES if RESPONSES in files else SYNSET


def check_links(run: Path) -> None:
    """Refuse symbolic links that lead out of a run: reading would leave the run, and writing would be lost."""
    for folder, folders, files in os.walk(run):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and is_outside(path, run):
                raise InputError(f"'{path}' is a link that leads out of the run: replace it by the file it leads to.")


def make_writable(run: Path) -> None:
    """Create the folder of a run; refuse one that cannot be created or written."""
    try:
        make_folder(run)
    except OSError as error:
        raise InputError(f"cannot make the folder '{run}' ({error.strerror}): choose another --out.") from None
    if not os.access(run, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into '{run}': choose another --out.")
