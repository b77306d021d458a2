"""Write real texts as CSV: 3,000 descriptions of Debian packages, whose classes are ten sections of the archive.

python bench/data/debian.py debian.csv

apt downloads its lists of packages into a temporary folder, which needs Debian but no root. With ``--lists FOLDER`` it
keeps them: later runs with that folder read the same lists and write the same file.

A source package gives one text at most, and texts that share most of their phrases with another are dropped. So no
test text has a near copy among the training texts.
"""

import argparse
import csv
import random
import re
import subprocess
import tempfile
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ddm.compute.files import atomic_write, output_path
from ddm.errors import InputError

SECTIONS = ("admin", "devel", "games", "graphics", "math", "net", "science", "sound", "text", "x11")
"""Sections that take some reading to tell apart. In others, such as python or fonts, one word gives the class away."""

COMPANIONS = ("-common", "-data", "-dbg", "-dev", "-doc")
"""Endings of packages that only accompany another one."""

MIN_CHARACTERS, MAX_CHARACTERS = 100, 600

PHRASE_WORDS = 3
MAX_SHARED_PHRASES = 0.5
"""A text is a near copy if an earlier one has more than this share of its phrases of three words."""

MIN_TEAM = 15
"""Maintainers of fewer documents are written as ``OTHERS``."""
OTHERS = "others"

CAT_FILE = ("/usr/lib/apt/apt-helper", "cat-file")
"""Prints a list, whatever its compression."""


@dataclass(frozen=True)
class Document:
    """The description of one package."""

    package: str
    source: str
    section: str
    text: str
    maintainer: str


def fetch_lists(folder: Path) -> str:
    """Let apt download its lists into a folder; returns what it complained about. The system's own stay untouched."""
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        options = {
            "Dir::State::lists": folder.resolve(),
            "Dir::Cache": cache,
            "Acquire::Languages": "en",
            "APT::Sandbox::User": "root",  # the user _apt may not write into a temporary folder of root
        }
        command = ["apt-get", "-qq", "update", *(f"-o{name}={value}" for name, value in options.items())]
        return run(command).stderr


def run(command: Iterable[str | Path]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"cannot run {command[0]} ({error.strerror}): run this script on Debian.") from None


def find_releases(lists: Path) -> list[str]:
    """Prefixes of the lists of Debian's releases; updates, backports and other people's archives do not count."""
    found = []
    for path in sorted(lists.glob("*_InRelease")):
        head = path.read_text(errors="replace").split("MD5Sum:")[0]
        if re.search(r"^Label: Debian$", head, re.M) and re.search(r"^Suite: [a-z]+$", head, re.M):
            found.append(path.name.removesuffix("InRelease"))
    return found


def read_stanzas(path: Path) -> Iterator[dict[str, str]]:
    """The stanzas of a list as dictionaries; lines that continue a field are joined by newlines."""
    for stanza in run([*CAT_FILE, path]).stdout.split("\n\n"):
        fields = re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.M)
        if fields:
            yield dict(fields)


def read_documents(lists: Path) -> list[Document]:
    """Every package of ``SECTIONS`` with its full English description, sorted by name."""
    found: dict[str, Document] = {}
    for prefix in find_releases(lists):
        full = {
            (stanza["Package"], stanza["Description-md5"]): stanza["Description-en"]
            for path in sorted(lists.glob(f"{prefix}main_i18n_Translation-en*"))
            for stanza in read_stanzas(path)
        }
        for path in sorted(lists.glob(f"{prefix}main_binary-*_Packages*")):
            for stanza in read_stanzas(path):
                key = stanza["Package"], stanza.get("Description-md5", "")
                if stanza.get("Section") in SECTIONS and key in full:
                    found.setdefault(stanza["Package"], make_document(stanza, full[key]))
    return [found[name] for name in sorted(found)]


def make_document(stanza: dict[str, str], description: str) -> Document:
    """The document of a package, from its stanza and its full description."""
    name = stanza["Package"]
    return Document(
        package=name,
        source=stanza.get("Source", name).split()[0],
        section=stanza["Section"],
        text=clean(description),
        maintainer=stanza["Maintainer"].split(" <")[0].strip('" '),
    )


