#!/usr/bin/env bash
# clang-tidy 14 with the checks of .clang-tidy, on the unity files of a build: a header that twelve sources share is
# read once.
#
#   deploy/tidy.sh          what links no gRPC: its files take a third of the time of all
#   deploy/tidy.sh --all    all of ours, tests too
#
# Uses the compile commands of preset asan and the headers that its build generates.
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

NO_GRPC='^(launcher|controller/core|agent/ckpt|agent/CMakeFiles/dgxrun_agent_(core|parts)|cli/CMakeFiles/dgxrun_cli_base)'
ALL='^(launcher|controller|agent|cli|proto/CMakeFiles/dgxrun_rpc|tests)'
case "${1:-}" in
  "") which=$NO_GRPC ;;
  --all) which=$ALL ;;
  *) fail "unknown option $1 (known: --all)" ;;
esac
command -v clang-tidy-14 >/dev/null || fail "clang-tidy-14 is missing: deploy/setup.sh installs it on Debian 12"

build_preset asan dgxrun_proto dgxrun_grpc
BUILD="$ROOT/build/asan"
mapfile -t units < <(cd "$BUILD" && find . -path '*/Unity/*.cxx' -printf '%P\n' | grep -E "$which" | sort)
[ "${#units[@]}" -gt 0 ] || fail "no unity files in build/asan"
say "clang-tidy: ${#units[@]} unity files"
# One line per finding is enough: the unity file's own noise (suppressed warnings of system headers) is not shown.
(cd "$BUILD" && printf '%s\n' "${units[@]}" |
  xargs -P "$(nproc)" -I{} clang-tidy-14 --config-file="$ROOT/.clang-tidy" -p . --quiet {} 2> >(grep -v 'warnings\? generated' >&2)) ||
  fail "clang-tidy has findings"
say "clang-tidy: clean"
