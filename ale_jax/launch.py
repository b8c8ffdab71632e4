"""Runs an experiment: ale-jax --config=NAME --workdir=DIR, or python -m ale_jax.launch ...

  --config=NAME:ALGORITHM        use another algorithm of configs/algorithms.py
  --config.SECTION.FIELD=VALUE   set one field, e.g. --config.rl.alpha=0.5
  --resume, --overwrite, ...     ale-jax train --help

python -m ale_jax.configs.document lists every field with its default and meaning.

Exit code: 0 done; 2 an expected failure, described in one line with its remedy; 130 stopped by
Ctrl-C or SIGTERM: the newest step is saved within `checkpoint.grace_seconds`, and the same command
continues (a second signal ends the run at once); 1 a bug, with its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from ale_jax.command_line import (
    described_choices,
    overridden,
    read_config,
    read_flags,
    with_overrides,
)
from ale_jax.errors import EXIT_FAILED, RunFailed
from ale_jax.sandbox.api import SandboxError
from ale_jax.subcommands import COMMANDS, help_text, interrupted
from ale_jax.system.allocator import use_tcmalloc
from ale_jax.system.lasting_output import keep_writable
from ale_jax.system.lease import require_free
from ale_jax.system.stopping import ANOTHER_WAS_TOLD, INTERRUPTED, StopSignals

# Modules that import jax or ray are imported where they are used, so that a mistyped command is
# answered before they load.
if TYPE_CHECKING:
    from ale_jax.config.run import RunConfig
    from ale_jax.system.doctor.findings import Report
    from ale_jax.system.hosts.commands import Processes
    from ale_jax.system.hosts.start import HostOptions
    from ale_jax.system.workdir import Workdir

MAX_PORT = 65535
NO_OUT = "--out is missing: name a folder that does not exist yet"

Resolve = Callable[[], "RunConfig"]
Run = Callable[["RunConfig", "Workdir", StopSignals, "Processes"], None]


def main(argv: Sequence[str], run: Run | None = None) -> int:
    """Runs the command line; returns the exit code.

    run: called with the checked config, the claimed folder, and what hears of SIGINT and SIGTERM
        while it runs; the controller's if None.
    """
    # Until the run begins, nothing can be lost, and these may act like Ctrl-C.
    for each in (signal.SIGTERM, ANOTHER_WAS_TOLD):
        signal.signal(each, signal.default_int_handler)
    debug = "--debug" in argv  # as far as is known before the flags are read
    try:
        command, options, overrides, operands = read_flags(argv)
        debug = options.debug
        if options.help:
            shown = help_text(command) if command in argv else [__doc__, *described_choices()]
            print("\n".join(shown))
            return 0
        if command == "compare":
            from ale_jax.evaluation.command import run_compare

            run_compare(operands, options.json)
            return 0
        if command == "replay":
            from ale_jax.system.replay_command import run_replay

            change = functools.partial(with_overrides, overrides=overrides)
            run_replay(operands, options.out, overridden(overrides), change)
            return 0
        if command == "validate":
            from ale_jax.evaluation.validate_command import Options, run_validate

            values = read_config(options.config, overrides) if options.config else None
            asked = Options(
                options.world, options.items, options.runtime, options.workers, options.json
            )
            return run_validate(asked, values)
        if command == "eval":
            return _eval(options, overrides)
        if command == "simulate":
            return _simulate(options, overrides)
        if command == "new":
            from ale_jax.system.new_config import new_config

            values = read_config(options.config, overrides)
            print(new_config(values, options.weights, options.devices), end="")
            return 0
        if command == "export" and options["episodes"].present:
            return _export_episodes(options, overrides)
        return _launch(argv, command, options, overrides, run)
    except KeyboardInterrupt:
        print(f"interrupted: {interrupted(argv)}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, RunFailed, SandboxError, flags.Error) as error:
        if debug:
            traceback.print_exc()
        print(f"error: {_one_line(error, interrupted(argv))}", file=sys.stderr)
        return EXIT_FAILED


def _values(command: str, options: flags.FlagValues, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the config that is named, or else, for what is done with a run, of the
    run's own."""
    if not options.config and COMMANDS[command].overrides and options.workdir:
        from ale_jax.system.recorded_run import recorded_config

        if recorded := recorded_config(Path(options.workdir)):
            return with_overrides(recorded.to_json(), overrides)
        raise ValueError(
            f"{options.workdir} holds no run: check --workdir, or name a config by --config"
        )
    return read_config(options.config, overrides)