def clean(description: str) -> str:
    """A description as running text: the short one as first sentence, no dots that mark empty lines, not too long."""
    short, *lines = (line.strip() for line in description.splitlines())
    text = " ".join([f"{short.rstrip('.')}.", *(line for line in lines if line != ".")])
    return textwrap.shorten(text, MAX_CHARACTERS, placeholder="")


def drop_siblings(documents: Iterable[Document]) -> list[Document]:
    """Keep one package of each source package: the one that has its name, or else the shortest name."""
    chosen: dict[str, Document] = {}
    for document in sorted(documents, key=lambda one: (one.package != one.source, len(one.package), one.package)):
        if len(document.text) >= MIN_CHARACTERS and not document.package.endswith(COMPANIONS):
            chosen.setdefault(document.source, document)
    return sorted(chosen.values(), key=lambda one: one.package)


def drop_near_copies(documents: Iterable[Document]) -> list[Document]:
    """Drop documents that share most of their phrases with one kept before."""
    kept: list[Document] = []
    sizes: list[int] = []
    having: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for document in documents:
        words = re.findall(r"\w+", document.text.lower())
        phrases = set(zip(*(words[start:] for start in range(PHRASE_WORDS)), strict=False))
        shared = Counter(place for phrase in phrases for place in having[phrase])
        if all(count <= MAX_SHARED_PHRASES * min(len(phrases), sizes[place]) for place, count in shared.items()):
            for phrase in phrases:
                having[phrase].append(len(kept))
            sizes.append(len(phrases))
            kept.append(document)
    return kept


def share_out(total: int, available: dict[str, int]) -> dict[str, int]:
    """How many documents each section gives: as many as the others, or all it has."""
    if not 1 <= total <= sum(available.values()):
        raise InputError(f"--documents is {total:,}: give a number from 1 to {sum(available.values()):,}.")
    shares = {}
    for place, section in enumerate(sorted(available, key=lambda one: (available[one], one))):
        shares[section] = min(available[section], (total - sum(shares.values())) // (len(available) - place))
    return shares


def draw(documents: Iterable[Document], total: int, seed: int) -> list[Document]:
    """A random choice that is balanced across sections, in random order."""
    by_section = {section: [document for document in documents if document.section == section] for section in SECTIONS}
    drawn = []
    for section, size in share_out(total, {name: len(there) for name, there in by_section.items()}).items():
        drawn += random.Random(f"{seed} {section}").sample(by_section[section], size)
    random.Random(f"{seed} order").shuffle(drawn)
    return drawn


def merge_small_teams(documents: list[Document]) -> list[Document]:
    """Write ``OTHERS`` for maintainers of fewer than ``MIN_TEAM`` documents."""
    sizes = Counter(document.maintainer for document in documents)
    return [one if sizes[one.maintainer] >= MIN_TEAM else replace(one, maintainer=OTHERS) for one in documents]


def collect(lists: Path, total: int, seed: int) -> list[Document]:
    """The documents of a file, from lists that are downloaded unless the folder has them."""
    complaint = "" if find_releases(lists) else fetch_lists(lists)
    documents = drop_near_copies(drop_siblings(read_documents(lists)))
    if not documents:
        said = re.findall(r"^[EW]: (.*?)\.?$", complaint, re.M) or ["no list of a Debian release came"]
        raise InputError(
            f"apt cannot download Debian's lists of packages ({said[0]}): make `apt-get update` work, then try again."
        )
    return merge_small_teams(draw(documents, total, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT.csv", help="file to write")
    parser.add_argument("--documents", type=int, default=3000, help="number of texts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--lists", type=Path, metavar="FOLDER", help="read apt's lists here, or keep them here")
    options = parser.parse_args()
    try:
        out = output_path(options.out)
        with tempfile.TemporaryDirectory() as folder:
            documents = collect(options.lists or Path(folder), options.documents, options.seed)
        columns = ("package", "section", "text", "maintainer")
        with atomic_write(out) as path, path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([getattr(document, column) for column in columns] for document in documents)
    except InputError as error:
        parser.exit(2, f"{error}\n")
    sections = Counter(document.section for document in documents)
    print(f"Wrote {len(documents):,} texts to {out}: {', '.join(f'{sections[name]} {name}' for name in SECTIONS)}.")


if __name__ == "__main__":
    main()
