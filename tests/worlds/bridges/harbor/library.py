"""What harbor itself makes of the folders, as JSON; to be run by an interpreter that has it:

    pip install harbor==0.26.0
    PYTHONPATH=. python -m tests.worlds.bridges.harbor.library \\
        > tests/worlds/bridges/harbor/library.json
"""

import json
import tempfile
import typing
import warnings
from pathlib import Path
from types import SimpleNamespace

from tests.worlds.bridges.harbor.folders import PLAYED, write
from tests.worlds.bridges.harbor.refused_folders import NOT_HERE, WRONG

REPORTS = [
    *("1", "0.5", " 1\n", "-1e-3", ".5", "5.", "+1", "", " ", "one", "nan", "inf", "1 2", "0x1"),
    *("1e999", "[]", "true"),
]
OBJECTS = [
    *('{"reward": 1}', '{"a": 0.5, "b": 0}', '{"a": "1"}', '{"a": NaN}', '{"a": 1e999}', "", "{"),
    *('{"a": null}', '{"a": [1]}', "[]", '"1"', '{"a": -2}', "1"),
]
STEPS = [
    [{"reward": 1.0}, {"reward": 0.0}],
    [{"a": 1.0}, {"a": 0.5, "b": 1.0}, {"b": 0.25}],
    [{"reward": 0.3}],
]
BOUNDS = [
    [{"reward": 0.5}, 0.5],
    [{"reward": 0.4}, 0.5],
    [{"a": 1.0}, 0.5],
    [{"a": 1.0, "b": 0.0}, {"a": 1.0}],
    [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.1}],
    [{"a": 1.0}, {"b": -5.0}],
]


def verdict(folder: Path) -> dict | None:
    """What is read of a folder; None if it is refused."""
    from harbor.models.task.task import Task

    if not Task.is_valid_dir(folder):
        return None
    task = Task(folder)
    return {
        "cpus": task.config.environment.cpus,
        "memory_mb": task.config.environment.memory_mb,
        "storage_mb": task.config.environment.storage_mb,
        "phases": [_phase(task, step) for step in task.config.steps or [None]],
    }


def _phase(task, step) -> dict:
    from harbor.models.task import verifier_mode
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
    from harbor.trial.multi_step import MultiStepTrial
    from harbor.trial.network_policy import resolve_trial_network_plan

    config = task.config
    trial = SimpleNamespace(
        task=task,
        config=SimpleNamespace(
            agent=SimpleNamespace(override_timeout_sec=None, max_timeout_sec=None),
            verifier=SimpleNamespace(override_timeout_sec=None, max_timeout_sec=None),
            agent_timeout_multiplier=None,
            verifier_timeout_multiplier=None,
        ),
        _resolve_timeout_sec=lambda base_sec, max_sec, multiplier: base_sec,
    )
    if step:
        mode = verifier_mode.resolve_step_verifier_mode(config, step)
        agent = MultiStepTrial._step_agent_timeout_sec(trial, step)
        judging = MultiStepTrial._step_verifier_timeout_sec(trial, step)
    else:
        mode = verifier_mode.resolve_task_verifier_mode(config)
        agent, judging = config.agent.timeout_sec, config.verifier.timeout_sec
    plan = resolve_trial_network_plan(
        config,
        AgentConfig(),
        EnvironmentConfig(),
        VerifierConfig(),
        step,
        verifier_mode=mode,
    )
    return {
        "instruction": task.step_instruction(step.name) if step else task.instruction,
        "seconds": agent,
        "check_seconds": judging,
        "separate": mode.value == "separate",
        "network": plan.agent_phase.network_mode.value,
        "check_network": plan.verifier_phase.network_mode.value,
    }


def parsed(name: str, content: str, folder: Path) -> dict | None:
    """The rewards of a report; None for no verdict."""
    from harbor.models.verifier.result import VerifierResult
    from harbor.verifier.verifier import Verifier

    path = folder / name
    path.write_text(content)
    paths = SimpleNamespace(reward_text_path=path, reward_json_path=path)
    verifier = SimpleNamespace(trial_paths=paths)
    parse = Verifier._parse_reward_text if "txt" in name else Verifier._parse_reward_json
    try:
        return VerifierResult(rewards=parse(verifier)).rewards
    except Exception:
        return None


def totals() -> list:
    """Means of STEPS, as a trial of several steps has them."""
    from harbor.trial.trial import Trial

    found = []
    for steps in STEPS:
        results = [SimpleNamespace(verifier_result=SimpleNamespace(rewards=r)) for r in steps]
        trial = SimpleNamespace(result=SimpleNamespace(step_results=results))
        found.append(Trial._aggregate_step_rewards(trial).rewards)
    return found


def fields(model, path: str = "") -> list[str]:
    """All fields of a model of pydantic and of those in it, without those that nobody reads."""
    found = []
    for name, field in model.model_fields.items():
        where = f"{path}.{name}" if path else name
        inner = [each for each in _models(field.annotation) if not where.startswith("task")]
        found += [each for one in inner for each in fields(one, where)] or [where]
    return found


def _models(annotation) -> list:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in typing.get_args(annotation) for model in _models(each)]


def main() -> None:
    import harbor
    from harbor.models.task.config import TaskConfig
    from harbor.trial.multi_step import MultiStepTrial

    warnings.simplefilter("ignore")
    every = PLAYED | {n: c for n, (c, _) in (NOT_HERE | WRONG).items()}
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        folders = {n: write(folder / str(i) / "one", c) for i, (n, c) in enumerate(every.items())}
        told = {
            "version": harbor.__version__,
            "fields": fields(TaskConfig),
            "folders": {name: verdict(path) for name, path in folders.items()},
            "reward.txt": {text: parsed("reward.txt", text, folder) for text in REPORTS},
            "reward.json": {text: parsed("reward.json", text, folder) for text in OBJECTS},
            "totals": totals(),
            "falls_short": [
                MultiStepTrial._min_reward_failure(rewards, bound) is not None
                for rewards, bound in BOUNDS
            ],
        }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