def _eval(options: flags.FlagValues, overrides: Sequence[str]) -> int:
    from ale_jax.system.eval_command import Options, run_eval

    names = ("out", "policy", "workdir", "samples", "limit", "split", "sampling", "prices", "json")
    given: dict[str, Any] = {name: options[name].value for name in names}
    given["dry_run"] = options["dry-run"].value
    given["workers"] = options.workers if options["workers"].present else None
    values = _values("eval", options, overrides)
    run_eval(values, Options(**given), overridden(overrides))
    return 0


def _simulate(options: flags.FlagValues, overrides: Sequence[str]) -> int:
    from ale_jax.system.simulation.command import Basis, run_simulate

    names = ("from", "check", "episode-seconds", "update-seconds", "lost", "dispatch")
    given: list[Any] = [options[name].value for name in (*names, "update-speedup", "picture")]
    asked = Basis(*given)
    values = read_config(options.config, overrides) if options.config else None
    run_simulate(asked, values, functools.partial(with_overrides, overrides=overrides))
    return 0


def _export_episodes(options: flags.FlagValues, overrides: Sequence[str]) -> int:
    from ale_jax.recorded.export_command import export_episodes

    given = [f"--{name}" for name in ("config", "workdir", "adapter") if options[name].present]
    if without_use := [*given, *overrides]:
        raise ValueError(f"{without_use[0]} has no use with --episodes: leave one of them out")
    if not options.out:
        raise ValueError(NO_OUT)
    source, out = Path(options.episodes), Path(options.out)
    number = export_episodes(source, options.format, out)
    print(f"{number} episodes are in {out}")
    return 0


def _launch(
    argv: Sequence[str],
    command: str,
    options: flags.FlagValues,
    overrides: Sequence[str],
    run: Run | None,
) -> int:
    values = _values(command, options, overrides)
    run_there = Path(options.workdir) if options.workdir and not options.overwrite else None
    resolve = functools.partial(_resolve, values, overridden(overrides), run_there)
    if command == "plan":
        return _plan(resolve)
    act = functools.partial(_train, run=run)
    if command == "doctor":
        from ale_jax.system.doctor.software import software_report

        # Before jax is imported, which wrong versions may prevent.
        act = functools.partial(_doctor, report=software_report(options.process))
    elif options.workdir:
        require_free(Path(options.workdir).resolve())
    elif command != "serve" or not values["weights"]:
        raise ValueError("--workdir is missing: give a folder for the run, e.g. runs/first")
    if act_alone := {"export": _export, "serve": _serve}.get(command):
        return act_alone(resolve, options)

    from ale_jax.system.hosts.start import HostOptions, spawned

    if options.spawn < 1:
        raise ValueError(f"--spawn={options.spawn} must be at least 1")
    if options.coordinator and not options["processes"].present:
        raise ValueError(
            f"--coordinator={options.coordinator} is of several processes: say how many there are "
            "with --processes"
        )
    if options.spawn == 1:
        host = HostOptions(options.coordinator, options.processes, options.process)
        return act(resolve, options, host)
    if options.processes > 1:
        raise ValueError("--spawn starts all processes by itself: leave out --processes")
    with spawned(options.spawn, argv[1:]) as host:
        return act(resolve, options, host)


def _resolve(values: dict[str, Any], given: Collection[str], run: Path | None) -> RunConfig:
    from ale_jax.system.checks import resolved_config

    return resolved_config(values, given, run)


