"""What do staleness, dropped stragglers and redundant groups do for the speed of a run?

    python -m benchmarks.asynchrony [--quick] [--only=NAME,...] [--out=FILE]

Prints its runs and, as JSON, for each workload the seconds of a step without over those with:

- agentic: five turns of max(0, N(10, 10)) s, 16 x 8 episodes in 128 places; alpha 2 over a
  synchronous run.
- tail: log-normal episodes of one turn whose 99th percentile is 20 times their median, 10 s; 16 x 8
  in 32 places; alpha 1, slow groups dropped, over synchronous. tail_wait_real: alpha 1, none
  dropped.
- redundancy: synchronous steps of 32 x 8 in 324 places, of agentic episodes of which 5 % take five
  times as long and 1 % never end, until a deadline after 400 s lets them be played again; 36 x 9,
  of which the first 32 x 8 count, over none.

An update takes 0.3 of a synchronous rollout. NAME_sim is simulated (the scheduler,
gate and buffer of a real run), NAME_real a real run: all of the product, with threads that play, a
very small policy, and a learner whose update is prolonged. Only the sandboxes are not real: their
commands wait. Time is scaled 1:10, that of `tail` 1:50, as a reply takes milliseconds of CPU.
Medians of three seeds; real runs of these are side by side. Of real runs, in addition:

- no_barrier: the agentic workload without updates, synchronous: over a run in whose turns all 128
  episodes wait for each other.
- drop_rates: of the groups of two families that are alike, in `redundancy`; drop_rate_ratio: the
  largest over the smallest. freed_within_1_s: attempts that end within 1 s of the last one that
  their group needs.
- planner_errors: predictions of steps per hour, fitted to the first two seeds of the first
  schedule of a workload, against the run of the third seed, and against all of the second schedule.

Simulated only:

- queue_sim: 128 x 8 long-tailed episodes in 128 places, mean of 20 seeds: batches of 128 of which
  each waits for the one before, over ours, where an episode begins as soon as a place is free.
- steps_kept: steps of runs with random schedules, slow, hung and lost sandboxes and outages, in all
  of which the ages were as docs/staleness.md promises.
- scaling_8_sim: eight times the devices, with an engine in each of eight processes, over one;
  agentic, alpha 2. scaling_8_one_process_sim: with eight engines of one process, which wait for one
  another's dispatches. dispatch_cpu_ms: measured, what one costs the process.
- elastic_over_split_sim, elastic_over_colocated_sim: the tail workload on eight devices of which
  engines lend some to updates, over those plans under which none change sides; each with its best
  division. elastic_bound_sim: what no rule of lending could beat. elastic_schedules: the same with
  `wait` and alpha 0, and the divisions. Assumptions are in elastic.py.
- event_cpu_us: CPU microseconds of the scheduler for an episode, with 10,000 in progress.

--only: of simulated, scaling, elastic and the real agentic, tail, no_barrier, redundancy.
--quick: one seed, small steps, figures that mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.asynchrony import elastic, real, scaling, simulated
from benchmarks.asynchrony.cases import CASES
from benchmarks.launching import interruptible

SIMULATED, SCALING, ELASTIC = "simulated", "scaling", "elastic"
NAMES = (SIMULATED, SCALING, ELASTIC, *CASES)
SEEDS = 3


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    names = args.only.split(",")
    if unknown := set(names).difference(NAMES):
        parser.error(f"--only={args.only}: {unknown} must be of {', '.join(NAMES)}")
    found: dict[str, Any] = {}
    if SIMULATED in names:
        found |= simulated.measure(args.quick)
    if SCALING in names:
        found |= scaling.measure(args.quick)
    if ELASTIC in names:
        found |= elastic.measure(args.quick)
    if runs := [name for name in names if name in CASES]:
        with interruptible():
            found |= real.measure(runs, 1 if args.quick else SEEDS, args.quick)
    if args.out:
        args.out.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
