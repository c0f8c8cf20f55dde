#!/bin/bash
# pgpt plan says of every rank what pgpt train then allocates there, to the byte. LONG=1 tries more layouts; bench/plan a hundred.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..300}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
model=(--layers 5 --heads 5 --channels 40 --context 32 --tokenizer word --data book.txt --threads 1 --sample-tokens 8)

# same_bytes N WORDS...: of every rank.
same_bytes() {
    local n=$1 said
    shift
    pgpt plan "${model[@]}" --machine cpu --gpus "$n" "$@" --json
    said=$(tail -n 1 out | grep -o '"rank":[0-9]*,\|"peak_bytes":[0-9]*,"flops"' | tr -d '\n' |
        sed 's/"rank":/\n/g; s/,"peak_bytes":/ /g; s/,"flops"//g' | sort -n | awk 'NF { printf "%s%s", s, $2; s = "," }')
    ranks "$n" train "${model[@]}" --steps 1 --no-save --eval-every 0 --out "run$RANDOM" "$@" --json
    grep -q "\"rank_peak_bytes\":\[$said\]" out ||
        depth=1 fail "$n ranks, $*: said $said, allocated $(grep -o '"rank_peak_bytes":[^]]*]' out)"
}

while read -r n words; do
    [[ -n $n ]] || continue
    # shellcheck disable=SC2086 # several words
    at_once same_bytes "$n" $words
done <<END
1 --batch 7 --recompute 1
3 --batch 7 --zero 3 --optimizer sgd
4 --pp 2 --tp 2 --batch 8 --micro-batch 2 --dtype bf16
$(! is_long || cat <<LONGER
4 --pp 2 --batch 8 --zero 1 --schedule interleaved --chunks 2 --micro-batch 1
5 --tp 5 --batch 4 --no-sequence-parallel
4 --cp 2 --batch 6 --zero 2
4 --ep 2 --experts 3 --batch 8
6 --pp 3 --batch 12 --micro-batch 1 --schedule zb-h1 --clip 0
2 --batch 4 --offload optimizer:file=.
LONGER
)
END
all_done

# A line that --tune prints runs, and allocates what was said of it; bench/plan --only lines does twenty.
tuned_line() {
    local n=$1 line
    shift
    pgpt plan "${model[@]}" --machine cpu --gpus "$n" --tune "$@" --json
    line=$(tail -n 1 out | grep -o '"best":.*' | grep -o '"train":"[^"]*"' | sed -n '2 { s/"$//; s/.*pgpt train //p }')
    [[ -n $line ]] || fail "no second line for $n ranks"
    local model=() # the line has it
    # shellcheck disable=SC2086 # several words
    same_bytes "$n" $line
}
tuned_line 3 --batch 12
! is_long || tuned_line 4 --batch 8 --pp 2
! is_long || tuned_line 8 --batch 16 --zero 1

# train takes the tuner's layout, and keeps what is given.
ranks 2 train "${model[@]}" --batch 4 --steps 1 --no-save --layout auto --tp 2 --out auto
grep -Eq -e '--layout auto: --tp 2 .*--micro-batch [0-9]+' err || fail "no layout was chosen: $(cat err)"
ranks_refused '/--layout auto: no layout of nano on 2 devices can be with what is given; leave out sizes of axes, or start another number of ranks \(mpirun -n\)$/' \
    2 train "${model[@]}" --layout auto --tp 3
# Also what its quick search would not have tried.
for given in '--zero 2' '--pp 2 --schedule gpipe' '--pp 2 --schedule zb-v'; do
    # shellcheck disable=SC2086 # several words
    ranks 2 train "${model[@]}" --batch 4 --steps 1 --no-save --layout auto $given --out "auto${given##* }"
    grep -q -e "--layout auto: .*${given##* }" err || fail "$given was not kept: $(cat err)"
done
refused '/--layout means something only with several ranks/' train "${model[@]}" --layout auto
