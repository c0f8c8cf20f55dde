#!/bin/bash
# Training in 16 bits, by the CPU's widened kernels: the same course as in f32, within what the numbers can hold, and the same
# bits after going on; less memory where all of it is 16-bit; the loss's scale of f16, the steps that it skips, and the end of
# a run that it cannot help.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --layers 2 --channels 32 --context 32 --batch 8)

# goes_on RUN STEP: as if it had been killed after the checkpoint of that step
goes_on() {
    local checkpoint
    cp -r "$1" again
    for checkpoint in again/checkpoints/step-*; do
        [[ $checkpoint == *"$2" ]] || rm -r "$checkpoint"
    done
    pgpt train --resume again
    grep -q "going on from step $2" err || depth=1 fail "does not go on from step $2: $(cat err)"
    same_losses "$1" again
    same_model "$1" again
    cmp -s "$(dirname "$(model "$1")")/optimizer.safetensors" "$(dirname "$(model again)")/optimizer.safetensors" ||
        depth=1 fail "the moments differ after going on"
    rm -r again
}

# ---- The course.
declare -A most=([bf16]=3e-3 [f16]=5e-4 [pure-bf16]=1e-2 [pure-f16]=1e-3) state
for dtype in f32 bf16 f16 pure-bf16 pure-f16; do
    pgpt train "${options[@]}" --steps 60 --save-every 20 --lr 0.003 --dtype $dtype --out $dtype --json
    state[$dtype]=$(tail -n 1 out | field state_bytes)
    [[ $dtype != f32 ]] || continue
    close_numbers "${most[$dtype]}" "$(column f32 loss)" "$(column $dtype loss)"
    ! cmp -s "$(model f32)" "$(model $dtype)" || fail "$dtype trains in f32"
    goes_on $dtype 20
done
((state[pure-bf16] * 2 == state[f32] && state[pure-f16] * 2 == state[f32])) || fail "bytes of state: ${state[*]}"

# Weights with stochastic rounding follow a rate far below their own spacing; rounded to the nearest they would stay.
for dtype in f32 pure-bf16; do
    pgpt train "${options[@]}" --steps 300 --lr 2e-5 --warmup 1 --lr-schedule constant --eval-every 300 --eval-batches 0 \
        --dtype $dtype --out slow-$dtype
done
first=$(column slow-f32 loss | head -n 1) last=$(column slow-f32 val_loss) chance=$(column slow-pure-bf16 val_loss)
awk "BEGIN { exit !($first - $last > 0.2 && $first - $chance > 0.97 * ($first - $last)) }" ||
    fail "from $first to $last in f32, to $chance in pure-bf16"

# ---- The loss's scale.
scales() {
    column "$1" loss_scale | uniq | tr '\n' ' '
}
pgpt train "${TINY[@]}" --steps 1010 --eval-every 0 --dtype f16 --out doubled # after a thousand steps that went well
[[ $(scales doubled) == '65536.0 131072.0 ' ]] || fail "scales: $(scales doubled)"

# One token a step has a gradient of about 1, which is too large 65,536 times over.
pgpt train "${TINY[@]}" --sequence 1 --batch 1 --steps 40 --save-every 10 --log-every 20 --dtype f16 --out skips --json
n=$(column skips skipped | tail -n 1)
((n > 0 && n < 10)) || fail "$n of 40 steps were skipped"
[[ $(tail -n 1 out | field skipped) == "$n" ]] || fail "the summary says: $(tail -n 1 out)"
grep -q "^step 20/40 .* $n skipped\$" err || fail "no line says that steps were skipped: $(cat err)"
[[ $(scales skips) == '32768.0 '* ]] || fail "scales: $(scales skips)"
[[ $(tail -n 1 out | field loss_scale) == "$(column skips loss_scale | tail -n 1)" ]] || fail "$(tail -n 1 out)"
(($(grep -c '"grad_norm"' skips/metrics.jsonl) == 40 - n)) || fail "a skipped step has a norm"
goes_on skips 20

# A loss that is finite, with a gradient that f16 cannot hold at any scale: it ends, and says what to do.
pgpt convert doubled steep
file=steep/model.safetensors
header=$(od -An -t u8 -N 8 $file | tr -d ' ')
at=$(head -c $((8 + header)) $file | grep -ao '"[a-z.]*ln_f.weight":{[^}]*}' | sed 's/.*"data_offsets":\[\([0-9]*\),.*/\1/')
for _ in {1..16}; do printf '\0\100\234\106'; done | dd of=$file bs=1 seek=$((8 + header + at)) conv=notrunc status=none # 2e4
code=0
"$PGPT" train --init steep --data builtin --batch 1 --sequence 1 --steps 200 --threads 1 --sample-tokens 0 --dtype f16 \
    --validation 0 --out hopeless >out 2>err </dev/null || code=$?
((code == 1)) || fail "exit $code where nothing can be learned: $(tail -n 3 out err)"
grep -Eq '^pgpt: the gradient of step [0-9]+ is not a finite number, though the loss is not scaled.*--dtype bf16$' err || fail "$(cat err)"

# One step was good, and its learning rate spoilt the weights: that is what is blamed.
code=0
"$PGPT" train "${TINY[@]}" --steps 24 --lr 1000 --dtype f16 --out spoilt >out 2>err </dev/null || code=$?
((code == 1)) || fail "exit $code with a learning rate of 1000: $(tail -n 3 out err)"
grep -q 'the learning rate was 1e+03' err || fail "something else is blamed: $(cat err)"
