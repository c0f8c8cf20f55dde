#!/bin/bash
# Context parallelism: sequences divided among ranks give the losses, the texts and the checkpoints of one process, by
# the ring and by all-to-all, alone and with the other ways to divide a model.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
small=(train "${TINY[@]}" --layers 2 --heads 4 --channels 32 --batch 4 --context 21 --tokenizer word --data book.txt
    --lr 0.003 --lr-schedule constant --beta2 0.95 --epsilon 1e-3 --dropout 0.1 --eval-every 10 --eval-batches 2
    --sample-tokens 12)

# 21 positions divide by nothing here: ranks have 9 to 12, 6 to 8, 4 to 6 of them.
pgpt "${small[@]}" --steps 20 --out one
cp out text
while read -r name n words; do
    # shellcheck disable=SC2086 # several words
    ranks "$n" "${small[@]}" --steps 20 --out "$name" $words
    for key in loss val_loss grad_norm; do
        close_numbers 1e-4 "$(column one $key)" "$(column "$name" $key)"
    done
    [[ $name == stages4 ]] || cmp -s out text || fail "$name: another text: $(diff out text)"
done <<END
ring2 2 --cp 2
ring3 3 --cp 3 --recompute 1 --zero 1
heads2 2 --cp 2 --cp-style all-to-all --recompute 1
mixed4 4 --cp 2 --tp 2 --micro-batch 2
stages4 4 --cp 2 --pp 2 --micro-batch 1 --schedule zb-h1
shards4 4 --cp 2 --cp-style all-to-all --zero 3
END

# A checkpoint goes on in any layout, and its curve is one.
pgpt "${small[@]}" --steps 30 --out whole
while read -r from name n words; do
    cp -r "$from" "$name"
    # shellcheck disable=SC2086
    ranks "$n" train --resume "$name" --steps 30 $words
    close_numbers 1e-4 "$(column whole loss)" "$(column "$name" loss)"
done <<END
ring2 ring2-on-1 1 --cp 1
one one-on-4 4 --cp 2 --zero 3
shards4 shards4-on-3 3 --cp 3 --cp-style ring --zero 0
ring3 ring3-on-2 2 --cp 1 --tp 2 --zero 0
END

# The program shows it: keys and values set out before a part is computed and are waited for behind it; gradients follow.
ranks 2 "${small[@]}" --cp 2 --print-program
order=$(awk '$2 == "forward" && $3 ~ /^(shift_start|attention_part|wait)$/ { print $3 }' out | head -n 4 | tr '\n' ' ')
[[ $order == "shift_start attention_part wait attention_part " ]] || fail "the ring is not overlapped: $order"
[[ $(grep -c ' shift_start ' out) == 4 ]] || fail "two blocks shift forward and backward once: $(grep shift out)"
ranks 2 "${small[@]}" --cp 2 --cp-style all-to-all --print-program
[[ $(grep -c ' all_to_all_start ' out) == 8 ]] || fail "two blocks exchange twice forward and twice backward: $(grep all_to out)"
