#!/bin/bash
# A model in parts on a GPU that ranks share: the text and the figures of one process, by NCCL (each rank pretends to be a host)
# and through the host; samples of a pipeline's training.
#
#   PGPT=... SOURCE_ROOT=$PWD DEVICE=cpu tests/support/in-fresh-folder bash "$PWD/tests/cuda/generate_parts.sh"   the same without a GPU
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

device=${DEVICE:-cuda} mpirun=${MPIEXEC:-mpirun}
command -v "$mpirun" >/dev/null || skip "there is no MPI"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
small=(train "${TINY[@]}" --device "$device" --layers 5 --heads 5 --channels 40 --context 32 --batch 8 --lr 0.003)
if ! "$PGPT" "${small[@]}" --steps 300 --out run >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi

# on N WAY WORDS...: as N ranks, by NCCL or through the host.
on() {
    local code=0 n=$1 wrapper=()
    [[ $2 == nccl ]] && wrapper=("$SOURCE_ROOT/tests/device/nccl-rank")
    shift 2
    timeout -k 5 200 "$mpirun" -n "$n" "${wrapper[@]}" "$PGPT" "$@" >out 2>err </dev/null || code=$?
    ((code == 0)) || depth=1 fail "exit $code from $n ranks (${wrapper[*]}): pgpt $* -- $(head -c 2000 err)"
}

# same_text "WAYS" "N LAYOUT" WORDS...: what one process says, these ranks say.
same_text() {
    local way ways=$1 layout=$2
    shift 2
    for way in $ways; do
        # shellcheck disable=SC2086 # several words
        on ${layout%% *} "$way" generate run --device "$device" --prompt 'Once upon' "$@" ${layout#* }
        cmp -s out text || depth=1 fail "$layout, $way, $*: $(diff out text | head -n 5)"
    done
}
# Ranks that share a GPU take turns, and a start takes seconds: a long text once, in the layout with most messages; elsewhere
# a short one, which has a prompt, single tokens and the end of the cache.
greedy=(--temperature 0 --tokens 500)
pgpt generate run --device "$device" --prompt 'Once upon' "${greedy[@]}"
cp out text
same_text nccl '4 --tp 2 --pp 2' "${greedy[@]}"
greedy=(--temperature 0 --tokens 40)
pgpt generate run --device "$device" --prompt 'Once upon' "${greedy[@]}"
cp out text
for layout in '2 --pp 2' '3 --pp 3'; do same_text nccl "$layout" "${greedy[@]}"; done
for layout in '2 --tp 2' '2 --dp 2'; do same_text host "$layout" "${greedy[@]}"; done
greedy=(--temperature 0 --tokens 40 --dtype bf16 --repetition-penalty 1.2)
pgpt generate run --device "$device" --prompt 'Once upon' "${greedy[@]}"
cp out text
same_text nccl '2 --pp 2' "${greedy[@]}"

pgpt eval run --device "$device" --data builtin --tokens-limit 3000 --json
loss=$(tail -n 1 out | field loss)
on 4 nccl eval run --device "$device" --data builtin --tokens-limit 3000 --json --dp 2 --pp 2
close_numbers 1e-5 "$loss" "$(tail -n 1 out | field loss)"

# What a run says at its end is what its checkpoint says.
while read -r way n words; do
    rm -rf sampled
    # shellcheck disable=SC2086
    on "$n" "$way" "${small[@]}" --layers 4 --heads 4 --micro-batch 1 --steps 10 --sample-tokens 40 --out sampled $words
    cp out text
    pgpt generate sampled --device "$device" --tokens 40
    cmp -s out text || fail "the sample of $n ranks, $way, $words: $(diff out text)"
done <<END
nccl 4 --pp 2 --tp 2 --schedule interleaved
nccl 2 --pp 2 --schedule pipedream
END
