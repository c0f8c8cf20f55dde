#!/bin/bash
# On a GPU, --offload leaves the files of a run as they are, byte for byte: optimizer state in pinned memory and in a file,
# updated by the GPU's kernels and the CPU's, in the backward where nothing is clipped; activations; in f32, mixed and pure 16
# bits; clipping that waits, and that does not. Several kinds of run are tried at a time, each in a folder of its own.
#
#   PGPT=... SOURCE_ROOT=$PWD tests/support/in-fresh-folder bash "$PWD/tests/cuda/train_offload.sh"
#
# DEVICE=cpu: the same without a GPU, of what goes to a file.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

device=${DEVICE:-cuda}
options=(--layers 4 --heads 2 --channels 64 --context 64 --batch 8 --steps 12 --sample-tokens 0 --tokenizer char --device "$device"
    --lr 0.01 --eval-every 6 --eval-batches 1 --dropout 0.1 --threads 2)
if ! "$PGPT" train "${TINY[@]}" --device "$device" --steps 1 --out first >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi

# same_files WORDS: such a run, with everything where it is and away; in this folder
same_files() {
    local words=$1 offload bucket file
    [[ $device != cpu ]] || words=${words/--streams 1/}
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" --out plain $words
    for offload in optimizer optimizer:file=. activations optimizer,activations gradients gradients,optimizer weights weights,gradients,optimizer,activations \
        "optimizer --offload-share 0.4" "optimizer --offload-update host"; do
        [[ ! -e $SCRATCH/stop ]] || exit 1
        [[ $device != cpu || $offload == *:file* ]] || continue
        # The host would add up lamb's sums in another order: refused.
        [[ $words != *lamb* || $offload != *:file* && $offload != *host ]] || continue
        bucket=
        [[ $offload != *optimizer* ]] || bucket="--offload-bucket-mb 0.05"
        rm -rf away
        # shellcheck disable=SC2086
        pgpt train "${options[@]}" --out away $words --offload $offload $bucket
        for file in model.safetensors optimizer.safetensors; do
            cmp "plain/checkpoints/step-00000012/$file" "away/checkpoints/step-00000012/$file" ||
                fail "--offload $offload: $file differs"
        done
        same_losses plain away
    done
    touch right
    echo "$words: the same files"
}

# The first that fails stops the others before their next run, and so does the end of this script, whatever ends it: it waits
# for them, so that nothing is left running.
trap 'touch "$SCRATCH/stop"; wait; rm -rf "$SCRATCH"' EXIT
kinds=("--dtype f32" "--dtype bf16" "--dtype f16" "--dtype pure-bf16" "--dtype bf16 --micro-batch 2 --clip-style check --clip 0.3" "--dtype bf16 --clip-style check --clip 0.9"
    "--dtype bf16 --recompute 1" "--dtype bf16 --streams 1" "--dtype bf16 --clip 0" "--dtype bf16 --clip 0 --micro-batch 2"
    "--dtype bf16 --moments 8bit" "--dtype bf16 --optimizer muon" "--dtype f32 --optimizer muon --moments 8bit --clip 0"
    "--dtype bf16 --optimizer lamb" "--dtype f32 --optimizer lamb --moments 8bit")
most=$(nproc)
((most <= 8)) || most=8
for i in "${!kinds[@]}"; do
    ((i < most)) || wait -n || true # its folder tells how it ended
    [[ ! -e $SCRATCH/stop ]] || break
    mkdir "kind-$i"
    (
        trap '[[ -e right ]] || touch "$SCRATCH/stop"' EXIT
        cd "kind-$i" || exit 1
        same_files "${kinds[i]}"
    ) 2>"kind-$i/messages" &
done
wait
for i in "${!kinds[@]}"; do
    [[ -e kind-$i/right || ! -s kind-$i/messages ]] || fail "${kinds[i]}: $(cat "kind-$i/messages")"
done
for i in "${!kinds[@]}"; do
    [[ -e kind-$i/right ]] || fail "${kinds[i]}: it has not ended"
done
