"""The gateway's load and latencies, as a page for people."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import cache

import jinja2

from ale_jax.gateway.metrics import GatewayMetrics, RecentCall

WINDOW_S = 60.0
SHARES = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "longest": 1.0}
# The page has no scripts, and fetches nothing.
PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@dataclasses.dataclass(frozen=True)
class PathLoad:
    """Recent calls of a path. seconds: of those that were answered, for each of SHARES."""

    path: str
    calls: int
    refused: int
    seconds: tuple[float, ...]


def load_page(metrics: GatewayMetrics, model: str) -> str:
    """The page as HTML."""
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
