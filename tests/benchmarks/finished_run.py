"""The folder of a finished run that never ran, with figures as told."""

import dataclasses

from ale_jax.monitor.evaluations import Evaluation, FamilyResult, write_evaluations, write_summary
from ale_jax.monitor.events import EventLog
from ale_jax.monitor.metrics import MetricsWriter
from ale_jax.system.compilation import STARTED
from tests.monitor.fake_run import SUMMARY


def write_run(folder, seed, solved, norms=(1.0,) * 6, starts=()):
    folder.mkdir(parents=True)
    results = {
        "trail": FamilyResult(solved, 40, False, solved / 40),
        "relay": FamilyResult(0, 9, True, 0.0),
    }
    before = {"trail": FamilyResult(10, 40, False, 0.25)}
    write_evaluations(
        folder, [Evaluation("warm_start", 0, 1.0, before), Evaluation("final", 6, 9.0, results)]
    )
    with MetricsWriter(folder) as metrics:
        metrics.log(1, {"loss": 2.0}, "sft")
        for i, norm in enumerate(norms, 1):
            values = {"episodes": 4 * i, "success": 0.5, "staleness_mean": i / 10}
            values |= {} if norm is None else {"grad_norm": norm}
            values |= {"prefix_turns_mean": starts[i - 1]} if starts else {}
            metrics.log(i, values, "rl")
    with EventLog(folder) as events:
        for machine in ("jax 1.0", "jax 1.0", "jax 1.1"):
            events.record(STARTED, machine)
    write_summary(folder, dataclasses.replace(SUMMARY, seed=seed))
