"""ale-jax eval: plays tasks with any policy, writes down each episode, and says what they tell."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.config.agent import AUTO, TEMPLATE, TEXT
from ale_jax.config.engine import Sampling
from ale_jax.config.model import FULL
from ale_jax.config.run import RunConfig
from ale_jax.evaluation.cost import Cost, Prices
from ale_jax.evaluation.episodes import EpisodeRecord, EpisodeWriter, read_result
from ale_jax.evaluation.pass_rates import write_pass_rates
from ale_jax.evaluation.plan import (
    SAMPLINGS,
    Plan,
    claim,
    described,
    described_play,
    finished,
    require_same,
)
from ale_jax.evaluation.players import Deliver, EndpointPlayer
from ale_jax.evaluation.statistics import breakdown, summarize
from ale_jax.evaluation.tables import show_one
from ale_jax.model.weights.hub import is_name, pinned
from ale_jax.monitor.progress import Progress, make_progress
from ale_jax.records import EpisodeKey
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.system.checks import config_with_weights, resolved_config
from ale_jax.system.evaluate_run import opened
from ale_jax.system.evaluated import STEP, policy_name, record_of_trajectory
from ale_jax.system.lease import Lease
from ale_jax.system.serve import serving
from ale_jax.system.start import open_runtime
from ale_jax.worlds.endpoint import Endpoint
from ale_jax.worlds.families import PlayableFamilies, families_of
from ale_jax.worlds.items import require_split

NEWEST, FOLDER = "newest", "hf:"
ENDPOINT = ("http://", "https://")
KEY_VARIABLE = "ALE_POLICY_KEY"  # never on the command line, where others would see it


@dataclasses.dataclass(frozen=True)
class Options:
    """As the flags of `ale-jax eval`. sampling: the name of one of SAMPLINGS; "" for the config's.
    workers: None for one, or the places of a run."""

    out: str
    policy: str = NEWEST
    workdir: str = ""
    samples: int = 1
    limit: int = 0
    split: str = "eval"
    sampling: str = ""
    workers: int | None = None
    dry_run: bool = False
    json: bool = False
    prices: str = ""


def run_eval(values: Mapping[str, Any], options: Options, given: Collection[str] = ()) -> None:
    """Plays what is not in the folder `options.out` yet, and prints the results of all that is. One
    process at a time has the folder.

    given: as for `resolved_config`.

    Raises:
      ValueError: the options or the config make no sense, or the folder holds another evaluation,
        or is in use.
      RunFailed: the policy does not answer, the episodes cannot be played, or another process has
        taken over.
    """
    if unread := {"eval.tasks", "eval.every"}.intersection(given):
        raise ValueError(
            f"config.{min(unread)} is about a run's own evaluations: say --limit=N, how many items "
            "this one has"
        )
    config = resolved_config(values, given, Path(options.workdir) if options.workdir else None)
    if options.policy.startswith((FOLDER, *ENDPOINT)):
        config = _of_given_model(config)
    families = families_of(config)
    prices = Prices.read(options.prices) if options.prices else None
    sampling = _sampling(config, options.sampling)
    plan = Plan(families, options.samples, options.limit, require_split(options.split))
    if not options.out:
        raise ValueError("--out is missing: name a folder for the evaluation, e.g. evals/first")
    folder = Path(options.out)
    play_settings = described_play(config, plan.split) | _rules(config)
    require_same(folder, play_settings)
    if options.dry_run:
        print(*_dry(plan, plan.left(finished(folder))), sep="\n")
        return
    with _player(config, options, sampling) as (name, play):
        settings = described([family.name for family in families], name, sampling) | play_settings
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Lease.take(folder)) as lease:
            claim(folder, settings)  # only now, as of two that begin at once one is refused
            with EpisodeWriter(folder) as writer, make_progress(sys.stderr) as progress:
                keys = plan.left(finished(folder))
                known = len(plan.episodes()) - len(keys)
                progress.phase("evaluation", known + len(keys), known, "episodes")
                play(plan, keys, _Shown(writer.write, lease, progress, known))
    _tell(folder, options.json, prices)


class _Shown:
    """Writes episodes down and shows how far they are: their success, and tokens each second."""

    def __init__(self, write: Deliver, lease: Lease, progress: Progress, known: int):
        self._write, self._lease, self._progress, self._known = write, lease, progress, known
        self._began = time.monotonic()
        self._played = self._judged = self._solved = self._tokens = 0

    def __call__(self, episode: EpisodeRecord) -> None:
        self._lease.check()
        self._write(episode)
        self._played += 1
        self._judged += episode.judged
        self._solved += episode.solved
        self._tokens += episode.policy_tokens
        self._progress.update(
            self._known + self._played,
            success=self._solved / self._judged if self._judged else None,
            tokens_per_second=self._tokens / (time.monotonic() - self._began),
        )


def _of_given_model(config: RunConfig) -> RunConfig:
    """Returns the config as `agent.tools` is meant for a policy that no run of ours trained: its
    own `weights` may be none, or others."""
    if config.agent.tools != AUTO:
        return config
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, tools=TEMPLATE))


def _rules(config: RunConfig) -> dict[str, Any]:
    """Returns what else decides how an episode goes."""
    return {
        "turns": config.agent.turns,
        "tools": TEMPLATE if config.tools_in_template else TEXT,
        "reply_tokens": config.rollout.max_reply_tokens,
    }


def _sampling(config: RunConfig, name: str) -> Sampling:
    if name and name not in SAMPLINGS:
        raise ValueError(f"--sampling={name} is unknown: choose one of {', '.join(SAMPLINGS)}")
    return SAMPLINGS[name] if name else config.eval_sampling


def _dry(plan: Plan, left: Sequence[EpisodeKey]) -> Iterator[str]:
    """Yields what would be played."""
    whole = plan.episodes()
    yield f"{len(whole)} episodes, of which {len(whole) - len(left)} are finished; to be played:"
    for family in plan.families:
        its = [key for key in left if key.task.family == family.name]
        items = len({key.task for key in its})
        yield f"  {family.domain.world} {family.name}: {len(its)} episodes of {items} items"


def _tell(folder: Path, as_json: bool, prices: Prices | None) -> None:
    result = read_result(folder)
    write_pass_rates(folder, result.episodes)
    cost = Cost.of(result.episodes, prices)
    if prices and cost.prompt_tokens is None:
        print("--prices: not all episodes have prompt_tokens, so nobody knows", file=sys.stderr)
    if as_json:
        groups = {
            column: {value: dataclasses.asdict(summary) for value, summary in its.items()}
            for column, its in breakdown(result.episodes).items()
        }
        whole = dataclasses.asdict(summarize(result.episodes))
        told = {"name": result.name, "all": whole, "by": groups, "cost": dataclasses.asdict(cost)}
        print(json.dumps(told, allow_nan=False))
    else:
        show_one(result)
        print(cost)


@contextlib.contextmanager
def _player(config: RunConfig, options: Options, sampling: Sampling) -> Iterator[tuple[str, Any]]:
    """Yields the policy's name, and what plays with it: a function of a plan, some of its episodes,
    and what each is delivered to."""
    given, path = options.policy, Path(options.workdir) if options.workdir else None
    if given.startswith(ENDPOINT):
        endpoint = Endpoint.read(given, "--policy", os.environ.get(KEY_VARIABLE, ""))
        with _by_endpoint(config, options, sampling, endpoint) as play:
            yield given, play
        return
    if given.startswith(FOLDER):
        weighed, model, name = _weighed(config, given)
        say = functools.partial(print, file=sys.stderr)
        with serving(weighed, None, "127.0.0.1", 0, as_in_run=True, say=say) as policy:
            endpoint = Endpoint(policy.url, model, policy.key)
            with _by_endpoint(config, options, sampling, endpoint) as play:
                yield name, play
        return
    step = _step(given)
    if options.workers is not None:
        raise ValueError(
            f"--workers={options.workers} is for endpoints and weights: the policy of a run plays "
            "in the places of its config, rollout.actors x rollout.episodes_per_actor"
        )
    if path is None:
        raise ValueError(f"--policy={given} is one of a run: name its folder with --workdir")
    with opened(config, path, step) as run:

        def play(plan: Plan, keys: Sequence[EpisodeKey], deliver: Deliver) -> None:
            run.play(
                keys, sampling, lambda each: deliver(record_of_trajectory(plan.families, each))
            )

        yield policy_name(run.step, path), play


def _weighed(config: RunConfig, given: str) -> tuple[RunConfig, str, str]:
    """Returns the config with the weights of hf:SOURCE, or hf:SOURCE#NAME with the adapter NAME of
    `serve.adapters`, and no other; the model to ask; and the policy's name. ValueError if there is
    no such adapter."""
    source, _, adapter = given.removeprefix(FOLDER).partition("#")
    if not source:
        raise ValueError(f"--policy={given} names no weights: write hf:DIR or hf:ORGANIZATION/NAME")
    weights = pinned(source) if is_name(source) else str(Path(source).resolve())
    weighed = dataclasses.replace(config_with_weights(config, weights), lora=FULL)
    folders = config.serve.folders
    if adapter and adapter not in folders:
        raise ValueError(
            f"--policy={given}: there is no adapter {adapter!r:.80} in config.serve.adapters, but "
            f"{', '.join(folders) or 'none'}: name its folder there, as {adapter}=FOLDER"
        )
    chosen = (f"{adapter}={folders[adapter]}",) if adapter else ()
    serve = dataclasses.replace(config.serve, adapters=chosen)
    weighed = dataclasses.replace(weighed, serve=serve)
    if not adapter:
        return weighed, config.name, given
    return weighed, adapter, f"{given}={Path(folders[adapter]).resolve()}"


def _step(given: str) -> int | None:
    """Returns the step that a policy is named by; None for the newest."""
    if given == NEWEST:
        return None
    number = given.removeprefix(STEP)
    if number == given or not number.isdecimal():
        raise ValueError(
            f"--policy={given!r:.80} must be {NEWEST}, {STEP}N, {FOLDER}DIR, "
            f"{FOLDER}ORGANIZATION/NAME or http://HOST/v1#MODEL"
        )
    return int(number)


@contextlib.contextmanager
def _by_endpoint(
    config: RunConfig, options: Options, sampling: Sampling, endpoint: Endpoint
) -> Iterator[Any]:
    if config.external_agent.command:
        raise ValueError(
            f"external_agent plays with the policy of a run, and not with {options.policy}: leave "
            "its command out, or name a run's policy"
        )
    workers = 1 if options.workers is None else options.workers
    if workers < 1:
        raise ValueError(f"--workers={workers} must be at least 1")

    runtime = functools.cache(functools.partial(open_runtime, config))
    start = lambda spec: runtime().start(spec, {"role": "eval"})  # noqa: E731
    families = families_of(config)
    rollout = config.rollout
    player = EndpointPlayer(endpoint, sampling, rollout.max_reply_tokens, workers, rollout.retries)
    worlds = PlayableFamilies(families, config.sandbox)
    with contextlib.closing(EpisodeRunner(start, worlds, config.agent)) as runner:

        def play(plan: Plan, keys: Sequence[EpisodeKey], deliver: Deliver) -> None:
            player.play(plan, keys, runner, deliver)

        yield play
