#!/usr/bin/env bash
# From an empty checkout to a training run that loses a rank and comes back:
#
#   1. installs what is missing (deploy/setup.sh) and builds the release preset
#   2. starts a dev cluster: one dgxrun-controller and two dgxrun-agents on this machine
#   3. trains docs/examples/train_gpt.py, 2 nodes x 2 ranks, on the text of the GPL
#   4. kills a rank half-way; dgxrun restarts the job from its latest checkpoint
#   5. shows why and from where, and takes the cluster down again
#
# Leaves nothing running; its files are in a temporary folder that it removes.
set -euo pipefail
# shellcheck source=deploy/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HOLD_AT=70 # steps; checkpoints come every 20, so the latest at the kill is that of step 60

"$ROOT/deploy/setup.sh"
build_preset release dgxrun dgxrun-controller dgxrun-agent dgxrun-shim

PYTHON=$(project_python)
DGXRUN="$ROOT/build/release/bin/dgxrun"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/dgxrun-quickstart.XXXXXX")
export DGXRUN_STATE_DIR="$WORK/state" PYTHON_EXEC="$PYTHON"
unset DGXRUN_CLUSTER
job=""

clean_up() {
  local code=$?
  trap - EXIT INT TERM
  exec 3>&- || true
  [ -z "$job" ] || kill -TERM "$job" 2>/dev/null || true
  "$DGXRUN" dev down >/dev/null 2>&1 || true
  [ -z "$job" ] || wait "$job" 2>/dev/null || true
  if [ "$code" -eq 0 ]; then
    rm -rf "$WORK"
  else
    printf 'error: the quick start failed; its files are in %s\n' "$WORK" >&2
  fi
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# status_field EXPRESSION: a Python expression over `status`, what `dgxrun status --json` printed.
status_field() {
  "$DGXRUN" status gpt --json |
    "$PYTHON" -c 'import json, sys; status = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

say "dgxrun dev up -n 2"
"$DGXRUN" dev up -n 2

# Rank 0 waits at step $HOLD_AT until this FIFO is opened for writing, so that the kill comes half-way on
# slow and fast machines alike.
mkfifo "$WORK/hold"
say "dgxrun -n 2 -g 2 --name gpt --ckpt-dir ckpt docs/examples/train_gpt.py"
cd "$WORK"
"$DGXRUN" -n 2 -g 2 --name gpt --grace 5s --ckpt-dir "$WORK/ckpt" \
  "$ROOT/docs/examples/train_gpt.py" --ckpt-dir "$WORK/ckpt" --steps 100 \
  --hold-at "$HOLD_AT" --hold-fifo "$WORK/hold" > >(tee "$WORK/output") &
job=$!

# Wait for the rank's word without looking again and again; no word for five minutes is a failure.
touch "$WORK/output"
grep -q -m 1 "holding at step $HOLD_AT" < <(timeout 300 tail -n +1 -f --pid="$job" "$WORK/output") ||
  fail "the run did not reach step $HOLD_AT"
victim=$(status_field '[r["pid"] for n in status["nodes"] for r in n["ranks"] if r["rank"] == 3][0]')
say "kill -9 $victim: rank 3, on node2"
kill -KILL "$victim"
exec 3<>"$WORK/hold" # whoever opens the FIFO from now on goes on at once

code=0
wait "$job" || code=$?
job=""
[ "$code" -eq 0 ] || fail "dgxrun ended with $code"

say "dgxrun why gpt"
"$DGXRUN" why gpt
restarts=$(status_field 'status["restarts"]')
checkpoint=$(status_field 'status["checkpoint"]')
[ "$restarts" = 1 ] || fail "expected one restart, got $restarts"
grep -q "resumed from $checkpoint at step" "$WORK/output" || fail "no rank said that it resumed from $checkpoint"
say "the job lost a rank, was restarted from $(basename "$checkpoint") and finished:"
grep "done:" "$WORK/output"
say "dgxrun dev down"
"$DGXRUN" dev down
