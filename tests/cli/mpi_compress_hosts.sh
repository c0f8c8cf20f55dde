#!/bin/bash
# Compressed sums between hosts: exact within them. Layouts train as a simulation does, a run goes on to the bit, on
# other hosts too, fewer bytes cross hosts, and what cannot be is refused. Hosts are made of ranks of this one.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --data book.txt --lr 0.003 --eval-every 0 --threads 1)
hosts=(--compress-across hosts --ranks-per-host 2)

few=(--threads 1 --steps 4 --layers 2 --channels 24 --context 9)
for way in 1bit-adam int8 powersgd:2 $(is_long && echo 0/1-adam f16 topk:0.1); do
    ranks 4 verify "${few[@]}" --compress "$way" "${hosts[@]}" --sample 3 \
        --only 'dp 4, zero 0, ring, 1 micro-batch|dp 4, zero 2, ring, 2 micro-batches|dp 4, zero 1, ring'
    grep -q ' 0 differ' out || fail "$way: $(cat out)"
done

# To the bit on the same hosts; as many hosts or ranks need not be there.
for way in 1bit-adam powersgd:2; do
    run=${way%:*}
    ranks 4 "${small[@]}" --steps 12 --save-every 4 --keep 10 --compress "$way" --compress-warmup 2 --zero 1 \
        "${hosts[@]}" --out "$run"
    for more in same all; do
        cp -r "$run" "$run-$more"
        rm -r "$run-$more"/checkpoints/step-00000008 "$run-$more"/checkpoints/step-00000012
    done
    ranks 4 train --resume "$run-same"
    diff -r "$run"/checkpoints "$run-same"/checkpoints || fail "$way: resumed, it has other checkpoints"
    ranks 2 train --resume "$run-all" --compress-across all --zero 0
    close_numbers 0.05 "$(column "$run" loss)" "$(column "$run-all" loss)"
done
# On one host everything is exact.
cp -r 1bit-adam one
rm -r one/checkpoints/step-00000012
ranks 2 train --resume one
grep -q 'on one it goes on as exact' err || fail "one host says nothing: $(cat err)"

# far WORDS...: bytes of a step between hosts.
far() {
    pgpt train --model nano --dp 8 --ranks-per-host 4 --print-mesh "$@"
    awk '$1 == "dp" && !/scalar/ {n += $NF} END {print n}' out
}
# Of two hosts each sends its words to the other once, there and back: as two ranks alone would.
pgpt train --model nano --dp 2 --ranks-per-host 1 --print-mesh --compress 1bit-adam
two=$(awk '$1 == "dp" && !/scalar/ {n += $NF} END {print n}' out)
((two == $(far --compress 1bit-adam --compress-across hosts))) || fail "1bit-adam sends $two bytes between two, and $(cat out)"
pgpt train --model nano --dp 2 --ranks-per-host 1 --print-mesh --compress powersgd:4
two=$(awk '$1 == "dp" && !/scalar/ {n += $NF} END {print n}' out)
((two == $(far --compress powersgd:4 --compress-across hosts))) || fail "powersgd:4 sends $two bytes between two, and $(cat out)"
(($(far --compress int8 --compress-across hosts) * 2 < $(far --compress int8))) || fail "int8 sends no less"

refused '/--ranks-per-host/' train --model nano --dp 4 --print-mesh --compress int8 --compress-across hosts
refused '/all ranks that share a batch with rank 0 are on one/' train --model nano --dp 4 --print-mesh --compress int8 \
    --compress-across hosts --ranks-per-host 4
refused '/as many ranks that share a batch on every host/' train --model nano --dp 5 --print-mesh --compress int8 \
    --compress-across hosts --ranks-per-host 3
refused '/--compress-across.*--compress/' train --model nano --dp 4 --print-mesh --compress-across hosts --ranks-per-host 2
ranks_refused '/--compress-across hosts is exact within a host/' 2 "${small[@]}" --compress int8 --compress-across hosts
