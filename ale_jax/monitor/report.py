"""report.html: the report of a run, in one self-contained page.

python -m ale_jax.monitor.report RUN_DIR

All text that a run wrote is untrusted: the template escapes it, and `text.visible` replaces control
characters. If both failed, the page's content security policy would still forbid scripts and
fetches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from ale_jax.files import write_atomically
from ale_jax.monitor import report_losses as losses
from ale_jax.monitor import report_sections as sections
from ale_jax.monitor.bubbles import sum_bubbles
from ale_jax.monitor.evaluations import SUMMARY_FILE
from ale_jax.monitor.progress import duration
from ale_jax.monitor.run_files import RunFiles, read_run, require_run
from ale_jax.monitor.text import visible
from ale_jax.monitor.timeline_picture import draw
from ale_jax.monitor.trajectories import episode_views

REPORT_FILE = "report.html"


def write_report(workdir: Path) -> Path:
    """Writes the report of the run in `workdir` from its files, and returns its path.

    Missing, empty and damaged files are listed at the top of the report.

    Raises:
      ValueError: `workdir` is not a directory.
    """
    return _write(read_run(workdir))


def is_reported(workdir: Path) -> bool:
    """Returns whether a finished run has the report of its end, and not only one from before it
    went on."""
    report, summary = workdir / REPORT_FILE, workdir / SUMMARY_FILE
    return report.exists() and report.stat().st_mtime_ns >= summary.stat().st_mtime_ns


def render(run: RunFiles) -> str:
    """Returns the page as HTML."""
    before, after = sections.before_and_after(run)
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            run=run,
            summary=run.summary,
            untrained=run.summary.untrained if run.summary else "",
            before=before and sections.rate(before.total(held_out=False)),
            after=after and sections.rate(after.total(held_out=False)),
            after_held_out=after and sections.rate(after.total(held_out=True)),
            curve=sections.learning_curve(run),
            trained_rows=sections.family_rows(run, held_out=False),
            held_out_rows=sections.family_rows(run, held_out=True),
            staleness=sections.staleness_bars(run),
            truncations=losses.truncations(run),
            stale_groups=losses.stale_groups(run),
            time_splits=sections.time_splits(run),
            compile_seconds=sections.compile_seconds(run),
            picture=draw(run.timeline),
            bubbles=sum_bubbles(run.timeline),
            small_charts=sections.small_charts(run),
            dropped_rows=losses.dropped_rows(run),
            event_counts=sections.event_counts(run),
            event_rows=sections.event_rows(run),
            episodes=episode_views(run.trajectories),
        )
    )


def main(arguments: list[str]) -> int:
    """Rewrites a run's report. Returns 1 if a file of the run is damaged, 2 if there is no run."""
    parser = argparse.ArgumentParser(
        prog="python -m ale_jax.monitor.report", description="Rewrite the report of a run."
    )
    parser.add_argument("run_dir", type=Path, help="the directory that the run wrote to")
    path = parser.parse_args(arguments).run_dir
    try:
        run = read_run(path)
        require_run(path)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for notice in run.notices:
        print(visible(notice), file=sys.stderr)
    print(_write(run))
    return 1 if run.damaged else 0


def _write(run: RunFiles) -> Path:
    path = run.workdir / REPORT_FILE
    write_atomically(path, [render(run).encode()])
    return path


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ale_jax.monitor", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["duration"] = duration
    environment.filters["seconds"] = _seconds
    environment.filters["signed"] = _signed
    return environment


def _seconds(number: float) -> str:
    """Formats seconds, with a decimal below ten seconds."""
    return f"{number:.1f}s" if number < 10 else duration(number)


def _signed(number: float) -> str:
    return f"{number:+.3g}".replace("-", "\N{MINUS SIGN}") if number else "0"


def _visible_text(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
        return visible(value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
