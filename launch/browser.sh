#!/bin/bash
# Installs Chromium, in which the tests open web pages.
#
# `make browser` calls it. Run it as root, or as a user with sudo. It can be run again at any time.
set -euo pipefail

say() { echo "browser: $*"; }
fail() { say "$*" >&2; exit 1; }

command -v chromium > /dev/null && { say "chromium is installed"; exit 0; }
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "this needs root; run: su -c $0"
    exec sudo "$0"
fi
command -v apt-get > /dev/null || fail "there is no apt-get; install manually: chromium"
say "install chromium"
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -q -o DPkg::Lock::Timeout=300 "$@" > /dev/null; }
apt_get update
apt_get install -y --no-install-recommends chromium
say "ready"
