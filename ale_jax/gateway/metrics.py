"""What the gateway does: in numbers for Prometheus, and its load as a page for people."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import jinja2
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ale_jax.gateway.requests import ChatResult

RECENT = 1000  # calls that percentiles are of
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HEALTH, METRICS, LOAD_PAGE = "/health", "/metrics", "/"
OPEN = (HEALTH, METRICS, LOAD_PAGE)  # for whoever watches, without a token
WINDOW_S = 60.0
SHARES = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "longest": 1.0}
# The page has no scripts, and fetches nothing.
PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


class RecentCall(NamedTuple):
    """A call of the API. ended: by `time.monotonic`. status: of HTTP; "none" if the client left
    before there was one. seconds: to the end of the answer."""

    ended: float
    path: str
    status: str
    seconds: float


class RecentReply(NamedTuple):
    """A finished reply. ended: by `time.monotonic`. tokens: that were written."""

    ended: float
    tokens: int


class EngineCounts(Collector):
    """The engine's own counts since its start, by name, whenever they are asked for."""

    def __init__(self, counts: Callable[[], Mapping[str, float]]):
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, value in self._counts().items():
            help_text = f"{name.replace('_', ' ').capitalize()} of the engine"
            yield CounterMetricFamily(f"ale_engine_{name}", help_text, value)


class GatewayMetrics:
    """Each gateway has its own. All methods are called by the server's thread."""

    def __init__(self, engine_counts: Callable[[], Mapping[str, float]] = dict) -> None:
        self.recent_calls: deque[RecentCall] = deque(maxlen=RECENT)
        self.recent_replies: deque[RecentReply] = deque(maxlen=RECENT)
        self.in_progress = 0
        self._registry = CollectorRegistry()
        registry = self._registry
        self.calls = Counter(
            "ale_gateway_calls", "Calls, by status", ["path", "status"], registry=registry
        )
        waiting = Gauge("ale_gateway_calls_in_progress", "Calls in progress", registry=registry)
        waiting.set_function(lambda: self.in_progress)
        self.seconds = Histogram(
            "ale_gateway_call_seconds",
            "Time to the end of the answer",
            buckets=SECONDS,
            registry=registry,
        )
        self.first_seconds = Histogram(
            "ale_gateway_first_byte_seconds",
            "Time to the answer's begin",
            buckets=SECONDS,
            registry=registry,
        )
        tokens = Counter(
            "ale_gateway_tokens", "Tokens of finished calls", ["kind"], registry=registry
        )
        self._registry.register(EngineCounts(engine_counts))
        self._tokens = {kind: tokens.labels(kind) for kind in ("prompt", "cached", "completion")}

    def count(self, result: ChatResult) -> None:
        """Counts the tokens of a finished call. Those that were cached are part of the prompt."""
        used = result.usage
        self.recent_replies.append(RecentReply(time.monotonic(), used.completion))
        self._tokens["prompt"].inc(used.prompt)
        self._tokens["cached"].inc(used.cached)
        self._tokens["completion"].inc(used.completion)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Measure:
    """ASGI middleware: counts and times the calls of the API. paths: those that there are; all
    others are counted together, since clients make them up."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, paths: frozenset[str]):
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        metrics, began, status = self._metrics, time.monotonic(), "none"

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                metrics.first_seconds.observe(time.monotonic() - began)
            await send(message)

        metrics.in_progress += 1
        try:
            await self._app(scope, receive, note)
        finally:
            metrics.in_progress -= 1
            ended = time.monotonic()
            metrics.seconds.observe(ended - began)
            path = scope["path"] if scope["path"] in self._paths else "other"
            metrics.calls.labels(path, status).inc()
            metrics.recent_calls.append(RecentCall(ended, path, status, ended - began))


@dataclasses.dataclass(frozen=True)
class PathLoad:
    """Recent calls of a path. seconds: of those that were answered, for each of SHARES."""

    path: str
    calls: int
    refused: int
    seconds: tuple[float, ...]


def load_page(metrics: GatewayMetrics, model: str) -> str:
    """Returns the page as HTML."""
    now = time.monotonic()
    replies = [each for each in metrics.recent_replies if now - each.ended < WINDOW_S]
    calls = [each.ended for each in metrics.recent_calls if now - each.ended < WINDOW_S]
    return _template().render(
        model=model,
        in_progress=metrics.in_progress,
        calls_per_second=_rate(len(calls), calls, now),
        tokens_per_second=_rate(
            sum(each.tokens for each in replies), [each.ended for each in replies], now
        ),
        shares=tuple(SHARES),
        rows=list(_path_loads(list(metrics.recent_calls))),
        recent=metrics.recent_calls.maxlen,
    )


def _rate(count: int, ends: Sequence[float], now: float) -> float:
    """Per second. Only so many ends are known, which may be of less than the whole window."""
    return count / max(now - ends[0], 1.0) if ends else 0.0


def _path_loads(calls: Sequence[RecentCall]) -> Iterator[PathLoad]:
    for path in sorted({call.path for call in calls}):
        own = [call for call in calls if call.path == path]
        seconds = sorted(call.seconds for call in own if call.status == "200")
        marks = [_quantile(seconds, share) for share in SHARES.values()] if seconds else []
        yield PathLoad(path, len(own), len(own) - len(seconds), tuple(marks))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("ale_jax.gateway", "")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("load.html.jinja")
