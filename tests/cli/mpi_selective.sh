#!/bin/bash
# --recompute selective on several ranks: in every layout the bits of the same layout without it, in less memory.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

small=(train "${TINY[@]}" --layers 5 --heads 4 --channels 32 --context 21 --batch 4 --steps 4 --lr 0.003 --dropout 0.1)
experts="--experts 4 --experts-per-token 2 --expert-every 2"

# What backwards wait for, in frames or not.
held() {
    awk '$1 == "activations" || $1 == "frames" { n += $2 } /^memory of the run/ { exit } END { print n }' out
}

check() {
    local name=$1 n=$2 words plain
    shift 2
    for recompute in none selective; do
        ranks "$n" "${small[@]}" "$@" --recompute $recompute --out "$name-$recompute"
        same_losses "$name-none" "$name-$recompute"
    done
    (cd "$name-none/checkpoints" && find . -name '*.safetensors') | sort >files
    [[ -s files ]] || fail "$name: no files of a model"
    while read -r file; do
        cmp "$name-none/checkpoints/$file" "$name-selective/checkpoints/$file" || fail "$name: $file differs"
    done <files
    ranks "$n" "${small[@]}" "$@" --print-program
    plain=$(held)
    ranks "$n" "${small[@]}" "$@" --recompute selective --print-program
    (($(held) < plain)) || fail "$name: $(held) bytes of activations, $plain without"
}

while read -r name n words; do
    # shellcheck disable=SC2086 # several words
    at_once check "$name" "$n" $words
done <<END
tensor 2 --tp 2
whole 2 --tp 2 --no-sequence-parallel
uneven 3 --tp 3 --dtype bf16
ring 2 --cp 2
shards 3 --zero 3
stages 2 --pp 2 --schedule 1f1b --micro-batch 1
split 2 --pp 2 --schedule zb-v --micro-batch 1
experts 2 --ep 2 $experts --zero 3
both 4 --tp 2 --pp 2 --zero 1 --micro-batch 1
END
all_done

# Entered by gathers, layers gather again what they entered with, and their norms are computed again before that.
ranks 2 "${small[@]}" --tp 2 --recompute selective --print-program
(($(grep -c 'all_gather_start.*\[recomputed\]' out) == 10)) || fail "not twice a block: $(grep recomputed out)"
# Weights that ZeRO-3 has collected for a block's backward are there for what is repeated.
ranks 2 "${small[@]}" --zero 3 --print-program
plain=$(grep -c ' all_gather_start ' out)
ranks 2 "${small[@]}" --zero 3 --recompute selective --print-program
(($(grep -c ' all_gather_start ' out) == plain)) || fail "weights are gathered more often: $(grep -c ' all_gather_start ' out), not $plain"
