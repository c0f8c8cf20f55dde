#!/bin/bash
# On a GPU the next step begins before the last one has ended. A run that is told to stop in the middle, and goes on, leaves
# what one leaves that was left in peace, byte for byte, and a line for every step; so does one that has something between
# all steps, where nothing can begin early. An evaluation has a batch under way while it asks for the loss of the one before: it
# gives what the CPU's gives, which has not.
#
#   PGPT=... SOURCE_ROOT=$PWD DEVICE=cpu tests/support/in-fresh-folder bash "$PWD/tests/cuda/train_ahead.sh"      the same without a GPU
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

device=${DEVICE:-cuda} steps=3000
options=("${TINY[@]}" --device "$device" --dtype bf16 --batch 2 --steps "$steps" --dropout 0.1 --lr 0.01 --warmup 20
    --lr-schedule constant --validation 0.1)
if ! "$PGPT" train "${TINY[@]}" --device "$device" --steps 1 --out first >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi

pgpt train "${options[@]}" --out whole --eval-every 1000
[[ $(column whole step | wc -l) == "$steps" ]] || fail "$(column whole step | wc -l) lines for $steps steps"

# n_reported RUN: how many lines its metrics have
n_reported() {
    if [[ -s $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi
}

# told_to_stop RUN LINES: SIGTERM when so many lines are there
told_to_stop() {
    local code=0 process
    "$PGPT" train "${options[@]}" --out "$1" --eval-every 1000 --resume auto >out 2>err </dev/null &
    process=$!
    while kill -0 $process 2>/dev/null && (($(n_reported "$1") < $2)); do sleep 0.01; done
    kill -TERM $process 2>/dev/null || true
    wait $process || code=$?
    ((code == 0)) || fail "exit $code: $(cat err)"
    (($(n_reported "$1") < steps)) || fail "it was done before it was told to stop"
}
told_to_stop stopped 300
told_to_stop stopped 900
pgpt train "${options[@]}" --out stopped --eval-every 1000 --resume auto
same_model whole stopped
same_losses whole stopped
[[ $(column whole val_loss) == "$(column stopped val_loss)" ]] || fail "the validation losses of whole and stopped differ"

# A step of several micro-batches may be given up in the middle.
options+=(--batch 6 --micro-batch 1 --steps 1500)
steps=1500
pgpt train "${options[@]}" --out parts --eval-every 1000
told_to_stop parts_stopped 200
told_to_stop parts_stopped 700
pgpt train "${options[@]}" --out parts_stopped --eval-every 1000 --resume auto
same_model parts parts_stopped
same_losses parts parts_stopped

options+=(--batch 2 --micro-batch 2)
pgpt train "${options[@]}" --out slow --eval-every 1 --eval-batches 1 --steps 200
[[ $(column slow loss) == "$(column whole loss | head -n 200)" ]] || fail "the losses differ where every step is waited for"

# Batches that differ: characters at first, later only a few of them, and the last batch is shorter.
{
    for i in {1..400}; do echo "line $i has the number $((i * 7919 % 1000)) in it"; done
    for i in {1..40}; do echo aaaaaaaaaaaaaaaa; done
} >text
options=("${TINY[@]}" --dtype f32 --data text --validation 0.2 --batch 3 --steps 40 --lr 0.01 --eval-every 10 --eval-batches 0)
pgpt train "${options[@]}" --device cpu --out reference
pgpt train "${options[@]}" --device "$device" --out evaluated
close_numbers 1e-4 "$(column reference val_loss | grep -v null)" "$(column evaluated val_loss | grep -v null)"
