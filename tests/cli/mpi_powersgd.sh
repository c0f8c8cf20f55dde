#!/bin/bash
# Gradients in low rank: layouts train as a simulation of all ranks does, checkpoints bring back every bit and go on with
# other numbers of ranks, what is sent is what was counted, and what cannot be is refused.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --data book.txt --lr 0.003 --dropout 0.1 --eval-every 0
    --threads 1)

# Against the simulation: whole models, slices, accumulation, parts, odd numbers of heads that ranks share.
few=(--threads 1 --steps 4 --layers 2 --channels 24 --context 9)
only='dp 4, zero 0, ring, 1 micro-batch|dp 4, zero 2, ring, 2 micro-batches|dp 2, tp 2, zero 1, ring, 1 micro-batch'
ranks 4 verify "${few[@]}" --compress powersgd:2 --sample 10 --only "$only|pp 2, dp 2, zero 1, ring, 1f1b"
grep -q ' 0 differ' out || fail "powersgd:2: $(cat out)"
if is_long; then
    ranks 4 verify --threads 1 --compress powersgd:3 --steps 8
    grep -q ' 0 differ' out || fail "powersgd:3: $(cat out)"
fi

# A run that is resumed on as many ranks has the bits of one that was not interrupted; on others it goes on.
whole=("${small[@]}" --steps 12 --save-every 4 --keep 10 --compress powersgd:2 --zero 1)
ranks 4 "${whole[@]}" --out whole
begin() {
    cp -r whole "$1"
    rm -r "$1"/checkpoints/step-00000008 "$1"/checkpoints/step-00000012
}
begin same
ranks 4 train --resume same
same_losses whole same
diff -r whole/checkpoints same/checkpoints || fail "resumed in the same layout, it has other checkpoints"
ls whole/checkpoints/step-00000012/basis-* >/dev/null || fail "the columns that matrices are sent by are not saved"
for n in $(is_long && echo 3) 2; do
    begin "ranks$n"
    ranks "$n" train --resume "ranks$n" --zero 0
    close_numbers 0.05 "$(column whole loss)" "$(column "ranks$n" loss)"
done
begin alone
pgpt train --resume alone
grep -q 'goes on as exact' err || fail "one process says nothing: $(cat err)"
# Parts of a model, 16 bits with a scaled loss, another optimizer.
runs=('--dtype f16 --zero 2' '--tp 2 --compress-warmup 3 --optimizer sgd --lr 0.1')
is_long && runs+=('--dtype bf16 --pp 2 --micro-batch 1' '--cp 2 --optimizer lamb' '--experts 3 --micro-batch 1')
for more in "${runs[@]}"; do
    name=$(tr -c 'a-z0-9\n' _ <<<"$more")
    read -ra words <<<"$more"
    ranks 4 "${small[@]}" --steps 8 --save-every 4 --keep 4 --compress powersgd:2 "${words[@]}" --out "$name"
    cp -r "$name" "$name-same"
    rm -r "$name-same"/checkpoints/step-00000008
    ranks 4 train --resume "$name-same"
    diff -r "$name"/checkpoints "$name-same"/checkpoints || fail "$more: resumed, it has other checkpoints"
done

# As predicted: of two layers of C channels the matrices (3C,C), (C,C), (4C,C), (C,4C) in rank 4, of the tables (V,C)
# and (T,C) too, and vectors as they are, with their padding; each number there and back in a ring of 4 ranks.
pgpt train --model nano --layers 2 --channels 64 --context 32 --data book.txt --dp 4 --print-mesh --compress powersgd:4
n=$(awk '$1 == "dp" && $2 == "all-reduce" {print $(NF - 2)}' out)
vocabulary=$(pgpt train --model nano --layers 2 --channels 64 --context 32 --data book.txt --print-program >/dev/null
    sed -n 's/.*vocabulary \([0-9]*\).*/\1/p' out | head -n 1)
[[ $n -gt 0 ]] || fail "nothing is counted: $(cat out) $vocabulary"
exact=$(pgpt train --model nano --dp 4 --print-mesh; awk '$1 == "dp" && !/scalar/ {n += $(NF - 2)} END {print n}' out)
lowrank=$(pgpt train --model nano --dp 4 --print-mesh --compress powersgd:4
    awk '$1 == "dp" && !/scalar/ {n += $(NF - 2)} END {print n}' out)
((lowrank * 8 < exact)) || fail "powersgd:4 sends $lowrank bytes, exact sums $exact"

ranks_refused '/--compress powersgd:0: the rank/' 2 "${small[@]}" --compress powersgd:0
ranks_refused '/--compress powersgd:2.5: the rank/' 2 "${small[@]}" --compress powersgd:2.5
ranks_refused '/--compress powersgd is none of the ways/' 2 "${small[@]}" --compress powersgd
ranks_refused '/--compress powersgd:2 needs whole weights/' 2 "${small[@]}" --compress powersgd:2 --zero 3
