#!/bin/bash
# Prepares this machine for sandboxes: installs bubblewrap, and Docker with the image for tasks.
#
#     launch/runtimes.sh [bubblewrap]
#
# With `bubblewrap` it does not install Docker.
#
# `make runtimes` calls it. Run it as root, or as a user with sudo. It can be run again at any time.
# If a Docker daemon is already running, it is used and not changed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
state=/var/run/ale
log=/var/log/ale-dockerd.log
answer_s=30
say() { echo "runtimes: $*"; }
fail() { say "$*" >&2; exit 1; }
case "$*" in
    "") with_docker=yes ;;
    bubblewrap) with_docker=no ;;
    *) fail "usage: $here/runtimes.sh [bubblewrap]" ;;
esac

if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "this needs root; run: su -c $here/runtimes.sh"
    exec sudo "$here/runtimes.sh" "$@"
fi

packages=()
command -v bwrap > /dev/null || packages+=(bubblewrap)
command -v mkfs.btrfs > /dev/null || packages+=(btrfs-progs)  # for roots on disk
# Bubblewrap's sandboxes use this machine's pytest, with which terminal-bench's tasks are judged.
/usr/bin/python3 -I -c 'import pytest' 2> /dev/null || packages+=(python3-pytest)
if [ "$with_docker" = yes ]; then
    command -v debootstrap > /dev/null || packages+=(debootstrap)
    command -v dockerd > /dev/null || docker info > /dev/null 2>&1 || packages+=(docker.io)
fi
if [ ${#packages[@]} -gt 0 ]; then
    command -v apt-get > /dev/null || fail "there is no apt-get; install manually: ${packages[*]}"
    say "install ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt_get() { apt-get -q -o DPkg::Lock::Timeout=300 "$@" > /dev/null; }
    apt_get update
    apt_get install -y --no-install-recommends "${packages[@]}"
else
    say "the packages are installed"
fi
[ "$with_docker" = yes ] || exit 0

if docker info > /dev/null 2>&1; then
    say "a Docker daemon is running"
else
    mkdir -p "$state"
    # After a crash or a restart, another process may have the pid in a leftover file. dockerd would
    # take that process for itself or its containerd, and would not start.
    for left in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
        [ -e "$left" ] || continue
        case $(cat "/proc/$(cat "$left")/comm" 2> /dev/null || true) in
            dockerd | containerd) ;;
            *) rm "$left" && say "removed $left: no daemon has this pid" ;;
        esac
    done
    # Sandboxes have no network, so the daemon needs neither a bridge nor the right to set firewall rules.
    setsid nohup dockerd --bridge=none --iptables=false --ip6tables=false > "$log" 2>&1 < /dev/null &
    echo $! > "$state/dockerd.pid"
    for ((waited = 0; waited < answer_s * 10; waited++)); do
        docker info > /dev/null 2>&1 && break
        kill -0 "$(cat "$state/dockerd.pid")" 2> /dev/null || { tail -n 3 "$log" >&2; fail "dockerd ended; see $log"; }
        sleep 0.1
    done
    docker info > /dev/null 2>&1 || fail "dockerd does not answer after $answer_s s; see $log"
    say "started dockerd (pid $(cat "$state/dockerd.pid"), log $log)"
fi

"$here/../envs/shell/image/build.sh"
if [ -n "${SUDO_USER:-}" ] && [[ " $(id -nG "$SUDO_USER") " != *" docker "* ]]; then
    say "to let $SUDO_USER use Docker as well, run: sudo usermod -aG docker $SUDO_USER (and log in again)"
fi
say "ready"
