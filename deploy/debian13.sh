#!/usr/bin/env bash
# Builds dgxrun and runs its unit tests on Debian 13: in a folder made with debootstrap, with the packages that
# deploy/setup.sh names there. Needs root, debootstrap, the network, 3 GiB and about half an hour of two cores; CI
# does not run it.
#
#   deploy/debian13.sh [FOLDER]   FOLDER (default build/debian13) is kept, so that the next run is quicker
#
# What is built is the last commit. Mounts are made in a namespace of this script: nothing is left mounted.
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

SUITE=trixie
MIRROR=${DGXRUN_DEBIAN_MIRROR:-http://deb.debian.org/debian}
PLACE=$(realpath -m "${1:-$ROOT/build/debian13}")

[ "$(id -u)" -eq 0 ] || fail "debootstrap and chroot need root"
command -v debootstrap >/dev/null || fail "install debootstrap first (apt-get install debootstrap)"
if [ -z "${DGXRUN_IN_NAMESPACE:-}" ]; then
  exec unshare --mount env DGXRUN_IN_NAMESPACE=1 "${BASH_SOURCE[0]}" "$PLACE"
fi

if [ ! -e "$PLACE/.complete" ]; then
  say "debootstrap $SUITE into $PLACE"
  rm -rf "$PLACE"
  debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$PLACE" "$MIRROR"
  touch "$PLACE/.complete"
fi
# How this machine reaches the network, where it takes more than a name server.
cp -L /etc/resolv.conf "$PLACE/etc/resolv.conf"
cp /etc/apt/apt.conf.d/*proxy* "$PLACE/etc/apt/apt.conf.d/" 2>/dev/null || true
mount --bind /proc "$PLACE/proc"
mount --rbind /sys "$PLACE/sys"
mount --rbind /dev "$PLACE/dev"
mount -t tmpfs tmpfs "$PLACE/tmp"

rm -rf "$PLACE/src"
mkdir -p "$PLACE/src" "$PLACE/root/ccache"
git -C "$ROOT" archive HEAD | tar -x -C "$PLACE/src"

# `inside COMMAND...`, with the few variables that matter.
inside() {
  chroot "$PLACE" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 CCACHE_DIR=/root/ccache \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" DGXRUN_JOBS="${DGXRUN_JOBS:-}" "$@"
}
say "packages"
inside bash /src/deploy/setup.sh --packages
say "build and unit tests on Debian $(cat "$PLACE/etc/debian_version")"
# shellcheck disable=SC2016
inside bash -c 'cd /src && g++ --version | head -n 1 &&
  cmake --preset debug && cmake --build --preset debug -j "${DGXRUN_JOBS:-$(nproc)}" && ctest --preset debug -j "$(nproc)"'
say "Debian 13: built, unit tests passed"
