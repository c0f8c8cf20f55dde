#!/bin/bash
# Signals: a run that is told to stop saves first, whichever signal it is and however often it comes in a row.
# END_RUNS=100 repeats what is a race as often; 20 where nothing is said.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

repeats=${END_RUNS:-20}
long=("${TINY[@]}" --tokenizer byte --steps 100000000 --eval-every 0)

# begin RUN WORDS...: in the background, in a group of its own, and on its way; its number is in $process.
begin() {
    local run=$1
    shift
    set -m # without it a shell has its background jobs ignore SIGINT
    "$@" >out 2>err </dev/null &
    process=$!
    set +m
    until [[ -s $run/metrics.jsonl ]] && (($(wc -l <"$run/metrics.jsonl") > 5)); do
        kill -0 $process 2>/dev/null || depth=1 fail "the run ended on its own: $(cat err)"
        sleep 0.01
    done
}

# has_saved RUN: one checkpoint, and it is good.
has_saved() {
    (($(find "$1/checkpoints" -maxdepth 1 -name 'step-????????' 2>/dev/null | wc -l) == 1)) ||
        depth=1 fail "$1 is not saved: $(find "$1") $(cat err)"
    [[ -z $(find "$1" -name '*.tmp.*') ]] || depth=1 fail "left behind: $(find "$1")"
}

end() {
    code=0
    wait $process || code=$?
}

# timeout passes a signal on twice in a row: to its child, and to the group that this is in.
for ((i = 0; i < repeats; i++)); do
    rm -rf twice
    begin twice timeout 60 "$PGPT" train "${long[@]}" --out twice
    kill -TERM $process
    end
    ((code == 0)) || fail "try $i: exit $code after SIGTERM through timeout: $(cat err)"
    has_saved twice
    grep -q 'stopped after step [0-9]* and saved' err || fail "not said: $(cat err)"
done
for seconds in 1.5 8 40; do # more on a machine that is so busy that it had not begun
    rm -rf late
    code=0
    timeout $seconds "$PGPT" train "${long[@]}" --out late >out 2>err </dev/null || code=$?
    [[ ! -s late/metrics.jsonl ]] || break
done
((code == 124)) || fail "exit $code from timeout: $(cat err)"
has_saved late
pgpt generate late --tokens 3

# Each signal; several at once; and all of them together.
for signals in HUP USR1 "INT INT" "TERM HUP TERM HUP" "USR1 TERM INT HUP"; do
    rm -rf told
    begin told "$PGPT" train "${long[@]}" --out told
    for signal in $signals; do kill -"$signal" $process 2>/dev/null || true; done
    end
    ((code == 0)) || fail "exit $code after $signals: $(cat err)"
    has_saved told
done

# CPU time that runs out, up to the soft limit.
code=0
(ulimit -S -t 1 && exec "$PGPT" train "${long[@]}" --log-every 10000 --out tired >out 2>err </dev/null) || code=$?
((code == 0)) || fail "exit $code after SIGXCPU: $(cat err)"
has_saved tired

# What was ignored when it began stays so: nohup's SIGHUP, the SIGINT of background jobs.
for signal in HUP INT; do
    rm -rf deaf
    begin deaf bash -c "trap '' $signal; exec \"\$0\" \"\$@\"" "$PGPT" train "${long[@]}" --out deaf
    kill -$signal $process
    n=$(wc -l <deaf/metrics.jsonl)
    for ((i = 0; i < 500 && $(wc -l <deaf/metrics.jsonl) < n + 20; i++)); do sleep 0.01; done
    (($(wc -l <deaf/metrics.jsonl) >= n + 20)) || fail "SIG$signal, which is ignored, ends the run: $(cat err)"
    kill -TERM $process
    end
    ((code == 0)) || fail "exit $code after SIGTERM: $(cat err)"
done

# Impatience: the same signal again ends a run that hangs, but not within a moment.
begin stuck "$PGPT" train "${long[@]}" --fault hang:0:8 --out stuck
sleep 0.3
for ((i = 0; i < 5; i++)); do kill -TERM $process; done
sleep 0.5
kill -0 $process 2>/dev/null || fail "signals in a row end it at once"
sleep 1.7
kill -TERM $process
end
((code == 143)) || fail "exit $code after a second wish"

# The supervisor passes a signal on once, and lets the job save.
for ((i = 0; i < 3; i++)); do
    rm -rf kept
    begin kept timeout 60 "$PGPT" supervise -- "$PGPT" train "${long[@]}" --out kept
    if ((i % 2)); then kill -HUP $process; else kill -TERM $process; fi
    end
    ((code == 0)) || fail "try $i: exit $code of the supervisor: $(cat err)"
    has_saved kept
done
