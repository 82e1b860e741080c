#!/usr/bin/env bash
# Makes the release archive build/dgxrun-<version>-linux-<machine>.tar.gz and its .sha256: programs, configuration
# examples, systemd units, documents and licences. It is an install: unpacked anywhere, the programs run and find
# each other (docs/install.md).
#
# The programs need the C library (2.34 or later) and libgcc_s, nothing else; a program that needs more fails
# here. tests/release says what else must hold of the archive.
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MAX_GLIBC=2.34 # RHEL 9
PROGRAMS=(dgxrun dgxrun-controller dgxrun-agent dgxrun-shim)
# What is linked into the programs; their licences ask for their texts to go along.
LINKED_PACKAGES=(
  libgrpc-dev libprotobuf-dev libabsl-dev libssl-dev libsqlite3-dev libhwloc-dev libspdlog-dev libfmt-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev zlib1g-dev libc-ares-dev libre2-dev libstdc++-12-dev
)

VERSION=$(sed -n 's/^project(dgxrun VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
NAME="dgxrun-$VERSION-linux-$(uname -m)"
BIN="$ROOT/build/static/bin"

# check_program PATH: only the C library's own objects and libgcc_s, and no symbol newer than MAX_GLIBC.
check_program() {
  local program=$1 other newest
  other=$(objdump -p "$program" | awk '$1 == "NEEDED" {print $2}' |
    grep -vE '^(libc|libm|libdl|libpthread|librt|libresolv|libgcc_s)\.so\.[0-9]+$|^ld-linux' || true)
  [ -z "$other" ] || fail "$program needs $(tr '\n' ' ' <<<"$other")"
  newest=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "$newest" "$MAX_GLIBC" | sort -V | tail -n 1)" = "$MAX_GLIBC" ] ||
    fail "$program needs glibc $newest: $(objdump -T "$program" | grep "GLIBC_$newest" | awk '{print $NF}' | tr '\n' ' ')"
  say "$(basename "$program"): glibc $newest, $(du -k "$program" | cut -f1) KiB"
}

build_preset static "${PROGRAMS[@]}"

STAGE=$(mktemp -d "${TMPDIR:-/tmp}/dgxrun-release.XXXXXX")
trap 'rm -rf "$STAGE"' EXIT
TOP="$STAGE/$NAME"
mkdir -p "$TOP/bin" "$TOP/licenses"
for program in "${PROGRAMS[@]}"; do
  strip -o "$TOP/bin/$program" "$BIN/$program"
  chmod 755 "$TOP/bin/$program"
  check_program "$TOP/bin/$program"
done
cp "$ROOT/LICENSE" "$ROOT/README.md" "$TOP/"
cp -r "$ROOT/configs" "$ROOT/docs" "$TOP/"
cp -r "$ROOT/deploy/systemd" "$TOP/systemd"
[ ! -d "$ROOT/launcher/python" ] || cp -r "$ROOT/launcher/python" "$TOP/python"
for package in "${LINKED_PACKAGES[@]}"; do
  [ ! -r "/usr/share/doc/$package/copyright" ] ||
    cp -L "/usr/share/doc/$package/copyright" "$TOP/licenses/$package.txt"
done
find "$TOP" -name __pycache__ -prune -exec rm -rf {} +
chmod -R u=rwX,go=rX "$TOP"
(cd "$TOP" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)

# The same sources give the same bytes: names sorted, no owner, the time of the last commit.
STAMP=$(git -C "$ROOT" log -1 --format=%ct 2>/dev/null || date +%s)
ARCHIVE="$ROOT/build/$NAME.tar.gz"
tar -C "$STAGE" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$STAMP" -cf - "$NAME" | gzip -n >"$ARCHIVE"
(cd "$ROOT/build" && sha256sum "$NAME.tar.gz" >"$NAME.tar.gz.sha256")
say "made build/$NAME.tar.gz ($(du -m "$ARCHIVE" | cut -f1) MiB)"
