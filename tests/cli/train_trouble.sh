#!/bin/bash
# What goes wrong beside the training, a log that nobody reads or a file that may not grow, ends a run only after it has saved. And what
# would only happen again is not tried again.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

long=("${TINY[@]}" --tokenizer byte --steps 100000000 --eval-every 0)

# has_saved RUN: one checkpoint, and it is good.
has_saved() {
    (($(find "$1/checkpoints" -maxdepth 1 -name 'step-????????' 2>/dev/null | wc -l) == 1)) ||
        depth=1 fail "$1 is not saved: $(find "$1") $(cat err)"
    [[ -z $(find "$1" -name '*.tmp.*') ]] || depth=1 fail "left behind: $(find "$1")"
}

# Nobody reads the log: standard error, or both. What is left to write to has the reason.
code=0
"$PGPT" train "${long[@]}" --out unread 2>&1 </dev/null | head -n 1 >out || code=${PIPESTATUS[0]}
((code == 1)) || fail "exit $code with a broken pipe"
has_saved unread
saved=$(find unread/checkpoints -maxdepth 1 -name 'step-????????')
((10#${saved##*step-} == $(column unread step | tail -n 1))) || fail "the metrics lack the last steps of $saved: $(tail -n 1 unread/metrics.jsonl)"
grep -q '"reason":"stopped after step [0-9]* and saved.*broken pipe' unread/ranks/0 || fail "no notice: $(cat unread/ranks/0)"
code=0
{ "$PGPT" train "${long[@]}" --log-every 1 --out half 2>&3 >out </dev/null || echo $? >code; } 3> >(head -n 9 >err)
(($(cat code) == 1)) || fail "exit $(cat code) with a broken pipe: $(cat out)"
has_saved half
grep -q '^pgpt: stopped after step [0-9]* and saved.*--resume half.*broken pipe' out || fail "not on standard output: $(cat out)"
pgpt train --resume half --steps 500
code=0
"$PGPT" supervise --wait 0 -- "$PGPT" train "${long[@]}" --out unread-too 2>&1 </dev/null | head -n 1 >out || code=${PIPESTATUS[0]}
((code == 1 || code == 141)) || fail "exit $code with a broken pipe"
has_saved unread-too
# A run that says nothing does not care, and neither does one whose log cannot be written for another reason.
"$PGPT" train "${TINY[@]}" --quiet --out silent 2>&1 </dev/null | true
((PIPESTATUS[0] == 0)) || fail "a quiet run has trouble with a pipe"
"$PGPT" train "${TINY[@]}" --out full 2>/dev/full >out </dev/null || fail "exit $? with a full log"
"$PGPT" train "${TINY[@]}" --out closed >&- 2>&- <&- || fail "exit $? with nothing open"
head -n 1 closed/metrics.jsonl | check_json
! grep -q pgpt: -r closed || fail "words for the user are in the run's files: $(grep -r pgpt: closed)"
# Other commands end as any filter does.
code=0
"$PGPT" generate half --tokens 100000 2>err </dev/null | head -c 1 >out || code=${PIPESTATUS[0]}
{ ((code == 141)) && [[ ! -s err ]]; } || fail "exit $code from a filter: $(cat err)"

# A file that may not grow: the metrics, of which the checkpoint knows nothing; then the checkpoint too.
code=0
(ulimit -f 200 && exec "$PGPT" train "${long[@]}" --out limited >out 2>err </dev/null) || code=$?
((code == 2)) || fail "exit $code with ulimit -f: $(tail -n 3 err)"
tail -n 1 err | grep -q "stopped after step .*--resume limited.*metrics.jsonl.*ulimit -f" || fail "not said: $(tail -n 1 err)"
has_saved limited
step=$(find limited/checkpoints -name 'step-*' | sed 's/.*-0*//')
pgpt train --resume limited --steps $((step + 3))
grep -q "going on from step $step" err || fail "does not go on: $(cat err)"
code=0
(ulimit -f 30 && exec "$PGPT" train "${long[@]}" --out nothing >out 2>err </dev/null) || code=$?
((code == 2)) || fail "exit $code with ulimit -f: $(tail -n 3 err)"
tail -n 1 err | grep -q "metrics.jsonl.*ulimit -f.*was not saved.*ulimit -f" || fail "not said: $(tail -n 1 err)"
code=0
(ulimit -f 1 && exec "$PGPT" generate half --tokens 3000 >big 2>err </dev/null) || code=$?
{ ((code == 1)) && grep -q 'standard output' err; } || fail "exit $code from generate with ulimit -f: $(cat err)"

# By the clock, without being asked: in the foreground, so that no memory is taken for it.
peak() {
    pgpt train "${TINY[@]}" "$@" --print-program --json
    tail -n 1 out | field peak_bytes
}
(($(peak) == $(peak --save-minutes 0))) || fail "a run that does not ask for it has copies"
(($(peak --save-minutes 10) > $(peak))) || fail "a run that asks for it has no copies"
pgpt train "${TINY[@]}" --out asked
grep -qx '#save-minutes = 10' asked/config.ini || fail "not the default: $(grep save asked/config.ini)"

# A loss that is not a number: nothing is saved over what was good, and the second time is the last.
nan=("${TINY[@]}" --tokenizer byte --steps 30 --lr 1000 --warmup 12 --clip 0 --eval-every 0)
for way in --optimizer=adamw "--optimizer=sgd --save-every 4"; do # before the first checkpoint, and behind one
    rm -rf bad
    code=0
    # shellcheck disable=SC2086 # several words
    "$PGPT" supervise --wait 0 --restarts 9 --json -- "$PGPT" train "${nan[@]}" $way --out bad >out 2>err </dev/null || code=$?
    ((code == 1)) || fail "exit $code: $(cat err)"
    [[ $(tail -n 1 out | field restarts) == 1 ]] || fail "started again: $(tail -n 1 out) $(cat err)"
    grep -q 'of step [0-9]* was not a finite number once more.*--lr' err || fail "not said: $(cat err)"
    if [[ $way == *save* ]]; then
        has_saved bad
        grep -q 'starting it again from its last checkpoint' err || fail "not said: $(cat err)"
    else
        [[ ! -e bad/checkpoints ]] || fail "a checkpoint of what is not a number: $(ls bad/checkpoints)"
        grep -q 'starting it again from the beginning' err || fail "not said: $(cat err)"
    fi
done

# The report of a job that is ended: how to go on, where that is possible.
code=0
"$PGPT" train "${long[@]}" --hang-timeout 0.5 --fault hang:0:8 --out hangs >out 2>err </dev/null || code=$?
{ ((code == 1)) && grep -q 'ending the job; nothing had been saved yet' err; } || fail "exit $code: $(cat err)"
code=0
"$PGPT" train "${long[@]}" --hang-timeout 0.5 --fault hang:0:8 --save-every 3 --out hangs-later >out 2>err </dev/null || code=$?
{ ((code == 1)) && grep -q 'go on from its last checkpoint with: pgpt train --resume hangs-later' err; } || fail "exit $code: $(cat err)"
