"""Metrics of two runs are compared without what a clock decides."""

from pathlib import Path

from ale_jax.monitor.metrics import read_metrics

TIME_PREFIX = "time/"
OTHER_TIMES = ("seconds", "tokens_per_second", "train_tokens_per_second", "mfu")


def rl_lines(workdir: Path) -> list[dict]:
    """The lines of the reinforcement phase."""
    lines = read_metrics(workdir / "metrics.jsonl").records
    return [
        {k: v for k, v in line.items() if k not in OTHER_TIMES and not k.startswith(TIME_PREFIX)}
        for line in lines
        if line["phase"] == "rl"
    ]
