#!/usr/bin/env python3
"""Trains on a Cloud TPU pod slice, and goes on with another one when the slice is preempted.

  tpu_pod.py train NAME --zone=ZONE --accelerator-type=v6e-16 --runtime-version=v2-alpha-tpuv6e
      --service-account=EMAIL --share=10.0.0.2:/runs [--spot] [--restarts=20] --
      --config=configs/NAME.py --workdir=/mnt/share/first
                    request the slice unless it exists, wait for it, install HEAD on its hosts, and
                    run the line after `--` on all of them; again until it ends with 0
  tpu_pod.py stop NAME --zone=ZONE     save the newest step and end training; the slice remains
  tpu_pod.py delete NAME --zone=ZONE   give the slice back; the folders of runs remain

--share is an NFS export, which the hosts mount at /mnt/share: folders of runs must be there.
--dry-run prints the commands of a first, undisturbed run, and runs none. Training does not depend
on this program: Ctrl-C ends only the watching, and the same command watches again. docs/pods.md
has the rest.

Exit code: that of training (2: what is wrong is in its last line); 1 if gcloud fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = "ale-jax/launch/tpu_worker.sh"
QUEUED = ("compute", "tpus", "queued-resources")
# The hosts have no public addresses. Only the alpha commands go through Identity-Aware Proxy.
HOSTS = ("alpha", "compute", "tpus", "tpu-vm")
ACTIVE = "ACTIVE"
TAKEN = ("SUSPENDING", "SUSPENDED")  # states of a request whose slice was preempted
# Exit codes after which the same command fails again: a bug, or what the last line says.
FINAL = (1, 2)


@dataclasses.dataclass(frozen=True)
class Commands:
    """Runs commands, or only prints them."""

    dry_run: bool

    def code(self, *argv: str) -> int:
        print("+", shlex.join(argv), flush=True)
        return 0 if self.dry_run else subprocess.run(argv, cwd=ROOT).returncode

    def must(self, *argv: str) -> None:
        if code := self.code(*argv):
            sys.exit(f"{argv[0]} ended with {code}")

    def output(self, *argv: str, dry: str) -> str:
        """What it prints; `dry` in a dry run."""
        print("+", shlex.join(argv), flush=True)
        if self.dry_run:
            return dry
        answer = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if answer.returncode:
            sys.exit(f"{argv[0]} ended with {answer.returncode}")
        return answer.stdout.strip()


@dataclasses.dataclass(frozen=True)
class Slice:
    """A pod slice: the queued resource `name`, and its only node, of the same name.

    poll_s: seconds between two looks at its state.
    """

    name: str
    zone: str
    commands: Commands
    poll_s: float

    def state(self, dry: str) -> str:
        """Of the request; empty if there is none."""
        # `describe` would fail then, as it does without rights.
        by_name = f"--filter=name ~ /{self.name}$"
        line = ("list", f"--zone={self.zone}", by_name, "--format=value(state.state)")
        return self.commands.output("gcloud", *QUEUED, *line, dry=dry)

    def obtain(self, request: Sequence[str]) -> None:
        """Waits until there is a slice; requests it with the options `request` if need be."""
        states = iter(("", ACTIVE))  # of a dry run
        while (state := self.state(next(states, ACTIVE))) != ACTIVE:
            if state == "FAILED":
                sys.exit(f"the request failed; `gcloud {' '.join(QUEUED)} describe` says why")
            if state in TAKEN:
                self.delete()
                state = ""
            if not state:
                options = (self.name, f"--zone={self.zone}", f"--node-id={self.name}", *request)
                self.commands.must("gcloud", *QUEUED, "create", *options)
            self.wait()

    def wait(self) -> None:
        if not self.commands.dry_run:
            time.sleep(self.poll_s)

    def install(self, share: str) -> None:
        """The committed tree and its dependencies, unless training runs there already."""
        place = (f"--zone={self.zone}", "--worker=all", "--tunnel-through-iap")
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/ale-jax.tar.gz"
            self.commands.must("git", "archive", f"--output={archive}", "HEAD")
            self.commands.must("gcloud", *HOSTS, "scp", archive, f"{self.name}:", *place)
        unpack = "mkdir -p ale-jax && tar -xzf ale-jax.tar.gz -C ale-jax"
        install = shlex.join([WORKER, "install", share])
        code = self.ssh(f"systemctl is-active --quiet ale-jax || {{ {unpack} && {install}; }}")
        if code:
            sys.exit(f"the installation ended with {code}")

    def train(self, line: Sequence[str]) -> int:
        return self.ssh(shlex.join([WORKER, "train", *line]))

    def stop(self) -> int:
        return self.ssh("sudo systemctl stop ale-jax")

    def ssh(self, command: str) -> int:
        """Its exit code on the first host where that is not 0; 255 if a host is not reached."""
        place = (f"--zone={self.zone}", "--worker=all", "--tunnel-through-iap")
        line = ("ssh", self.name, *place, f"--command={command}")
        return self.commands.code("gcloud", *HOSTS, *line)

    def delete(self) -> None:
        options = (self.name, f"--zone={self.zone}", "--force", "--quiet")
        self.commands.must("gcloud", *QUEUED, "delete", *options)


def train(pod: Slice, options: argparse.Namespace) -> int:
    request = [
        f"--accelerator-type={options.accelerator_type}",
        f"--runtime-version={options.runtime_version}",
        f"--service-account={options.service_account}",
        "--internal-ips",
        *(["--spot"] if options.spot else []),
    ]
    for attempt in range(options.restarts + 1):
        if attempt:
            print(f"tpu_pod: restart {attempt} of at most {options.restarts}", flush=True)
        pod.obtain(request)
        pod.install(options.share)
        code = pod.train(options.line)
        if code == 0:
            break
        # The loss of a process ends the others with 2, before the state says what took it.
        pod.wait()
        if code in FINAL and pod.state(ACTIVE) == ACTIVE:
            break
    print(f"tpu_pod: training ended with {code}; the slice costs money until you delete it")
    return code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Its `line` is what follows `--`: the arguments of training."""
    everywhere = argparse.ArgumentParser(add_help=False)
    everywhere.add_argument("name", help="of the slice and of the request for it")
    everywhere.add_argument("--zone", required=True)
    everywhere.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    everywhere.add_argument("--poll-s", type=float, default=30.0, help="seconds between looks")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("stop", "delete"):
        actions.add_parser(action, parents=[everywhere])
    train = actions.add_parser("train", parents=[everywhere])
    train.add_argument("--accelerator-type", required=True, help="e.g. v6e-16")
    train.add_argument("--runtime-version", required=True, help="e.g. v2-alpha-tpuv6e")
    train.add_argument("--service-account", required=True, help="of the hosts; it needs no role")
    train.add_argument("--share", required=True, help="HOST:/EXPORT, mounted at /mnt/share")
    train.add_argument("--spot", action="store_true", help="cheaper, and may be preempted")
    train.add_argument("--restarts", type=int, default=20, help="at most; 20 unless given")
    end = [*arguments, "--"].index("--")
    options = parser.parse_args(arguments[:end])
    options.line = arguments[end + 1 :]
    if options.action == "train" and not options.line:
        parser.error("the arguments of training are missing: write them after `--`")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    pod = Slice(options.name, options.zone, Commands(options.dry_run), options.poll_s)
    if options.action == "train":
        return train(pod, options)
    if options.action == "stop":
        return pod.stop()
    pod.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
