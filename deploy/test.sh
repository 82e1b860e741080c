#!/usr/bin/env bash
# Sets up, builds and runs all tests (docs/testing.md): formatting, the release archive, end-to-end tests with its
# programs, unit tests with AddressSanitizer and UndefinedBehaviorSanitizer and with ThreadSanitizer.
#
# End-to-end tests that make network namespaces or change accounts need root: an ordinary user is asked for
# sudo. Arguments go to pytest: deploy/test.sh -k secrets
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# End-to-end tests mostly wait (for leases, graces, fences): several at once, each in folders of its own.
WORKERS=4

# Names the step that begins and says how long all before took, so that a slow one is seen.
step() {
  say "[$((SECONDS / 60)) min $((SECONDS % 60)) s] $*"
}

cd "$ROOT"
"$ROOT/deploy/setup.sh" --frameworks
PYTHON=$(project_python)
PYTEST=("$PYTHON" -m pytest -p no:cacheprovider)

step "formatting (clang-format 14)"
mapfile -t sources < <(git ls-files '*.h' '*.cc')
[ "${#sources[@]}" -gt 0 ] || fail "no sources: this must run in a git checkout"
"$(dirname "$PYTHON")/clang-format" --dry-run --Werror "${sources[@]}" || fail "run clang-format -i on the files named above"

# What users get is what the end-to-end tests run.
step "the release archive"
"$ROOT/deploy/release.sh"
"${PYTEST[@]}" -q tests/release
build_preset static test_tools
export DGXRUN_BIN="$ROOT/build/static/bin"
step "end-to-end tests, $WORKERS at once"
if [ "$(id -u)" -eq 0 ]; then
  "${PYTEST[@]}" -n "$WORKERS" tests/e2e "$@"
else
  "${PYTEST[@]}" -n "$WORKERS" tests/e2e -m "not root" "$@"
  step "end-to-end tests that need root (network namespaces, accounts)"
  sudo env "PATH=$PATH" "DGXRUN_BIN=$DGXRUN_BIN" PYTHONDONTWRITEBYTECODE=1 "${PYTEST[@]}" -n "$WORKERS" tests/e2e -m root "$@"
fi

step "checkpoints of the real frameworks"
"$(frameworks_python)" -m pytest -p no:cacheprovider -q -n 2 --dist loadgroup tests/frameworks

# The unit tests hold all our code; each runs with asserts on and watched by one sanitizer or the other.
step "unit tests with AddressSanitizer and UndefinedBehaviorSanitizer"
build_preset asan tests
ctest --preset asan -j "$(nproc)"
step "unit tests with ThreadSanitizer" # what links no gRPC, which is not instrumented
build_preset tsan tests_no_grpc
ctest --preset tsan -j "$(nproc)"

step "all tests passed"
