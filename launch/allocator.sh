#!/bin/bash
# Installs tcmalloc, with which training and generation on CPUs take less time (docs/running.md).
#
# `make allocator` calls it. Run it as root, or as a user with sudo. It can be run again at any time.
set -euo pipefail

say() { echo "allocator: $*"; }
fail() { say "$*" >&2; exit 1; }

# Debian 13 and Ubuntu 24.04 call the package libtcmalloc-minimal4t64, which provides this name.
package=libtcmalloc-minimal4
[[ $(/sbin/ldconfig -p) == *libtcmalloc_minimal.so.4* ]] && { say "tcmalloc is installed"; exit 0; }
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "this needs root; run: su -c $0"
    exec sudo -n "$0"  # asks for no password, for what is only faster
fi
command -v apt-get > /dev/null || fail "there is no apt-get; install manually: tcmalloc of gperftools"
say "install $package"
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get -q -o DPkg::Lock::Timeout=300 "$@" > /dev/null; }
apt_get update
apt_get install -y --no-install-recommends "$package"
say "ready"
