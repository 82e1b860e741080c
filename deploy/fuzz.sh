#!/usr/bin/env bash
# Builds the fuzzers (preset fuzz: clang, libFuzzer, AddressSanitizer, UBSan) and runs each for its share.
#
#   deploy/fuzz.sh             one minute for all of them together
#   deploy/fuzz.sh SECONDS     so long
#   deploy/fuzz.sh SECONDS NAME...   only these (cluster_file_fuzz, ...)
#
# New inputs that reach new code are kept in build/fuzz/found/<name>/ for the next run; a finding is kept in
# build/fuzz/findings/ and fails the run. Seeds are in tests/fuzz/corpus/<name>/.
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set -/{s/^# \{0,1\}//;/^set -/d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
SECONDS_IN_ALL=${1:-60}
[[ "$SECONDS_IN_ALL" =~ ^[1-9][0-9]*$ ]] || fail "SECONDS must be a number, not '$SECONDS_IN_ALL'"
shift || true

build_preset fuzz fuzzers
FUZZ="$ROOT/build/fuzz/fuzz"
mkdir -p "$ROOT/build/fuzz/findings"
names=("$@")
if [ "${#names[@]}" -eq 0 ]; then
  for seeds in "$FUZZ"/*.seeds; do names+=("$(basename "$seeds" .seeds)"); done
fi

# One thread each, as many at once as there are cores.
WORKERS=$(nproc)
SHARE=$((SECONDS_IN_ALL * WORKERS / ${#names[@]}))
[ "$SHARE" -ge 1 ] || SHARE=1
say "fuzzing ${#names[@]} programs, $SHARE s each, $WORKERS at once"

fuzz_one() {
  local name=$1 found="$ROOT/build/fuzz/found/$1" log="$ROOT/build/fuzz/$1.log" folders=()
  mkdir -p "$found"
  while read -r folder; do [ ! -d "$folder" ] || folders+=("$folder"); done <"$FUZZ/$name.seeds"
  # 4 KiB: what the parsers see in life is smaller; from the start, since the cores need many steps to get deep.
  # 10 s and 1 GiB: nothing of ours comes near.
  if ! "$FUZZ/$name" -max_total_time="$SHARE" -max_len=4096 -len_control=0 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$ROOT/build/fuzz/findings/$name-" "$found" "${folders[@]}" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    printf 'error: %s has a finding; its input is in build/fuzz/findings: run build/fuzz/fuzz/%s INPUT\n' "$name" "$name" >&2
    return 1
  fi
  printf '%s: %s runs, %s\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)"
}
export -f fuzz_one
export ROOT FUZZ SHARE
printf '%s\n' "${names[@]}" | xargs -P "$WORKERS" -I{} bash -c 'fuzz_one {}' ||
  fail "fuzzing found something"
