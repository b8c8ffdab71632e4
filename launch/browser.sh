#!/bin/bash
# Installs Chromium, in which the tests open web pages, and what its driver, playwright, needs.
#
# `make browser` calls it. Run it as root, or as a user with sudo. It can be run again at any time.
set -euo pipefail

say() { echo "browser: $*"; }
fail() { say "$*" >&2; exit 1; }

packages=()
command -v chromium > /dev/null || packages+=(chromium)
# Not `ldconfig -p | grep -q`: grep leaves at the first match, ldconfig dies of SIGPIPE, and with
# pipefail the library counts as missing.
[[ $(/sbin/ldconfig -p) == *libatomic.so.1* ]] || packages+=(libatomic1)
[ ${#packages[@]} = 0 ] && { say "chromium is installed"; exit 0; }
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "this needs root; run: su -c $0"
    exec sudo "$0"
fi
command -v apt-get > /dev/null || fail "there is no apt-get; install manually: ${packages[*]}"
say "install ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -q -o DPkg::Lock::Timeout=300 "$@" > /dev/null; }
apt_get update
apt_get install -y --no-install-recommends "${packages[@]}"
say "ready"
