#!/bin/bash
# Ctrl-C and SIGTERM save and leave; going on leads to the bits of a run that was never stopped.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --batch 16 --steps 1500 --dropout 0.1 --lr 0.01 --warmup 100 --eval-every 0 --eval-batches 2)
pgpt train "${options[@]}" --out whole

# Start a run, and send it a signal once it is on its way.
interrupt() {
    local run=$1 signal=$2 process
    shift 2
    set -m # without it a shell has its background jobs ignore SIGINT
    "$PGPT" train "${options[@]}" --out "$run" "$@" >out 2>err </dev/null &
    process=$!
    set +m
    until [[ -s $run/metrics.jsonl ]] && (($(wc -l <"$run/metrics.jsonl") > 20)); do
        kill -0 $process 2>/dev/null || depth=1 fail "the run ended on its own: $(cat err)"
        sleep 0.01
    done
    kill "-$signal" $process
    code=0
    wait $process || code=$?
}

for signal in INT TERM; do
    interrupt $signal $signal --json
    ((code == 0)) || fail "exit $code after SIG$signal: $(cat err)"
    step=$(tail -n 1 out | field step)
    ((step < 1500)) || fail "the run was done before the signal came"
    grep -q "stopped after step $step and saved; go on with: pgpt train --resume $signal" err ||
        fail "does not say how to go on: $(cat err)"
    [[ $(tail -n 1 out | field interrupted) == true ]] || fail "the summary says: $(tail -n 1 out)"
    [[ $(ls $signal/checkpoints) == step-$(printf %08d "$step") ]] || fail "saved: $(ls $signal/checkpoints)"
    (($(wc -l <$signal/metrics.jsonl) == step + 1)) || fail "metrics do not end at step $step"
    pgpt generate $signal --tokens 3

    pgpt train --resume $signal
    grep -q "going on from step $step" err || fail "does not say where it goes on: $(cat err)"
    same_losses whole $signal
    same_model whole $signal
    cmp -s whole/checkpoints/step-00001500/optimizer.safetensors \
        $signal/checkpoints/step-00001500/optimizer.safetensors || fail "the moments differ"
    (($(grep -c machine $signal/metrics.jsonl) == 1)) || fail "a second header"
done

# Killed without warning: from the last checkpoint, and no step is recorded twice.
interrupt killed KILL --save-every 7 --keep 1
((code == 137)) || fail "exit $code after SIGKILL"
pgpt train --resume killed --save-every 0
same_losses whole killed
same_model whole killed
(($(find killed/checkpoints -mindepth 1 -maxdepth 1 | wc -l) == 1)) || fail "left over: $(ls -A killed/checkpoints)"

# The same by the book: steps 5 to 10 were recorded, and half of a line, but the last checkpoint is that of step 4.
pgpt train "${TINY[@]}" --steps 10 --save-every 4 --keep 5 --out torn
cp -r torn untorn
rm -r torn/checkpoints/step-0000001* torn/checkpoints/step-00000008
printf '{"step":11,"lo' >>torn/metrics.jsonl
pgpt train --resume torn
same_losses untorn torn
same_model untorn torn
(($(wc -l <torn/metrics.jsonl) == 11)) || fail "metrics of a run that was killed: $(cat torn/metrics.jsonl)"

# A finished run: says so; with more steps it goes on.
pgpt train "${TINY[@]}" --out finished --lr-schedule constant
refused '/5 steps done.*--steps/' train --resume finished
pgpt train --resume finished --steps 8
pgpt train "${TINY[@]}" --out eight --lr-schedule constant --steps 8
same_losses eight finished
same_model eight finished

# What cannot be resumed, or not like this.
mkdir nothing
refused train --resume nothing
refused train --resume missing
refused '/--out/' train --resume finished --steps 9 --out elsewhere
refused '/--channels 32 cannot be: the run has --channels 16/' train --resume finished --steps 9 --channels 32
refused '/tokenizer/' train --resume finished --steps 9 --tokenizer byte
refused '/--optimizer adamw/' train --resume finished --steps 9 --optimizer sgd
truncate -s -1 finished/checkpoints/*/model.safetensors
refused train --resume finished --steps 9

# Stopped once more after a resume with more steps: the way on that it names still works.
pgpt train "${TINY[@]}" --out longer --eval-every 0
"$PGPT" train --resume longer --steps 1000000 >out 2>err </dev/null &
process=$!
until (($(wc -l <longer/metrics.jsonl) > 10)); do sleep 0.01; done
kill -TERM $process
wait $process || fail "exit $? after SIGTERM: $(cat err)"
way=$(sed -n 's/.*go on with: pgpt //p' err)
[[ $way == "train --resume longer" ]] || fail "the way on is '$way'"
grep -q '^steps = 1000000$' longer/config.ini || fail "the steps are forgotten: $(grep steps longer/config.ini)"
