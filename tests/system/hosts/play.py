"""A process of runs of the word game, alone or with others:

    python -m tests.system.hosts.play ADDRESS PROCESSES NUMBER FOLDER STEPS ALGORITHM...

The first process writes what each algorithm computed to FOLDER/ALGORITHM.
"""

import json
import sys
import tempfile
from pathlib import Path

import jax

from ale_jax.data.journal import Journal
from ale_jax.learn.reference import REFERENCE, load_reference, save_reference
from ale_jax.system.hosts.run import follow_run, led
from ale_jax.system.hosts.start import HostOptions, initialize
from ale_jax.system.step_metrics import step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.trainer import STATE, TrainerFiles
from tests.system.choices import CHOICES, LENGTHS
from tests.system.in_process import CAPITALS, Run, run_config
from tests.system.untimed import TIME_PREFIX

SYNCHRONOUS = {"alpha": 0.0, "groups_per_step": 2, "group_size": 4}


def config_of(algorithm, steps):
    attention = {"credit": "coupled"} if algorithm == "grpo" else {}
    loss = {"kl_weight": 0.1, "kl_estimator": "k3"} if algorithm == "grpo" else {"measure_kl": True}
    sections = {"rl": SYNCHRONOUS, "attention_credit": attention, "algo": {"loss": loss}}
    if algorithm == "asyppo":
        half = {"engine_devices": jax.local_device_count() // 2, "devices_per_engine": 1}
        sections["rollout"] = LENGTHS | half
        sections["algo"]["old_logp"] = "generating"
    return run_config(steps, algorithm, **sections)


def play(config, processes, folder):
    """Trains, and writes the steps' metrics and the state to `folder`."""
    game = CHOICES if config.rollout.devices_per_engine else CAPITALS
    run, lines = Run(config, processes, game), []

    def report(step):
        values = step_metrics(step)
        lines.append({k: v for k, v in values.items() if not k.startswith(TIME_PREFIX)})

    files = TrainerFiles()
    files.trainer = run.trainer
    if config.algo.loss.reads_reference:
        save_reference(folder, REFERENCE, _ignore, files)
        load_reference(folder, REFERENCE, _ignore, files)
    with tempfile.TemporaryDirectory() as journal_folder:
        with Journal(Path(journal_folder), _ignore) as journal:
            run.train(Cursor(), journal, report, lambda cursor, resampling: None)
    files.write(folder / "state", STATE)
    files.close()
    (folder / "metrics.json").write_text(json.dumps(lines))


def _ignore(kind, detail, **fields):
    pass


def main(address, processes, number, folder, steps, *algorithms):
    initialize(HostOptions(address, int(processes), int(number)))
    for algorithm in algorithms:
        config, own = config_of(algorithm, int(steps)), Path(folder, algorithm)
        if int(number):
            assert follow_run(config, Path(folder)) == 0
            continue
        own.mkdir(parents=True)
        with led(config, address) as leader:
            play(config, leader, own)


if __name__ == "__main__":
    main(*sys.argv[1:])