def _train(resolve: Resolve, options: flags.FlagValues, host: HostOptions, run: Run | None) -> int:
    from ale_jax.system.hosts.start import disconnect, initialize

    initialize(host)

    import jax

    from ale_jax.entry import controller_at, train_in
    from ale_jax.system.hosts.run import follow_run, led

    config, path = resolve(), Path(options.workdir)
    have_met = False
    try:
        if jax.process_index() > 0:
            code = follow_run(config, path)
        else:
            with led(config, host.coordinator) as processes:
                have_met = True
                run = run or controller_at(config, options["ray-address"].value or "")
                train_in(path, config, options.resume, options.overwrite, processes, run)
                code = 0
    except KeyboardInterrupt:
        if have_met:  # or else nobody has told the others to leave, and this would wait for them
            disconnect()
        raise
    if code != EXIT_FAILED:
        disconnect()
    return code


def _doctor(resolve: Resolve, options: flags.FlagValues, host: HostOptions, report: Report) -> int:
    from ale_jax.system.doctor.examination import examine
    from ale_jax.system.doctor.machine import RunFolder

    folder = None
    if options.workdir:
        path = Path(options.workdir).resolve()
        folder = RunFolder(path, options.resume, options.overwrite)
    elif options.resume or options.overwrite:
        raise ValueError("--resume and --overwrite are about a folder: name it by --workdir")
    return examine(resolve(), host, folder, report)


def _plan(resolve: Resolve) -> int:
    from ale_jax.system.plan import make_plan
    from ale_jax.system.serving_plan import plan_named_adapters
    from ale_jax.system.sources import check_sources

    config = resolve()
    check_sources(config, fetch=False)
    print(plan := make_plan(config))
    plan.require_fit()
    if config.serve.adapters:
        print("to serve the adapters, which the run itself does not hold:")
        print(serving := plan_named_adapters(config, functools.partial(print, file=sys.stderr)))
        serving.require_fit()
    return 0


def _export(resolve: Resolve, options: flags.FlagValues) -> int:
    if options["format"].present:
        raise ValueError(f"--format={options.format} is for --episodes: leave it out")
    if not options.out:
        raise ValueError(NO_OUT)

    from ale_jax.system.states import export_run
    from ale_jax.system.workdir import Workdir

    config = resolve()
    with Workdir.open(Path(options.workdir), config) as workdir:
        step = export_run(config, workdir, Path(options.out), options.adapter)
    print(f"the weights of step {step} are in {options.out}")
    return 0


def _serve(resolve: Resolve, options: flags.FlagValues) -> int:
    from ale_jax.system.serve import serving

    if not 0 <= options.port <= MAX_PORT:
        raise ValueError(f"--port={options.port} must be from 0, for a free one, to {MAX_PORT}")
    config = resolve()
    path = Path(options.workdir).resolve() if options.workdir else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    address, say = (options.host, options.port), functools.partial(print, file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt), serving(config, path, *address, say=say) as at:
        print(f"{at.policy} answers at {at.url} to clients with the key {at.key}")
        if at.adapters:
            models = ", ".join((config.name, *at.adapters))
            print(f"clients choose one of these as their model: {models}")
        print(f"replies are sampled with {at.sampled}, unless a request says otherwise", flush=True)
        at.wait()
    return 0


def _one_line(error: BaseException, again: str) -> str:
    """again: what the same command does then."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        text += f": free some space, then {again}"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return " ".join((text + notes).split())


def main_program(argv: Sequence[str]) -> int:
    """`main` as the whole of a process, which exits with the code that it returns."""
    try:
        use_tcmalloc()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    keep_writable()
    try:
        code = main(argv)
    except Exception:  # a bug
        if _has_others():
            traceback.print_exc()
            _leave_others(1)
        raise
    if code == EXIT_FAILED:
        # What ended the run, such as a full disk, also fails the clean-up of libraries at exit. It
        # has been said in one line, which should stay the last one.
        sys.unraisablehook = threading.excepthook = lambda _: None
        logging.disable()
        warnings.simplefilter("ignore")
    if code in (EXIT_FAILED, INTERRUPTED) and _has_others():
        _leave_others(code)
    return code


def _has_others() -> bool:
    """Whether jax has other processes, for which its clean-up would wait in vain."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _leave_others(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def script() -> int:
    """The console script `ale-jax`."""
    return main_program(sys.argv)


if __name__ == "__main__":
    sys.exit(main_program(sys.argv))
