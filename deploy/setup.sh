#!/usr/bin/env bash
# Installs what dgxrun needs to be built and tested: packages of the distribution, and a Python
# environment with torch. Says what it installs. When all is there it changes nothing and needs neither
# network nor root.
#
#   deploy/setup.sh              everything
#   deploy/setup.sh --check      only say what is missing; exit 1 if anything is
#   deploy/setup.sh --frameworks also transformers, lightning, deepspeed, ... whose checkpoints are tested (350 MB)
#   deploy/setup.sh --packages   only the distribution's packages: enough to build, and for the unit tests
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

BUILD_PACKAGES=(
  g++ cmake ninja-build ccache mold pkg-config git
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libhwloc-dev libnuma-dev libspdlog-dev libcli11-dev libtomlplusplus-dev libsqlite3-dev
  nlohmann-json3-dev libssl-dev zlib1g-dev
)
TEST_PACKAGES=(libgtest-dev libgmock-dev python3-venv openssl iproute2 nftables procps util-linux binutils strace)
# clang-tidy and the fuzzers are tied to one version of clang, that of Debian 12; other distributions go without.
CLANG_PACKAGES=(clang-14 clang-tidy-14 libclang-rt-14-dev)

check_only=false
packages_only=false
with_frameworks=false
case "${1:-}" in
  "") ;;
  --check) check_only=true ;;
  --packages) packages_only=true ;;
  --frameworks) with_frameworks=true ;;
  -h | --help)
    sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  *) fail "unknown option $1 (known: --check, --packages, --frameworks, --help)" ;;
esac

distribution() {
  local id="" version=""
  if [ -r /etc/os-release ]; then
    id=$(. /etc/os-release && printf '%s' "${ID:-}")
    version=$(. /etc/os-release && printf '%s' "${VERSION_ID:-}")
  fi
  printf '%s %s' "${id:-unknown}" "$version"
}

PACKAGES=("${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}")
[ "$(distribution)" != "debian 12" ] || PACKAGES+=("${CLANG_PACKAGES[@]}")

# Names of PACKAGES that dpkg does not know as installed, one per line.
missing_packages() {
  local package status
  for package in "${PACKAGES[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null || true)
    grep -qx installed <<<"$status" || printf '%s\n' "$package"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root or sudo: $*"
  fi
}

install_packages() {
  case "$(distribution)" in
    "debian 12" | "debian 13" | "ubuntu 24.04") ;;
    *)
      fail "setup.sh knows Debian 12, Debian 13 and Ubuntu 24.04, this is '$(distribution)'; install with its own tools what Debian calls: ${PACKAGES[*]}"
      ;;
  esac
  local missing
  mapfile -t missing < <(missing_packages)
  if [ "${#missing[@]}" -eq 0 ]; then
    say "all ${#PACKAGES[@]} packages are installed"
    return
  fi
  if $check_only; then
    say "missing packages: ${missing[*]}"
    return 1
  fi
  say "installing packages with apt-get: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# make_venv PYTHON: the project's own environment, if PYTHON is in it and it is not there.
make_venv() {
  [ "$1" = "$ROOT/.venv/bin/python" ] || return 0
  if [ ! -x "$1" ] || ! "$1" -m pip --version >/dev/null 2>&1; then
    say "making the Python environment .venv with $(command -v python3)"
    python3 -m venv --clear "$ROOT/.venv"
  fi
}

# torch from the environment that is active, where it has one; pytest and the formatter beside it.
install_python() {
  local python
  python=$(project_python)
  if has_modules "$python" torch numpy pytest xdist clang_format; then
    say "Python packages are installed ($python)"
    return
  fi
  if $check_only; then
    say "missing Python packages: $python lacks one of $(grep -v '^#' "$REQUIREMENTS" | tr '\n' ' ')"
    return 1
  fi
  if [ "$python" = "$ROOT/.venv/bin/python" ]; then
    make_venv "$python"
    say "installing into .venv with pip: $(grep -v '^#' "$REQUIREMENTS" | tr '\n' ' ')"
    "$python" -m pip install --quiet --disable-pip-version-check -r "$REQUIREMENTS"
  else
    # Their torch stays as it is; only what the tests need besides is added.
    local rest
    mapfile -t rest < <(grep -vE '^(#|torch==|numpy==)' "$REQUIREMENTS")
    has_modules "$python" numpy || rest+=(numpy)
    say "installing into the active environment $python with pip: ${rest[*]}"
    "$python" -m pip install --quiet --disable-pip-version-check "${rest[@]}"
  fi
}

# The frameworks whose checkpoints are tested. DeepSpeed is installed without its compiled operations, and looks for
# torch while it is, so it must not be built in an environment of its own.
install_frameworks() {
  local python
  python=$(frameworks_python)
  if has_modules "$python" pytest xdist "${FRAMEWORK_MODULES[@]}"; then
    say "frameworks are installed ($python)"
    return
  fi
  if $check_only; then
    say "missing frameworks: $python lacks one of $(grep -v '^#' "$FRAMEWORKS" | tr '\n' ' ')"
    return 1
  fi
  make_venv "$python"
  say "installing into .venv with pip: $(grep -v '^#' "$FRAMEWORKS" | tr '\n' ' ')"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$REQUIREMENTS" setuptools wheel
  DS_BUILD_OPS=0 "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation -r "$FRAMEWORKS"
}

problems=0
install_packages || problems=1
$packages_only || install_python || problems=1
! $with_frameworks || install_frameworks || problems=1
[ "$problems" -eq 0 ] || exit 1
say "set-up is complete"
