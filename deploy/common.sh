# Sourced by the scripts beside it: where things are, how they speak, which Python they use.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REQUIREMENTS="$ROOT/deploy/requirements.txt"
FRAMEWORKS="$ROOT/deploy/requirements-frameworks.txt"
FRAMEWORK_MODULES=(transformers accelerate safetensors lightning deepspeed megatron)

say() { printf '==> %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The active environment (venv or conda) if it has torch: people keep theirs. Else the project's own.
# Prints the interpreter's path; it may not exist before setup.sh has run.
project_python() {
  local active
  for active in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    if [ -n "$active" ] && has_modules "$active/bin/python" torch; then
      printf '%s\n' "$active/bin/python"
      return
    fi
  done
  printf '%s\n' "$ROOT/.venv/bin/python"
}

# The one with the frameworks whose checkpoints tests/frameworks writes: the interpreter above if it has them all,
# else the project's own; an environment of other people's is not filled with them. It may not exist yet.
frameworks_python() {
  local python
  python=$(project_python)
  if has_modules "$python" pytest xdist "${FRAMEWORK_MODULES[@]}"; then
    printf '%s\n' "$python"
  else
    printf '%s\n' "$ROOT/.venv/bin/python"
  fi
}

# has_modules PYTHON MODULE...: looks for the modules without importing them (torch takes a second).
has_modules() {
  local python=$1
  shift
  [ -x "$python" ] || return 1
  "$python" - "$@" <<'PY' >/dev/null 2>&1
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
}

# build_preset PRESET [TARGET...]: configures, builds. DGXRUN_JOBS limits the compilers at work.
build_preset() {
  local preset=$1 log="$ROOT/build/$1.configure.log"
  shift
  say "building preset $preset"
  mkdir -p "$ROOT/build"
  (cd "$ROOT" && cmake --preset "$preset" >"$log" 2>&1) || {
    cat "$log" >&2
    fail "cmake --preset $preset failed"
  }
  (cd "$ROOT" && cmake --build --preset "$preset" -j "${DGXRUN_JOBS:-$(nproc)}" ${*:+--target "$@"})
}
