"""What does the gateway cost, what does it stand, and does it keep every token?

    python -m benchmarks.gateway [--quick] [--only=PART,...] [--cache=FOLDER] [--out=FILE]
                                 [--weights=FILE]

fuzz: requests that no client should send, and replies that no policy should write.
branches: whatever agents do to their conversations, against the tokens that are trained on.
overhead: what a call costs besides the policy's time, over HTTP, with 1 and 64 clients.
impatient: clients that hang up in silence, and clients that cut their calls and ask again.
rewriting: agents that change what was told before, of which users are warned.
drift: conversations in the tokens of four families, kept by the gateway and rendered anew.
clients: unmodified clients play a task in a sandbox to its end.
resent: a long history that is sent again, and one that the engine has kept.
constrained: a policy that knows nothing, held to a tool's schema.
masks: what the learner needs to know of replies that are held to schemas.
real: two of the clients before the model in --weights, which decides what is done, and what it
costs to hold it to a schema.

drift, clients, masks and real get what they need from PyPI and npm, and keep it in the cache.
--quick: few of everything and nothing from the network, so none of these. real needs --weights, a
.gguf file or a Hugging Face folder. A table and, as the last line, one JSON object are printed;
progress goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.choices import some_of
from benchmarks.gateway import report, surroundings
from benchmarks.gateway.plan import FULL, QUICK

# Each is a module whose `measure` takes a plan; some also take the folder of what is downloaded.
OFFLINE = ("fuzz", "branches", "impatient", "rewriting", "overhead", "resent", "constrained")
DOWNLOAD = ("drift", "clients", "masks", "real")
PARTS = OFFLINE + DOWNLOAD
CACHE = Path(".cache/gateway_benchmark")


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a part could not be measured."""
    options = _parse(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    figures: dict[str, Any] = dict.fromkeys(report.REQUIRED)
    failures = {}
    for part in (each for each in PARTS if each in options.only):
        say(f"{part} begins")
        try:
            figures |= _measure(part, options)
        except Exception as error:  # of any kind, as the other parts must still be measured
            say(f"{part} failed:\n{traceback.format_exc()}")
            failures[part] = f"{type(error).__name__}: {error!s:.300}"
    about = {"command": " ".join(["python -m benchmarks.gateway", *arguments])}
    about |= surroundings.describe() | {"failures": failures}
    result = {"benchmark": "gateway", **figures, **about}
    report.show(figures)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result))
    return 1 if failures else 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _measure(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """A part is imported when it is measured, as some need the engine and its libraries."""
    module = importlib.import_module(f"benchmarks.gateway.{part}")
    plan, start = QUICK if options.quick else FULL, time.monotonic()
    if part == "real":
        found = module.measure(options.cache, options.weights)
    else:
        found = module.measure(plan, options.cache) if part in DOWNLOAD else module.measure(plan)
    return found | {f"{part}_seconds": round(time.monotonic() - start, 1)}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.gateway", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ends within a minute")
    parser.add_argument("--only", type=some_of(PARTS), help="parts, separated by commas")
    parser.add_argument("--cache", type=Path, default=CACHE, help="of what is downloaded")
    parser.add_argument("--weights", metavar="FILE", help="of the model that `real` needs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.only is None:
        left_out = (*(DOWNLOAD if options.quick else ()), *(() if options.weights else ("real",)))
        options.only = [part for part in PARTS if part not in left_out]
    if "real" in options.only and not options.weights:
        parser.error("the part real needs --weights=FILE, a .gguf file or a Hugging Face folder")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
