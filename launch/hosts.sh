#!/bin/bash
# Trains on several hosts that have no scheduler, over ssh: the same line on each.
#
#     launch/hosts.sh [--port=8476] [--directory=ale-jax] [--dry-run] HOST... -- ARGUMENTS...
#
# The repository is installed in the directory on every host (relative to the home there), and the
# folder of the run is one that all of them see. The first host is the coordinator: name it as the
# others reach it, and by its address if its own name means 127.0.1.1 there. Its output is shown.
#
# Ctrl-C or SIGTERM asks process 0 to save and to end the others; a second one asks each of them.
# When one process has ended, the others get 60 seconds to end by themselves, and then SIGTERM. At the
# end come the last lines of each host. Exit code: the first one that is not 0; 255 if ssh failed.
#
# A process gets SIGTERM when its stdin ends, so that none goes on after the end of this program or
# of its connection.
set -euo pipefail

port=8476
directory=ale-jax
dry_run=no
patience_s=60
hosts=()
ssh=(ssh -o BatchMode=yes -o ServerAliveInterval=15)

usage() {
    echo "usage: $0 [--port=PORT] [--directory=DIR] [--dry-run] HOST... -- ARGUMENTS..." >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --port=*) port=${1#*=} ;;
        --directory=*) directory=${1#*=} ;;
        --dry-run) dry_run=yes ;;
        --) break ;;
        -*) usage ;;
        *) hosts+=("$1") ;;
    esac
    shift
done
[ ${#hosts[@]} -gt 0 ] && [ $# -gt 1 ] || usage
shift  # over the `--`

# For the POSIX shell of a host. Its arguments: the directory, and those of training.
# shellcheck disable=SC2016  # it is expanded there
on_host='cd "$1" || exit; shift; exec 3<&0;
.venv/bin/python -m ale_jax.launch "$@" </dev/null 3<&- & run=$!;
{ cat <&3; kill "$run"; } >/dev/null 2>&1 & waits=$!;
wait "$run"; code=$?; kill "$waits" 2>/dev/null; exit "$code"'

# WORD...: as one string, of which a shell makes the same words again.
quoted() {
    local each words=()
    for each in "$@"; do
        [[ $each =~ ^[[:alnum:]_@%+=:,./-]+$ ]] || each="'${each//\'/\'\\\'\'}'"
        words+=("$each")
    done
    echo "${words[*]}"
}

# NUMBER ARGUMENTS...: what ssh tells the host of that process.
remote_line() {
    local process=$1
    shift
    quoted exec sh -c "${on_host//$'\n'/ }" hosts.sh "$directory" "$@" \
        --coordinator="${hosts[0]#*@}:$port" --processes=${#hosts[@]} --process="$process"
}

if [ $dry_run = yes ]; then
    for process in "${!hosts[@]}"; do
        quoted "${ssh[@]}" "${hosts[process]}" "$(remote_line "$process" "$@")"
    done
    exit
fi

folder=$(mktemp -d)
touch "$folder/log.0"
runs=()       # the process of each ssh
lifelines=()  # what keeps the stdin of each open: a descriptor that only this program has, so that
              # it closes even if this is killed
# COUNT: closes the first ones.
cut() {
    local lifeline
    for lifeline in "${lifelines[@]:0:$1}"; do exec {lifeline}>&-; done
    lifelines=("${lifelines[@]:$1}")
}
trap 'rm -rf "$folder"' EXIT
# shellcheck disable=SC2329  # the trap invokes it
stop() {
    trap 'cut ${#hosts[@]}' INT TERM HUP
    cut 1
}
trap stop INT TERM HUP

for process in "${!hosts[@]}"; do
    line=$(remote_line "$process" "$@")
    mkfifo "$folder/stdin.$process"
    exec {lifeline}<> "$folder/stdin.$process"
    lifelines+=("$lifeline")
    (cut ${#hosts[@]} && exec "${ssh[@]}" "${hosts[process]}" "$line") \
        < "$folder/stdin.$process" > "$folder/log.$process" 2>&1 &
    runs+=($!)
done
# Ends when process 0 has ended and all that it printed is shown.
(cut ${#hosts[@]} && exec tail --lines=+1 --follow --sleep-interval=0.2 --pid="${runs[0]}" \
    "$folder/log.0") &
tail=$!

# How many of the processes have ended.
ended() {
    local count=0 pid
    for pid in "${runs[@]}"; do
        kill -0 "$pid" 2> /dev/null || count=$((count + 1))
    done
    echo "$count"
}
# A signal ends `sleep`, too.
while [ "$(ended)" = 0 ]; do sleep 0.2 || true; done
SECONDS=0
while [ "$(ended)" -lt ${#hosts[@]} ] && [ $SECONDS -lt $patience_s ]; do sleep 0.2 || true; done
cut ${#hosts[@]}
wait $tail || true

result=0
for process in "${!hosts[@]}"; do
    code=0
    wait "${runs[process]}" || code=$?
    [ $result != 0 ] || result=$code
    echo "hosts: process $process on ${hosts[process]} ended with $code; its last lines:"
    tail --lines=3 "$folder/log.$process" | sed 's/^/    /'
done
exit $result
