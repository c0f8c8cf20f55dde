#!/bin/bash
# Training on several ranks gives the losses of one, in every layout.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
# 8 sequences a step: three ranks have unequal shares.
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --tokenizer word --data book.txt --lr 0.003 --lr-schedule linear
    --beta2 0.95)

# The same run on 1, 2, 3 and 4 ranks, in layouts that share more and more: losses, evaluations, and what it then says.
recipe=("${small[@]}" --steps 50 --eval-every 20 --eval-batches 3 --sample-tokens 12)
pgpt "${recipe[@]}" --out one
cp out text
ranks 1 "${recipe[@]}" --zero 3 --out ranks-1
same_losses one ranks-1
same_model one ranks-1
for n in 2 3 4; do
    ranks $n "${recipe[@]}" --zero $((n - 1)) --out ranks-$n
    for key in loss val_loss grad_norm; do
        close_numbers 1e-4 "$(column one $key)" "$(column ranks-$n $key)"
    done
    (($(column ranks-$n loss | wc -l) == 50)) || fail "steps of $n ranks: $(column ranks-$n loss | wc -l)"
    cmp -s out text || fail "$n ranks say something else: $(diff out text)"
done
awk "BEGIN { exit !($(column one loss | tail -n 1) < 0.8 * $(column one loss | head -n 1)) }" || fail "nothing was learned"

# What is written down: the ranks, and what communication took; nothing of it by one process.
for n in 2 3 4; do
    [[ $(head -n 1 ranks-$n/metrics.jsonl | field ranks) == "$n" ]] || fail "header: $(head -n 1 ranks-$n/metrics.jsonl)"
    [[ $(head -n 1 ranks-$n/metrics.jsonl | field zero) == $((n - 1)) ]] || fail "$(head -n 1 ranks-$n/metrics.jsonl)"
    for key in comm_ms comm_wait_ms; do
        [[ $(column ranks-$n $key | grep -cE '^[0-9.e+-]+$') == 50 ]] || fail "$key of $n ranks: $(column ranks-$n $key)"
    done
done
! grep -q comm_ms one/metrics.jsonl ranks-1/metrics.jsonl || fail "one process writes of communication"
grep -q 'ZeRO 3: 16Ψ/4' err || fail "no formula: $(cat err)"

# Every stage with dropout, micro-batches, recomputation, small buckets and without overlap.
drops=("${small[@]}" --steps 20 --dropout 0.1)
pgpt "${drops[@]}" --out drops
ways=('--micro-batch 1' '--micro-batch 2 --recompute 1' '--recompute 2 --no-overlap --bucket-mb 0'
    '--micro-batch 1 --bucket-mb 0.01 --clip 1')
for zero in 0 1 2 3; do
    read -ra way <<<"${ways[zero]}"
    ranks 3 "${drops[@]}" --zero $zero "${way[@]}" --out drops-$zero
    close_numbers 1e-4 "$(column drops loss)" "$(column drops-$zero loss)"
done

# Every algorithm; the same one twice gives the same bits. With ZeRO its halves are what counts.
plain=("${small[@]}" --steps 10)
pgpt "${plain[@]}" --out plain
for way in naive server tree ring halving library; do
    ranks 3 "${plain[@]}" --allreduce $way --out plain-$way
    close_numbers 1e-4 "$(column plain loss)" "$(column plain-$way loss)"
    grep -q "all-reduce by $way" err || fail "it is not said that $way is used: $(cat err)"
done
ranks 3 "${plain[@]}" --out again
same_losses plain-ring again
diff -r plain-ring/checkpoints again/checkpoints || fail "the same layout gives other bits"
ranks 2 "${plain[@]}" --allreduce library --zero 2 --out plain-halves
close_numbers 1e-4 "$(column plain loss)" "$(column plain-halves loss)"

# The mesh.
ranks 4 train --print-mesh
cat >want <<END
mesh of 4 ranks: pp 1, dp 4, cp 1, ep 1, tp 1
  rank    pp    dp    cp    ep    tp  host
     0     0     0     0     0     0  H
     1     0     1     0     0     0  H
     2     0     2     0     0     0  H
     3     0     3     0     0     0  H
dp groups (data: sequences): {0,1,2,3}
END
sed "s/  $(uname -n)\$/  H/" out | head -n 7 | diff want - || fail "the mesh"
grep -q '^dp  *all-reduce  *1  *24 ' out || fail "what a step sends: $(cat out)"
[[ ! -s err ]] || fail "beside the mesh: $(cat err)"

# The program: what is started and waited for, once a step or once a micro-batch.
count() { grep -Ec -e "^ *[0-9]+ +$1" out || true; }
for zero in 0 1 2 3; do
    ranks 2 "${small[@]}" --layers 4 --zero $zero --micro-batch 2 --bucket-mb 0.01 --print-program --json
    reduces=$(count '[a-z]+ +all_reduce_start') scatters=$(count '[a-z]+ +reduce_scatter_start')
    gathers=$(count '[a-z]+ +all_gather_start') waits=$(count '[a-z]+ +wait')
    ((waits == reduces + scatters + gathers)) || fail "ZeRO $zero: $waits waits for $reduces, $scatters and $gathers"
    ((zero == 0 ? reduces > 2 && scatters + gathers == 0 : reduces == 0 && scatters > 2 && gathers > 2)) ||
        fail "ZeRO $zero: $reduces all-reduces, $scatters reduce-scatters, $gathers all-gathers"
    once=$(count 'backward +(all_reduce|reduce_scatter)_start .*\[last micro-batch\]')
    ((zero < 2 ? once == reduces + scatters : once == 0)) || fail "ZeRO $zero: $once sums in the last micro-batch only"
    ((zero < 3 || $(count 'forward +all_gather_start') > 2 && $(count 'backward +all_gather_start') > 0)) ||
        fail "ZeRO 3 does not collect weights where they are used: $(cat out)"
    line=$(tail -n 1 out)
    awk "BEGIN { r = $(field state_bytes <<<"$line") / $(field state_formula_bytes <<<"$line"); exit !(r >= 1 && r < 1.1) }" ||
        fail "ZeRO $zero: memory is not as the formula says: $line"
done
[[ ! -e run && -z $(find . -name 'runs') ]] || fail "what only prints has left a run: $(ls)"
