#!/bin/bash
# Checkpoints of runs in pure 16 bits: half the bytes, the same bits after going on, also from those that older versions wrote in
# f32; loaded in any other precision, and by every other command, as the same numbers.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=("${TINY[@]}" --layers 2 --channels 32 --batch 8 --lr 0.003 --dropout 0.1 --eval-every 0)

header() { # FILE: the text
    head -c $((8 + $(od -An -t u8 -N 8 "$1"))) "$1" | tail -c +9
}
data_bytes() { # FILE: beside the header
    echo $(($(stat -c %s "$1") - 8 - $(od -An -t u8 -N 8 "$1")))
}
types() { # FILE: of its tensors
    header "$1" | grep -o '"dtype":"[A-Z0-9]*"' | sort -u | sed 's/.*:"\(.*\)"/\1/' | tr '\n' ' '
}

# ---- What is in them, in the background or not.
declare -A size=([f32]=4 [bf16]=4 [pure-bf16]=2 [pure-f16]=2)
declare -A weights=([f32]="F32 " [bf16]="F32 " [pure-bf16]="BF16 " [pure-f16]="F16 ")
declare -A moments=([f32]="F32 " [bf16]="F32 " [pure-bf16]="BF16 " [pure-f16]="BF16 ")
for dtype in f32 bf16 pure-bf16 pure-f16; do
    pgpt train "${small[@]}" --steps 12 --save-every 4 --keep 10 --dtype $dtype --out $dtype --json
    n=$(tail -n 1 out | field parameters)
    pgpt train "${small[@]}" --steps 12 --save-every 4 --keep 10 --dtype $dtype --out before --no-background-save
    diff -r $dtype/checkpoints before/checkpoints || fail "$dtype: other checkpoints in the foreground"
    rm -r before
    for step in 4 8 12; do
        folder=$(printf '%s/checkpoints/step-%08d' $dtype $step)
        n_model=$(data_bytes "$folder/model.safetensors") n_optimizer=$(data_bytes "$folder/optimizer.safetensors")
        ((n_model == size[$dtype] * n && n_optimizer == 2 * size[$dtype] * n)) ||
            fail "$dtype: $n_model and $n_optimizer bytes of $n parameters"
        [[ $(types "$folder/model.safetensors") == "${weights[$dtype]}" ]] || fail "$dtype: $(types "$folder/model.safetensors")"
        [[ $(types "$folder/optimizer.safetensors") == "${moments[$dtype]}" ]] ||
            fail "$dtype: $(types "$folder/optimizer.safetensors")"
    done
done

# The copies that are written in the background take half the memory too.
copies() {
    local without
    pgpt train "${small[@]}" --dtype "$1" --print-program --json --no-save
    without=$(tail -n 1 out | field peak_bytes)
    pgpt train "${small[@]}" --dtype "$1" --print-program --json --save-every 4
    echo $(($(tail -n 1 out | field peak_bytes) - without))
}
(($(copies f32) == 2 * $(copies pure-bf16))) || fail "copies take $(copies f32) bytes in f32, $(copies pure-bf16) in bf16"

# ---- Going on.
begin() { # FROM NAME: a run that has got as far as step 4
    rm -rf "$2"
    cp -r "$1" "$2"
    rm -r "$2"/checkpoints/step-00000008 "$2"/checkpoints/step-00000012
}
for dtype in pure-bf16 pure-f16; do
    begin $dtype again
    pgpt train --resume again
    diff -r $dtype/checkpoints again/checkpoints || fail "$dtype: other bits after going on"
    same_losses $dtype again
    begin $dtype old
    cp -r old/checkpoints kept
    "$WIDEN_CHECKPOINT" old || fail "not widened"
    [[ $(types old/checkpoints/step-00000004/model.safetensors) == 'F32 ' ]] || fail "not widened"
    pgpt train --resume old
    rm -r old/checkpoints/step-00000004
    mv kept/step-00000004 old/checkpoints
    rm -r kept
    diff -r $dtype/checkpoints old/checkpoints || fail "$dtype: other bits after going on from an old checkpoint"
    same_losses $dtype old
done

# In another precision: it goes on from the same numbers, and saves in its own types.
for way in pure-bf16:f32 pure-bf16:pure-f16 pure-f16:bf16 f32:pure-bf16; do
    from=${way%:*} to=${way#*:}
    begin "$from" other
    pgpt train --resume other --dtype "$to"
    grep -q 'going on from step 4' err || fail "$way: $(cat err)"
    [[ $(types "$(model other)") == "${weights[$to]}" ]] || fail "$way: $(types "$(model other)")"
    close_numbers 3e-2 "$(column "$from" loss)" "$(column other loss)"
    begin "$from" wide
    "$WIDEN_CHECKPOINT" wide || fail "not widened"
    pgpt train --resume wide --dtype "$to"
    same_losses other wide
    same_model other wide
done

# ---- For everybody else they are the same model.
printf 'once upon a time there was a little %s\n' cat dog bird fish >text
cp -r pure-bf16 wide-model
"$WIDEN_CHECKPOINT" wide-model || fail "not widened"
for run in pure-bf16 wide-model; do
    pgpt generate $run --tokens 30
    cp out "$run.text"
    pgpt eval $run --data text --json
    tail -n 1 out | field loss >"$run.loss"
    pgpt convert $run $run.hf
    pgpt train --init $run --data builtin --batch 4 --steps 2 --threads 1 --sample-tokens 0 --out $run.begun
done
cmp -s pure-bf16.text wide-model.text || fail "another text: $(cat pure-bf16.text wide-model.text)"
[[ -s pure-bf16.loss ]] || fail "no loss"
cmp -s pure-bf16.loss wide-model.loss || fail "another loss: $(cat pure-bf16.loss wide-model.loss)"
diff -r pure-bf16.hf wide-model.hf || fail "another model for Hugging Face"
same_model pure-bf16.begun wide-model.begun
