#!/bin/bash
# Installs what the tests need (bubblewrap, Docker, Chromium, gVisor and tcmalloc), and then runs them
# with COMMAND.
#
#     launch/for_tests.sh COMMAND...
#
# `make test` calls it. For each part that cannot be installed it prints one line, and tests that
# need the part are skipped. A Docker daemon that this script starts is stopped at the end.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pid_file=/var/run/ale/dockerd.pid  # launch/runtimes.sh writes it when it starts a daemon
say() { echo "for_tests: $*"; }
# Never asks for a password, because the tests may run unattended.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# NAME COMMAND...: runs the command; if it fails, prints the last line of its errors.
prepare() {
    local name=$1
    shift
    if ! "$@" 2> "$errors"; then
        say "without $name: $(tail -n 1 "$errors")"
    fi
}

# shellcheck disable=SC2329  # the trap invokes it
stop_dockerd() {
    "$here/stop_dockerd.sh" || say "the Docker daemon goes on; stop it as root: launch/stop_dockerd.sh"
}

say_what_is_missing() {
    local missing=()
    command -v bwrap > /dev/null || missing+=(bubblewrap)
    docker image inspect ale-shell > /dev/null 2>&1 || missing+=("Docker with the image ale-shell")
    command -v chromium > /dev/null || missing+=(chromium)
    command -v runsc > /dev/null || missing+=("gVisor (runsc)")
    [[ $(/sbin/ldconfig -p) == *libtcmalloc_minimal.so.4* ]] || missing+=(tcmalloc)
    [ ${#missing[@]} = 0 ] && return
    local list
    list=$(printf ', %s' "${missing[@]}")
    say "no root, and no sudo without a password, so tests run without ${list:2}; run as root: make runtimes browser allocator"
}

if as_root true 2> /dev/null; then
    errors=$(mktemp)
    trap 'rm -f "$errors"' EXIT
    if ! as_root docker info > /dev/null 2>&1; then
        # No daemon answers, so the pid file is from an earlier boot, and its pid may have been reused.
        as_root rm -f "$pid_file"
        trap 'rm -f "$errors"; stop_dockerd' EXIT
    fi
    # First without Docker, so that bubblewrap is installed even if Docker cannot be.
    prepare bubblewrap "$here/runtimes.sh" bubblewrap
    prepare Docker "$here/runtimes.sh"
    prepare chromium "$here/browser.sh"
    prepare tcmalloc "$here/allocator.sh"
    command -v runsc > /dev/null \
        || prepare gVisor as_root apt-get -q install --yes --no-install-recommends runsc
else
    say_what_is_missing
fi
"$@"
