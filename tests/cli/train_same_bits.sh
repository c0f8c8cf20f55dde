#!/bin/bash
# The same seed gives the same bits; ways of computing the same thing give the same losses.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

common=("${TINY[@]}" --layers 2 --batch 6 --steps 8 --lr 0.01)
for mode in plain dropout; do
    options=("${common[@]}")
    [[ $mode == plain ]] || options+=(--dropout 0.2)
    pgpt train "${options[@]}" --out $mode-1
    pgpt train "${options[@]}" --out $mode-2
    same_losses $mode-1 $mode-2
    same_model $mode-1 $mode-2

    pgpt train "${options[@]}" --seed 2 --out $mode-seed
    [[ $(column $mode-seed loss) != "$(column $mode-1 loss)" ]] || fail "another seed gives the same losses"

    pgpt train "${options[@]}" --threads 2 --out $mode-threads
    close_numbers 1e-5 "$(column $mode-1 loss)" "$(column $mode-threads loss)"
    pgpt train "${options[@]}" --threads 2 --out $mode-threads-again
    same_model $mode-threads $mode-threads-again

    for micro in 1 2 3; do
        pgpt train "${options[@]}" --micro-batch $micro --out $mode-micro-$micro
        close_numbers 1e-5 "$(column $mode-1 loss)" "$(column $mode-micro-$micro loss)"
    done
    for recompute in 1 2 7; do
        pgpt train "${options[@]}" --recompute $recompute --out $mode-recompute-$recompute
        close_numbers 1e-6 "$(column $mode-1 loss)" "$(column $mode-recompute-$recompute loss)"
    done
    pgpt train "${options[@]}" --loss-chunk 10 --out $mode-chunk
    close_numbers 1e-5 "$(column $mode-1 loss)" "$(column $mode-chunk loss)"
    pgpt train "${options[@]}" --clip 0 --out $mode-late
    pgpt train "${options[@]}" --clip 0 --eager-update --out $mode-eager
    close_numbers 1e-6 "$(column $mode-late loss)" "$(column $mode-eager loss)"
done
[[ $(column plain-1 loss) != "$(column dropout-1 loss)" ]] || fail "dropout changes nothing"

# It learns.
first=$(column plain-1 loss | head -n 1) last=$(column plain-1 loss | tail -n 1)
awk "BEGIN { exit !($last < $first) }" || fail "the loss went from $first to $last"
