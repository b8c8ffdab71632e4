"""How episodes are played: by how many workers, where, and how long a run waits for them."""

from __future__ import annotations

import dataclasses
import re

from ale_jax.config.setting import Settings, section, setting
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.sdk.login import TOKEN

KUBERNETES = "kubernetes"
RUNTIMES = ("auto", "docker", "bubblewrap", KUBERNETES)
RAY, THREADS = "ray", "threads"
RESOURCE = re.compile(r"([\w.:-]+)=(\d+(?:\.\d+)?)")
LABEL = re.compile(r"([\w./-]+)=([\w.-]+)")
SERVICE = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?/?")
OWN_FIELDS = ("CPU", "GPU", "memory", "object_store_memory")  # Ray has options for them
A_DAY = 86400.0


@dataclasses.dataclass(frozen=True)
class PlacementConfig(Settings):
    """What Ray sets aside for each worker, and which nodes may hold one.

    The workers are spread over these nodes. Without --ray-address there is one node, which holds
    all of them.
    """

    cpus: float = setting(
        1.0,
        "CPUs of each worker.",
        at_least=0.01,
        at_most=1024.0,
        remedy="a node without CPUs must get no worker",
    )
    memory_mb: int = setting(
        0,
        "MiB of memory of each worker and its sandboxes, so that a node gets no more workers than "
        "it has memory for; 0: it is not counted.",
        at_least=0,
    )
    resources: tuple[str, ...] = setting(
        (),
        'custom resources of each worker as NAME=AMOUNT, such as "sandbox=1" for nodes that were '
        "started with --resources='{\"sandbox\": 8}'.",
    )
    labels: tuple[str, ...] = setting(
        (),
        'labels that a node must have, as KEY=VALUE, such as "pool=sandboxes" for nodes that were '
        "started with --labels=pool=sandboxes.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.resources:
            found = RESOURCE.fullmatch(text)
            if not found or not float(found[2]) or found[1] in OWN_FIELDS:
                raise ValueError(f"resources {text!r}: write NAME=AMOUNT, such as sandbox=1")
        for text in self.labels:
            if not LABEL.fullmatch(text):
                raise ValueError(f"labels {text!r}: write KEY=VALUE, such as pool=sandboxes")
        for name, amount in {"cpus": self.cpus, **self.custom_resources}.items():
            if amount > 1 and amount != int(amount):
                raise ValueError(f"{name} {amount} must be whole, as Ray divides only one in parts")

    @property
    def custom_resources(self) -> dict[str, float]:
        return {name: float(amount) for name, amount in _pairs(self.resources)}

    @property
    def node_labels(self) -> dict[str, str]:
        return dict(_pairs(self.labels))


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


@dataclasses.dataclass(frozen=True)
class RolloutConfig(Settings):
    """How episodes are played: actors * episodes_per_actor of them concurrently."""

    runtime: str = setting(
        "auto",
        'sandbox runtime: "docker", "bubblewrap", "kubernetes" (a pod for each sandbox, from a pod '
        'with the rights to start them), or "auto", which is Docker if its daemon answers, and '
        "otherwise bubblewrap; or the URL (http://HOST:PORT) of a service of "
        f"sandboxes (`ale-sandbox serve`), whose token is in the variable {TOKEN}.",
    )
    actors: int = setting(4, "rollout workers.", at_least=1)
    episodes_per_actor: int = setting(
        16,
        "episodes that each worker plays concurrently.",
        at_least=1,
    )
    max_reply_tokens: int = setting(512, "maximum tokens of one reply.", at_least=1)
    retries: int = setting(
        2,
        "how often an episode is repeated that was rejected, or that the system failed, and how "
        "often before that the verdict of a reward worker alone, if it was that which failed.",
        at_least=0,
    )
    placement: PlacementConfig = section(PlacementConfig)
    uplink: Uplink = section(Uplink)
    datasets: tuple[str, ...] = setting(
        (),
        'directories of each machine, "NAME=/PATH", that sandbox.datasets may name: sandboxes see '
        "them read-only.",
    )
    devices_per_engine: int = setting(
        0,
        "accelerators of one engine, which has engine.max_sequences slots, and a copy of the "
        "weights; 0: one engine on all those of a process that sample.",
        at_least=0,
    )
    engine_devices: int = setting(
        0,
        "accelerators of each process, its last ones, that only sample. Then `mesh` is of the "
        "others, which only learn, at the same time, and new weights are sent over; 0: all do "
        "both.",
        at_least=0,
    )
    lent_engines: int = setting(
        0,
        "engines, of those with devices for themselves, that lend these to an update which begins "
        "while few conversations are in progress: others go on with their conversations, and the "
        "update is divided over more devices.",
        at_least=0,
    )
    workers: str = setting(
        RAY,
        '"ray" actors, in processes of their own, or "threads" of this process, which a debugger '
        "can follow.",
        choices=(RAY, THREADS),
    )

    reward_workers: int = setting(
        0,
        "threads beside the episodes of each actor, or of this process if workers are threads, for "
        "verdicts that need no sandbox (worlds with `is_judged_apart`, such as rows with the check "
        "judge): the episode's place is free meanwhile. 0: they are made in its place.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_runtime(self.runtime)
        Datasets.parse(self.datasets)
        if is_service(self.runtime) and (self.uplink != DIRECT or self.datasets):
            raise ValueError(
                f"uplink {self.uplink} and datasets {self.datasets} are for sandboxes of the run's "
                f"own machines: the operator of {self.runtime} says them with ale-sandbox serve "
                "--uplink-network, --uplink-proxy, --dataset"
            )
        if self.workers == THREADS and self.placement != PlacementConfig():
            raise ValueError(
                f"placement {self.placement} is for Ray's actors, and workers are {THREADS}: leave "
                f"it out, or set workers to {RAY}"
            )


def is_service(runtime: str) -> bool:
    """Returns whether the sandboxes are those of a service, whose URL this is."""
    return runtime.startswith(("http://", "https://"))


def is_elsewhere(runtime: str) -> bool:
    """Returns whether the sandboxes are on machines where nothing else of the run is."""
    return is_service(runtime) or runtime == KUBERNETES


def _check_runtime(runtime: str) -> None:
    if not is_service(runtime):
        if runtime not in RUNTIMES:
            raise ValueError(
                f"runtime {runtime!r:.80} is unknown: choose one of {', '.join(RUNTIMES)}, or "
                "http://HOST:PORT of a service"
            )
        return
    if "@" in runtime:  # not repeated, as it may be a secret
        raise ValueError(
            f"runtime names a user or token, and configs are recorded: put the token into the "
            f"variable {TOKEN}"
        )
    if not SERVICE.fullmatch(runtime):
        raise ValueError(
            f"runtime {runtime!r:.140} must be http://HOST:PORT or https://HOST:PORT of a service"
        )


@dataclasses.dataclass(frozen=True)
class DeadlinesConfig(Settings):
    """How long a run waits for what may never come.

    An attempt at an episode that misses one of the first three is cancelled, and its task is
    played again in another sandbox. They count the time of rollout worker, environment and
    sandbox. The policy's time does not count: a queue or a compilation is not the attempt's
    fault.
    """

    placement_seconds: float = setting(
        120.0,
        "from the request until the agent's first question to the policy, i.e. for the sandbox to "
        "start, and for the task to be set up. Also for a rollout worker to start: one that has "
        "no node for so long is reported, and if there is no other, the run ends.",
        at_least=0.1,
        at_most=A_DAY,
        remedy="it is in seconds",
    )
    turn_seconds: float = setting(
        120.0,
        "from a reply of the policy until the next question, or until the verdict.",
        at_least=0.1,
        at_most=A_DAY,
        remedy="it is in seconds",
    )
    episode_seconds: float = setting(
        1800.0,
        "all turns of an attempt together.",
        at_least=0.1,
        at_most=A_DAY,
        remedy="it is in seconds",
    )
    outage_seconds: float = setting(
        600.0,
        "if every attempt fails for so long for reasons in the system, the run ends.",
        at_least=0.1,
        at_most=A_DAY,
        remedy="it is in seconds",
    )
    watchdog_seconds: float = setting(
        120.0,
        "if nothing is finished for so long, the run says what it waits for.",
        at_least=0.1,
        at_most=A_DAY,
        remedy="it is in seconds",
    )
