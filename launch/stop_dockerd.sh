#!/bin/bash
# Stops the Docker daemon that launch/runtimes.sh started, and no other one. Needs root, or sudo
# without a password.
#
# .ci/run and launch/for_tests.sh call it at their end if no daemon was running at their start.
set -euo pipefail

pid_file=/var/run/ale/dockerd.pid  # launch/runtimes.sh writes it when it starts a daemon
stop_s=30
# Never asks for a password, which nobody awaits at the end of tests.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
runs_dockerd() { [ "$(cat "/proc/$1/comm" 2> /dev/null)" = dockerd ]; }

[ -f "$pid_file" ] || exit 0
pid=$(cat "$pid_file")
if runs_dockerd "$pid"; then
    echo "runtimes: stop dockerd (pid $pid)"
    as_root kill "$pid"
    for ((waited = 0; waited < stop_s * 10; waited++)); do
        runs_dockerd "$pid" || break
        sleep 0.1
    done
    if runs_dockerd "$pid"; then
        echo "runtimes: dockerd (pid $pid) does not end within $stop_s s" >&2
        exit 1
    fi
fi
as_root rm -f "$pid_file"
