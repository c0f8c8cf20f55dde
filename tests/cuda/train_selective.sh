#!/bin/bash
# On a GPU, --recompute selective leaves the files of a run as they are, byte for byte: in f32, and in 16 bits where the
# activation is an operation of its own (SwiGLU). GELU behind a GEMM rounds differently there, and alike every time.
#
#   PGPT=... SOURCE_ROOT=$PWD tests/support/in-fresh-folder bash "$PWD/tests/cuda/train_selective.sh"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=(--layers 4 --heads 4 --channels 64 --context 64 --batch 8 --steps 20 --sample-tokens 0 --tokenizer char --device cuda
    --lr 0.01 --eval-every 10 --eval-batches 1)
llama="--norm rmsnorm --mlp swiglu --position rotary --kv-heads 2 --no-bias --no-tied"
experts="--experts 4 --experts-per-token 2 --expert-every 2"
if ! "$PGPT" train "${TINY[@]}" --device cuda --steps 1 --out first >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi

while read -r words; do
    rm -rf plain again
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" $words --out plain
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" $words --recompute selective --out again
    same_losses plain again
    same_model plain again
done <<END
--dtype f32
--dtype f32 --dropout 0.1 --micro-batch 2
--dtype f32 $experts
--dtype bf16 $llama
--dtype bf16 $llama --dropout 0.1
--dtype f16 $llama
--dtype pure-bf16 $llama
--dtype bf16 $llama $experts
END

for words in "--dtype bf16" "--dtype f16 --dropout 0.1" "--dtype bf16 $experts" "--dtype bf16 --streams 1"; do
    rm -rf plain again once
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" $words --out plain
    for run in again once; do
        # shellcheck disable=SC2086
        pgpt train "${options[@]}" $words --recompute selective --out $run
    done
    same_model again once
    # Steps that have begun to differ drift apart: the first ones are held close, and where the run ends.
    close_numbers 0.02 "$(column plain loss | head -n 6)" "$(column again loss | head -n 6)"
    close_numbers 0.03 "$(column plain val_loss | tail -n 1)" "$(column again val_loss | tail -n 1)"
done
