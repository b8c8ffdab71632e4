"""Are tasks of other libraries played as in these libraries?

    python -m benchmarks.worlds [--seeds=20] [--libraries=reasoning_gym,gem,textarena,bfcl]

Each environment of each library is played through its bridge and in the library alone, with the
same seeds and replies: observations, rewards and ends must be equal. Of bfcl, all tasks are played
with right and wrong calls, whatever --seeds says. `make gem textarena bfcl` installs the libraries.
The last line of stdout is a JSON object. Exit code 1: an environment differs that
the library itself can play and repeat.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.choices import some_of
from benchmarks.worlds import bfcl
from benchmarks.worlds.bridges import compare

BFCL = "bfcl"
PYTHONS = {
    "reasoning_gym": ".venv-gem/bin/python",
    "gem": ".venv-gem/bin/python",
    "textarena": ".venv-textarena/bin/python",
    BFCL: ".venv-bfcl/bin/python",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--libraries", type=some_of(PYTHONS), default=tuple(PYTHONS))
    arguments = parser.parse_args()
    found = {}
    for library in arguments.libraries:
        start = time.monotonic()
        told = _bfcl() if library == BFCL else _games(library, arguments.seeds)
        found[library] = {**told, "seconds": round(time.monotonic() - start, 1)}
    print(json.dumps({"bridges_equal": found}))
    reasons = [reason for each in found.values() for reason in each["exceptions"].values()]
    return int(any(not reason.startswith("the library ") for reason in reasons))


def _games(library: str, seeds: int) -> dict[str, Any]:
    told = compare(library, PYTHONS[library], seeds)
    print(f"{library}: {told.equal} of {told.environments} equal", flush=True)
    return told._asdict()


def _bfcl() -> dict[str, Any]:
    told = bfcl.compare(PYTHONS[BFCL])
    print(f"bfcl: {told.items - len(told.exceptions)} of {told.items} equal; the expected calls")
    print(f"  solve {told.gold}, through the gateway {told.gold_by_gateway}, none {told.empty}")
    return told._asdict()


if __name__ == "__main__":
    sys.exit(main())
