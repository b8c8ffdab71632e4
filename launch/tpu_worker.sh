#!/bin/bash
# One host of a Cloud TPU pod slice. launch/tpu_pod.py copies the repository to each host, and calls
#
#     launch/tpu_worker.sh install HOST:/EXPORT   mount the export at /mnt/share, install packages
#     launch/tpu_worker.sh train ARGUMENTS...     train, unless this host does already; wait for it
#
# Training is a unit of systemd, so that it outlives a connection, and hears of the end of its
# machine by SIGTERM, with time to save.
set -euo pipefail

unit=ale-jax
share=/mnt/share
log=$HOME/$unit.log
port=8476
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# NAME: an attribute of this machine, as Cloud TPU sets it.
attribute() {
    curl --silent --show-error --fail --retry 5 --header 'Metadata-Flavor: Google' \
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# NAME: a property of the unit.
property() { systemctl show --property="$1" --value "$unit"; }

is_running() {
    case $(property ActiveState) in
        active | activating | deactivating) return 0 ;;
        *) return 1 ;;
    esac
}

install_all() {
    export DEBIAN_FRONTEND=noninteractive
    apt_get() { sudo apt-get -q -o DPkg::Lock::Timeout=300 "$@" > /dev/null; }
    apt_get update
    # The system's python3 is 3.10 on Ubuntu 22.04, and ALE-JAX needs 3.11.
    apt_get install --yes --no-install-recommends bubblewrap make nfs-common python3.11-venv
    sudo mkdir -p "$share"
    mountpoint -q "$share" || sudo mount -t nfs -o hard "$1" "$share"
    [ -w "$share" ] || sudo chown "$(id -u)" "$share"
    cd "$here"
    make PYTHON=python3.11 install
    # libtpu of the version that the installed jax names.
    .venv/bin/pip install --quiet 'jax[tpu]'
}

train() {
    local process endpoints workers
    process=$(attribute agent-worker-number)
    # ADDRESS, or NAME:NUMBER:ADDRESS, of each host, separated by commas.
    endpoints=$(attribute worker-network-endpoints)
    IFS=, read -ra workers <<< "$endpoints"
    if ! is_running; then
        touch "$log"  # so that it belongs to this user, not to root
        sudo systemctl reset-failed "$unit" 2> /dev/null || true
        # mixed: SIGTERM for the run alone, which ends its own processes when it has saved. A machine
        # that shuts down ends it before share and network. systemd expands $NAME, but not $$.
        sudo systemd-run --quiet --unit="$unit" --uid="$(id -u)" --gid="$(id -g)" \
            --working-directory="$here" --property=KillMode=mixed --property=TimeoutStopSec=600 \
            --property=RequiresMountsFor="$share" --property=After=network-online.target \
            --property=StandardOutput="append:$log" --property=StandardError="append:$log" \
            --property=LimitNOFILE=65536 --setenv=HOME="$HOME" --setenv=PYTHONUNBUFFERED=1 \
            "$here/.venv/bin/python" -m ale_jax.launch "${@//\$/\$\$}" \
            --coordinator="${workers[0]##*:}:$port" --processes="${#workers[@]}" --process="$process"
    fi
    if [ "$process" = 0 ]; then  # the others print nothing unless they fail
        tail --follow "$log" &
        trap 'kill $!' EXIT
    fi
    while is_running; do
        sleep 1
    done
    [ "$process" = 0 ] || tail --lines=3 "$log"
    # 0 if it succeeded, because systemd then forgets the unit.
    exit "$(property ExecMainStatus)"
}

case ${1:-} in
    install) install_all "${@:2}" ;;
    train) train "${@:2}" ;;
    *) echo "usage: $0 install HOST:/EXPORT | train ARGUMENTS..." >&2; exit 2 ;;
esac
