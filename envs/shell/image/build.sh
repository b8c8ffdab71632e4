#!/bin/bash
# Builds the Docker image `ale-shell`: the machine that tasks are played and judged on.
#
# It is this host's own Debian (or Ubuntu) release, fetched from the mirror that this host's apt uses, cut down to
# bash, coreutils, tar, ps, python3 and pytest. No registry is involved. A second run with the same recipe does nothing.
#
# The registry (ale_jax/sandbox/hub) calls it with ALE_IMAGE, the name that the image is to have, and ALE_LABELS, its
# labels as KEY=VALUE KEY=VALUE; it has made sure that there is no such image. By hand it is called with neither.
set -euo pipefail

image=${ALE_IMAGE:-ale-shell}
recipe=$(sha256sum < "$0" | cut -c 1-16)
labels="ale.script=$recipe ${ALE_LABELS:-ale.recipe=$recipe}"
say() { echo "image $image: $*"; }
fail() { say "$*" >&2; exit 1; }

if [ "$(docker image inspect --format '{{index .Config.Labels "ale.script"}}' "$image" 2> /dev/null)" = "$recipe" ]; then
    say "up to date (recipe $recipe)"
    exit 0
fi
[ "$(id -u)" = 0 ] || fail "debootstrap needs root; type: sudo $0"
command -v debootstrap > /dev/null || fail "debootstrap is missing; type: apt-get install debootstrap"

release=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(SITE)' 'Created-By: Packages' \
    | awk -v release="$release" '$1 == release && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || fail "apt has no source for $release main; name one in /etc/apt/sources.list"

root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
say "debootstrap $release from $mirror"
debootstrap --variant=minbase --include=python3,python3-pytest,procps "$release" "$root" "$mirror" > "$root.log" 2>&1 \
    || { tail -n 5 "$root.log" >&2; fail "debootstrap failed; the whole log is $root.log"; }
rm -f "$root.log"

echo 'agent:x:1000:1000::/work:/bin/bash' >> "$root/etc/passwd"
echo 'agent:x:1000:' >> "$root/etc/group"
mkdir "$root/work"
rm -rf "$root"/{var/cache/apt,var/lib/apt/lists,var/log,usr/share/{doc,man,info,locale,lintian}}/*
# The agent can become nobody else, so set-user-id programs would only be something to attack.
find "$root" -xdev -type f -perm /6000 -exec chmod ug-s {} +

say "import"
replaced=$(docker image inspect --format '{{.Id}}' "$image" 2> /dev/null || true)
tar --create --numeric-owner --directory "$root" --exclude='./proc/*' --exclude='./sys/*' . \
    | docker import --change "LABEL $labels" - "$image" > /dev/null
# The image that this one replaces, if nothing calls it anything any more. Not `prune`: its filter also meets the layers
# of other images that are being built FROM this one, because they inherit the label.
if [ -n "$replaced" ] && [ "$(docker image inspect --format '{{len .RepoTags}}' "$replaced" 2> /dev/null)" = 0 ]; then
    docker image rm "$replaced" > /dev/null 2>&1 || say "the image that this one replaces stays: it is in use"
fi
say "built (recipe $recipe)"
