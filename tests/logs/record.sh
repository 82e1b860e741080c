#!/usr/bin/env bash
# Makes a controller's log with one of each: tests/logs/record.sh BIN OUT, BIN being the programs of the release
# that the log shall be of. Run once per release; the log is kept and must replay for ever (tests/unit/old_log_test.cc).
#
# It runs in a network namespace of its own without addresses and with an empty environment, so that nothing
# of the machine gets into the file. The controller is killed (SIGKILL) while a job lives.
set -euo pipefail
BIN=$(realpath "$1")
OUT=$(realpath -m "$2")
if [ -z "${DGXRUN_RECORDING:-}" ]; then
  exec unshare -n env -i DGXRUN_RECORDING=1 PATH=/usr/bin:/bin HOME=/nonexistent "$0" "$BIN" "$OUT"
fi
WORK=/tmp/dgxrun-record
rm -rf "$WORK"
mkdir "$WORK"
cd "$WORK"
export DGXRUN_STATE_DIR=$WORK/state DGXRUN_RUN_DIR=$WORK/run PYTHON_EXEC=/usr/bin/python3
trap 'cd /; "$BIN/dgxrun" dev up >/dev/null; "$BIN/dgxrun" dev down; rm -rf "$WORK"' EXIT

cat >resumes.py <<'PY'
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    open("ckpt/step_20.pt", "w").write("x")
    sys.exit(7)
PY
cat >lives.py <<'PY'
import os, signal
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "3":
    os.kill(os.getpid(), 9)
print("lives", flush=True)
signal.pause()
PY
mkdir ckpt
# await STATE NAME: until status names that state; half a minute is far more than any of it takes.
await() {
  timeout 30 bash -c 'until "$0" status "$2" --json 2>/dev/null | grep -q "\"state\": *\"$1\""; do read -rt 0.1 <> <(:) || true; done' \
    "$BIN/dgxrun" "$1" "$2"
}

"$BIN/dgxrun" dev up -n 2
"$BIN/dgxrun" -n 2 -g 1 --name succeeds --no-python /bin/true
"$BIN/dgxrun" -n 2 -g 1 --name resumes --ckpt-dir ckpt resumes.py
"$BIN/dgxrun" -n 1 -g 2 --name fails --max-restarts 0 --no-python /bin/false || true
"$BIN/dgxrun" -n 2 -g 2 --name stopped --no-python /bin/sleep 600 &
await running stopped
"$BIN/dgxrun" stop stopped
wait || true
# A rank is killed, then a node is lost, fenced and comes back: the third attempt lives when the log ends.
"$BIN/dgxrun" -n 2 -g 2 --name lives --max-restarts 3 lives.py >lives.out 2>&1 &
timeout 30 bash -c 'until [ "$(grep -c lives$ lives.out)" -ge 4 ]; do read -rt 0.1 <> <(:) || true; done'
agent=$(pgrep -f "$BIN/dgxrun-agent.*node2")
kill -STOP "$agent"
await queued lives
kill -CONT "$agent"
await running lives
"$BIN/dgxrun" status --all
kill -KILL "$(pgrep -f "$BIN/dgxrun-controller.*$WORK")"
mkdir -p "$(dirname "$OUT")"
# What is in the write-ahead file goes into the one file that is kept.
/usr/bin/python3 - "$WORK/state/dev/controller/log.db" "$OUT" <<'PY'
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as log, sqlite3.connect(sys.argv[2]) as kept:
    log.backup(kept)
    kept.execute("pragma journal_mode=delete")
PY
