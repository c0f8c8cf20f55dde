#!/bin/bash
# Several ranks and a run's folder: one launch at a time, a supervisor that was killed, and the shared memory that killed
# ranks leave behind: in a /dev/shm of its own where that can be had, since any other pgpt of this user would clear it up first.
if [[ -z ${HAS_OWN_SHM:-} ]] && unshare -m mount -t tmpfs tmpfs /dev/shm 2>/dev/null; then
    export HAS_OWN_SHM=1
    # shellcheck disable=SC2016 # the inner shell expands it
    exec unshare -m bash -c 'mount -t tmpfs tmpfs /dev/shm && exec bash "$0"' "$0"
fi
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

Q=("${TINY[@]}" --data s.txt)
for ((i = 0; i < 300; i++)); do echo "the quick brown fox number $i jumps over the lazy dog"; done >s.txt

# ---- supervise is killed and started again while its job lives on.
"$PGPT" supervise -- "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" train "${Q[@]}" --steps 100000000 --save-every 50 --out night >"$SCRATCH/job" 2>&1 </dev/null &
supervisor=$!
for ((i = 0; i < 400; i++)); do [[ ! -s night/metrics.jsonl ]] || break && sleep 0.05; done
[[ -s night/metrics.jsonl ]] || fail "the job did not begin: $(cat "$SCRATCH/job")"
code=0 && "$PGPT" supervise -- "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" train "${Q[@]}" --out night >out 2>err </dev/null || code=$?
{ ((code == 2)) && grep -q 'night is being written by process' err; } || fail "a second supervisor: exit $code, $(cat err)"
kill -KILL $supervisor
wait $supervisor 2>/dev/null || true
code=0 && "$PGPT" supervise -- "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" train "${Q[@]}" --out night >out 2>err </dev/null || code=$?
{ ((code == 2)) && grep -q 'night is being written by process' err; } || fail "supervise beside a job that lives on: exit $code, $(cat err)"
writer=$(sed -n 's/.*being written by process \([0-9]*\) .*/\1/p' err)

# ---- Its ranks are killed: the next start removes the segments that they have left.
[[ -d /dev/shm ]] || skip "there is no /dev/shm"
[[ -d /proc/$writer ]] || fail "process $writer, which has the lock, is not there: $(cat err)"
segments=$(awk '$NF ~ "^/dev/shm/(vader|sm)_segment" { print $NF }' "/proc/$writer/maps" | sort -u)
[[ -n $segments ]] || skip "this MPI makes no segments in /dev/shm"
launcher=$(awk '/^PPid:/ { print $2 }' "/proc/$writer/status")
mapfile -t ranks < <(pgrep -P "$launcher")
kill -KILL "$launcher" "${ranks[@]}"
for ((i = 0; i < 200; i++)); do if [[ -d /proc/$writer ]]; then sleep 0.05; fi; done
for file in $segments; do
    [[ -e $file || -n ${HAS_OWN_SHM:-} ]] || skip "another pgpt has removed $file already"
    [[ -e $file ]] || fail "$file is gone already: nothing is tested"
done
step=$(find night/checkpoints -maxdepth 1 -name 'step-????????' | sort | tail -n 1 | tr -dc 0-9)
ranks 2 train --resume night --steps $((10#$step + 2))
grep -q 'removed [0-9]* shared-memory segment' err || fail "nothing is said of them: $(cat err)"
for file in $segments; do [[ ! -e $file ]] || fail "$file of a killed rank is still there"; done
[[ ! -e /dev/shm/pgpt-segments.$(id -u).$writer ]] || fail "the note of a killed rank is still there"
