"""Are tasks of other libraries played as in these libraries?

    python -m benchmarks.worlds [--seeds=20] [--libraries=reasoning_gym,gem,textarena]

Each environment of each library is played through its bridge and in the library alone, with the
same seeds and replies: observations, rewards and ends must be equal. `make gem textarena` installs
the libraries. The last line of stdout is a JSON object. Exit code 1: an environment differs that
the library itself can play and repeat.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks.choices import some_of
from benchmarks.worlds.bridges import WORLDS, compare

PYTHONS = {
    "reasoning_gym": ".venv-gem/bin/python",
    "gem": ".venv-gem/bin/python",
    "textarena": ".venv-textarena/bin/python",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--libraries", type=some_of(WORLDS), default=tuple(WORLDS))
    arguments = parser.parse_args()
    found = {}
    for library in arguments.libraries:
        start = time.monotonic()
        equality = compare(library, PYTHONS[library], arguments.seeds)
        found[library] = {**equality._asdict(), "seconds": round(time.monotonic() - start, 1)}
        print(f"{library}: {equality.equal} of {equality.environments} equal", flush=True)
    print(json.dumps({"bridges_equal": found}))
    reasons = [reason for each in found.values() for reason in each["exceptions"].values()]
    return int(any(not reason.startswith("the library ") for reason in reasons))


if __name__ == "__main__":
    sys.exit(main())
