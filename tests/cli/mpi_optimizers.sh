#!/bin/bash
# Optimizers that go by tensors, in several layouts: they train as one process does, a run that goes on has the bits of one that
# was never stopped, and any other layout goes on from its checkpoints.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --eval-every 0)
optimizers=(lamb)
rate() {
    [[ $1 == lamb ]] && echo 0.03 || echo 0.003
}

sample=16
! is_long || sample=0
for optimizer in "${optimizers[@]}"; do
    ranks 4 verify --optimizer "$optimizer" --threads 1 --steps 4 --sample $sample
    grep -q ' 0 differ' out || fail "$optimizer: $(cat out)"
    ranks 4 verify --all --optimizer "$optimizer" --threads 1 --steps 3 --sample $((3 * sample))
    grep -q ' 0 differ' out || fail "$optimizer: $(cat out)"
    ranks 4 verify --optimizer "$optimizer" --threads 1 --steps 3 --sample 8 --dtype bf16
    grep -q ' 0 differ' out || fail "$optimizer in bf16: $(cat out)"

    # Saved by ZeRO and by tp.
    for way in '--zero 2' '--tp 2' '--zero 3 --dtype pure-bf16'; do
        rm -rf whole same other
        # shellcheck disable=SC2086 # words
        ranks 2 "${small[@]}" --optimizer "$optimizer" --lr "$(rate "$optimizer")" --steps 6 --save-every 3 --keep 3 $way --out whole
        cp -r whole same
        rm -r same/checkpoints/step-00000006
        cp -r same other
        ranks 2 train --resume same
        same_losses whole same
        diff -r whole/checkpoints same/checkpoints || fail "$optimizer, $way: other bits after going on"
        [[ $way != '--zero 2' ]] || ranks 2 train --resume other --zero 0 --tp 2
        [[ $way != '--tp 2' ]] || pgpt train --resume other --tp 1
        [[ $way == *pure* ]] || close_numbers 1e-5 "$(column whole loss)" "$(column other loss)"
    done
done

# One process: an update behind every gradient has the bits of one behind them all, and accumulation its sum.
for optimizer in "${optimizers[@]}"; do
    one=("${small[@]}" --optimizer "$optimizer" --lr "$(rate "$optimizer")" --steps 4 --clip 0)
    rm -rf late eager parts
    pgpt "${one[@]}" --out late
    pgpt "${one[@]}" --eager-update --out eager
    same_losses late eager
    same_model late eager
    pgpt "${one[@]}" --micro-batch 2 --out parts
    close_numbers 1e-5 "$(column late loss)" "$(column parts loss)"
done

refused '/lamb-max-ratio/' train "${TINY[@]}" --lamb-max-ratio 3
