#!/usr/bin/env bash
# Sets up, builds and runs all tests: formatting, unit tests (plain, and with AddressSanitizer and
# UndefinedBehaviorSanitizer), and end-to-end tests with the real programs.
#
# End-to-end tests that make network namespaces or change accounts need root: an ordinary user is asked for
# sudo. Arguments go to pytest: deploy/test.sh -k secrets
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$ROOT/deploy/setup.sh"
PYTHON=$(project_python)

say "formatting (clang-format 14)"
mapfile -t sources < <(cd "$ROOT" && git ls-files '*.h' '*.cc')
[ "${#sources[@]}" -gt 0 ] || fail "no sources: this must run in a git checkout"
(cd "$ROOT" && "$(dirname "$PYTHON")/clang-format" --dry-run --Werror "${sources[@]}") || fail "run clang-format -i on the files named above"

build_preset debug
say "unit tests, preset debug"
(cd "$ROOT" && ctest --preset debug -j "$(nproc)")

# What the sanitizers watch is the unit tests, which hold all our code; the programs are the debug ones.
build_preset asan tests
say "unit tests, preset asan (AddressSanitizer, UndefinedBehaviorSanitizer)"
(cd "$ROOT" && ctest --preset asan -j "$(nproc)")

# End-to-end tests mostly wait (for leases, graces, fences): several at once, each in folders of its own.
WORKERS=4
say "end-to-end tests, $WORKERS at once"
cd "$ROOT"
if [ "$(id -u)" -eq 0 ]; then
  "$PYTHON" -m pytest -p no:cacheprovider -n "$WORKERS" tests/e2e "$@"
else
  "$PYTHON" -m pytest -p no:cacheprovider -n "$WORKERS" tests/e2e -m "not root" "$@"
  say "end-to-end tests that need root (network namespaces, accounts)"
  sudo env "PATH=$PATH" PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -m pytest -p no:cacheprovider -n "$WORKERS" tests/e2e -m root "$@"
fi
