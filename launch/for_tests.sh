#!/bin/bash
# Runs a command, the tests, after installing what they need: bubblewrap, Docker and Chromium.
#
#     launch/for_tests.sh COMMAND...
#
# `make test` calls it. What cannot be had is named in one line, and the tests run without it: those
# that need it are skipped. A Docker daemon that this script started ends with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pid_file=/var/run/ale/dockerd.pid  # launch/runtimes.sh writes it when it starts a daemon
say() { echo "for_tests: $*"; }
# Never asks for a password: the tests may run where nobody is there to type one.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# NAME COMMAND...: runs it; the last line of its errors says why there is no NAME.
prepare() {
    local name=$1
    shift
    if ! "$@" 2> "$errors"; then
        say "without $name: $(tail -n 1 "$errors")"
    fi
}

say_what_is_missing() {
    local missing=()
    command -v bwrap > /dev/null || missing+=(bubblewrap)
    docker image inspect ale-shell > /dev/null 2>&1 || missing+=("Docker with the image ale-shell")
    command -v chromium > /dev/null || missing+=(chromium)
    [ ${#missing[@]} = 0 ] && return
    local list
    list=$(printf ', %s' "${missing[@]}")
    say "neither root nor sudo without a password, so without ${list:2}; type as root: make runtimes browser"
}

if as_root true 2> /dev/null; then
    errors=$(mktemp)
    trap 'rm -f "$errors"' EXIT
    if ! as_root docker info > /dev/null 2>&1; then
        # A pid file without a daemon that answers is an earlier boot's; its number may be anyone's now.
        as_root rm -f "$pid_file"
        trap 'rm -f "$errors"; "$here/stop_dockerd.sh"' EXIT
    fi
    # First without Docker, so that where Docker cannot be installed bubblewrap still is.
    prepare bubblewrap "$here/runtimes.sh" bubblewrap
    prepare Docker "$here/runtimes.sh"
    prepare chromium "$here/browser.sh"
else
    say_what_is_missing
fi
"$@"
