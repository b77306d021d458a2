"""Does ``ddm fit --plan`` predict the time of a fit within a factor of two? Each fit is planned, then run.

make bench
"""

import json
import os
import subprocess
import sys

import pytest

FITS = {
    "response": "digits --option width=16 --epochs 20 --clusters 5",
    "many groups": "digits --option width=16 --option depth=2 --epochs 12 --clusters 40",
    "reverse": "digits --option width=16 --option depth=2 --epochs 12 --clusters 5 --matching reverse",
}


def run_fit(options):
    command = [sys.executable, "-W", "ignore", "-m", "ddm.cli", "fit", *options.split(), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


@pytest.mark.benchmark(group="a fit that was planned")
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def bench_plan(benchmark, tmp_path, options):
    planned = run_fit(f"{options} --plan")["seconds"]["all"]
    benchmark.pedantic(run_fit, (f"{options} --out {tmp_path / 'run'}",), rounds=1)
    benchmark.extra_info["planned over real"] = ratio = planned / benchmark.stats["mean"]
    print(f"planned {planned:.1f} s, {ratio:.2f} of the real time")
    assert 0.5 <= ratio <= 2
