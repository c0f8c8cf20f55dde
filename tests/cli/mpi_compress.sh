#!/bin/bash
# Compressed sums: layouts train as a simulation of all ranks does, checkpoints bring back every bit and go on with other
# numbers of ranks, what is sent is what was counted, and what cannot be is refused.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --data book.txt --lr 0.003 --dropout 0.1 --eval-every 0
    --threads 1)

# Against the simulation.
few=(--threads 1 --steps 4 --layers 2 --channels 24 --context 9)
only='dp 4, zero 0, ring, 1 micro-batch|dp 4, zero 2, ring, 2 micro-batches|dp 2, tp 2, zero 1, ring, 1 micro-batch'
ranks 4 verify "${few[@]}" --compress 1bit-adam --sample 8 --only "$only|pp 2, dp 2, zero 1, ring, 1f1b"
grep -q ' 0 differ' out || fail "1bit-adam: $(cat out)"
# The variance is looked at again in step 10 (of 12, 3 of them the warm-up's).
ranks 4 verify "${few[@]}" --steps 12 --compress 0/1-adam --sample 3 --only "$only"
grep -q ' 0 differ' out || fail "0/1-adam: $(cat out)"
for way in int8 topk:0.1 $(is_long && echo f16); do
    ranks 4 verify "${few[@]}" --compress "$way" --sample 3 --only "$only"
    grep -q ' 0 differ' out || fail "$way: $(cat out)"
done
ranks 4 verify "${few[@]}" --compress 1bit-lamb --optimizer lamb --steps 8 --sample 8 --only "$only|pp 2, dp 2, zero 1, ring, 1f1b"
grep -q ' 0 differ' out || fail "1bit-lamb: $(cat out)"
ranks 3 verify "${few[@]}" --compress 1bit-lamb --optimizer lamb --experts 3 --sample 2
grep -q ' 0 differ' out || fail "1bit-lamb with experts: $(cat out)"
ranks 3 verify "${few[@]}" --compress int8 --experts 3 --router balance-free --bias-rate 0.1 --sample 2 --only 'dp 3'
grep -q ' 0 differ' out || fail "int8 with biases that move: $(cat out)"
is_long && ranks 4 verify --threads 1 --compress 1bit-lamb --optimizer lamb --steps 8
is_long && for way in 1bit-adam int8 topk:0.1; do ranks 4 verify --threads 1 --compress "$way" --steps 8; done

# A run that is resumed on as many ranks has the bits of one that was not interrupted; on others it goes on.
whole=("${small[@]}" --steps 24 --save-every 8 --keep 10 --compress 1bit-adam --compress-warmup 6 --zero 2)
ranks 4 "${whole[@]}" --out whole
begin() {
    cp -r whole "$1"
    rm -r "$1"/checkpoints/step-00000016 "$1"/checkpoints/step-00000024
}
begin same
ranks 4 train --resume same
same_losses whole same
diff -r whole/checkpoints same/checkpoints || fail "resumed in the same layout, it has other checkpoints"
for n in $(is_long && echo 3) 2; do
    begin "ranks$n"
    ranks "$n" train --resume "ranks$n" --zero $((n - 2))
    close_numbers 0.02 "$(column whole loss)" "$(column "ranks$n" loss)"
done
begin alone
pgpt train --resume alone
grep -q 'goes on as exact' err || fail "one process says nothing: $(cat err)"
close_numbers 0.15 "$(column whole loss)" "$(column alone loss)" # with a variance that is no longer frozen
# Alone, the variance goes on from the 6 updates that it has had, and is corrected for the bias of so many: by that of 40 the
# first steps would be twice as large, and the next loss a third. Several ranks freeze it again where it is then.
ranks 4 "${small[@]}" --lr 0.01 --lr-schedule constant --warmup 0 --beta2 0.999 --steps 48 --save-every 40 --keep 9 --dropout 0 \
    --compress 1bit-adam --compress-warmup 6 --out frozen
cp -r frozen thawed
rm -r thawed/checkpoints/step-00000048
pgpt train --resume thawed
close_numbers 0.15 "$(column frozen loss | sed -n 41,46p)" "$(column thawed loss | sed -n 41,46p)"
grep -q '"frozen_steps": *34\b' thawed/checkpoints/step-00000048/manifest.json || fail "does not hand on what the variance has missed"
ranks 2 train --resume thawed --steps 50
grep -q '"variance_updates": *14\b' thawed/checkpoints/step-00000050/manifest.json || fail "the variance has had other updates"
# A run that ends before it compresses says so.
ranks 2 "${small[@]}" --steps 3 --compress 1bit-adam --compress-warmup 3 --out short
grep -q 'the first 3 steps are exact .* all of the 3; nothing is compressed' err || fail "not said: $(cat err)"
# Gradients, mixed numbers, parts of a model.
lamb='--optimizer lamb --lr 0.03 --compress 1bit-lamb --compress-warmup 3'
runs=("$lamb --zero 2 --dtype f16" "$lamb --tp 2" '--compress topk:0.1 --zero 1 --pp 2 --micro-batch 1' '--compress 1bit-adam --compress-warmup 3 --dtype f16 --zero 1')
is_long && runs+=('--compress int8' '--compress 1bit-adam --compress-warmup 3 --dtype bf16 --tp 2' '--compress f16 --cp 2')
for more in "${runs[@]}"; do
    name=$(tr -c 'a-z0-9\n' _ <<<"$more")
    read -ra words <<<"$more"
    ranks 4 "${small[@]}" --steps 8 --save-every 4 --keep 4 "${words[@]}" --out "$name"
    cp -r "$name" "$name-same"
    rm -r "$name-same"/checkpoints/step-00000008
    ranks 4 train --resume "$name-same"
    diff -r "$name"/checkpoints "$name-same"/checkpoints || fail "$more: resumed, it has other checkpoints"
done

# 1-bit LAMB on other numbers of ranks; one process hands on what only several need.
read -ra words <<<"$lamb"
ranks 4 "${small[@]}" --steps 24 --save-every 8 --keep 10 "${words[@]}" --out lamb
coefficients() { tr -d ' \n' <"$1/manifest.json" | grep -o '"coefficients":[^]]*'; }
go_on() {
    rm -rf other
    cp -r lamb other
    rm -r other/checkpoints/step-00000016 other/checkpoints/step-00000024
    "$@" train --resume other
}
for n in 2 3; do
    go_on ranks $n
    close_numbers 0.05 "$(column lamb loss)" "$(column other loss)"
done
go_on pgpt
[[ $(coefficients other/checkpoints/step-00000024) == "$(coefficients lamb/checkpoints/step-00000008)" ]] ||
    fail "one process has not handed on the coefficients"
[[ $(coefficients lamb/checkpoints/step-00000024) != "$(coefficients lamb/checkpoints/step-00000008)" ]] || fail "they never change"
rm -r other/checkpoints/step-00000024
ranks 2 train --resume other
close_numbers 0.1 "$(column lamb loss)" "$(column other loss)"

# A warm-up that the variance ends: the same on any rank and behind any resume, and said where it ends.
auto=("${small[@]}" --beta2 0.5 --warmup 3 --clip 100 --steps 20 --save-every 5 --keep 10 --compress 1bit-adam --compress-warmup auto)
ranks 4 "${auto[@]}" --out auto
from=$(grep -o '"compressed_from":[0-9]*' auto/metrics.jsonl | cut -d: -f2)
((from % 2 && from > 5 && from < 16)) || fail "compressed from step '$from'"
grep -q "step $((from - 1)): the variance is steady" err || fail "nothing is said: $(cat err)"
awk -F'"variance_kept":' -v last="$((from - 1))" 'NF > 1 {
    match($0, /"step":[0-9]+/); step = substr($0, RSTART + 7, RLENGTH - 7); kept = $2 + 0
    if (step % 2 || (step == last) != (kept >= 0.96)) bad = 1
    n++ } END { exit bad || n < 2 }' auto/metrics.jsonl || fail "by another rule: $(grep variance_kept auto/metrics.jsonl)"
for at in 05 15; do
    rm -rf same
    cp -r auto same
    for step in 10 15 20; do ((step <= 10#$at)) || rm -r same/checkpoints/step-000000$step; done
    ranks 4 train --resume same
    diff -r auto/checkpoints same/checkpoints || fail "auto: resumed at $at, it has other checkpoints"
done
ranks_refused '/--compress-warmup auto compares the variance over .* = 100 steps/' 2 "${small[@]}" --compress 1bit-adam --compress-warmup auto
ranks_refused '/--compress-warmup auto is by a variance/' 2 "${small[@]}" --compress int8 --compress-warmup auto
ranks_refused '/--compress-warmup 3x: it is a number/' 2 "${small[@]}" --compress int8 --compress-warmup 3x
ranks_refused '/--compress int8 packs gradients in memory.*leave one out/' 2 "${small[@]}" --compress int8 --offload gradients:file=.
ranks_refused '/--compress int8 is for ranks that share a batch.*start 4 .mpirun/' 2 "${small[@]}" --compress int8 --tp 2
ranks 2 "${small[@]}" --steps 3 --compress 1bit-adam --compress-warmup 1k --out thousand
grep -q 'the first 1000 steps are exact' err || fail "1k steps of warm-up: $(cat err)"
ranks_refused '/--compress 1bit-lamb is a form of LAMB and needs --optimizer lamb/' 2 "${small[@]}" --compress 1bit-lamb
ranks_refused '/--compress 1bit-adam is a form of Adam.*1bit-lamb/' 2 "${small[@]}" --compress 1bit-adam --optimizer lamb
ranks_refused '/--lamb-scale-min .*1bit-lamb/' 2 "${small[@]}" --optimizer lamb --compress int8 --lamb-scale-min 0.3
ranks_refused '/--compress 1bit-adam is compared in f32, tf32 and bf16/' 2 verify --compress 1bit-adam --dtype pure-bf16

# bytes WORDS...: what a step sends along dp, of all ranks, as it is counted.
bytes() {
    pgpt train --model nano --dp 4 --print-mesh "$@"
    awk '$1 == "dp" && !/scalar/ {n += $(NF - 2)} END {print n}' out
}
exact=$(bytes) signs=$(bytes --compress 1bit-adam)
# As predicted: of a block of 64 numbers 3 words, 17, 33, 2; there and back as often as in a ring.
for way in '1bit-adam 3' '0/1-adam:16 3' '1bit-lamb 3' 'int8 17' 'f16 33' 'topk:0.01 2' 'topk-adam:0.01 2'; do
    read -r name words <<<"$way"
    n=$(bytes --compress "$name" --optimizer "$([[ $name == *lamb ]] && echo lamb || echo adamw)")
    ((n * 64 == exact * words)) || fail "$name sends $n bytes, exact sums $exact"
done
((signs * 20 <= exact)) || fail "1bit-adam sends $signs bytes, exact sums $exact"

ranks_refused '/--compress 1bit-adam needs whole weights/' 2 "${small[@]}" --compress 1bit-adam --zero 3
ranks_refused '/--compress 1bit-adam is a form of Adam/' 2 "${small[@]}" --compress 1bit-adam --optimizer sgd
ranks_refused '/--compress int8 is of sums in every step/' 2 "${small[@]}" --compress int8 --sync local
ranks_refused '/--compress int8 cannot take an update back/' 2 "${small[@]}" --compress int8 --clip-style check
ranks_refused '/--compress int8 keeps its errors in f32/' 2 "${small[@]}" --compress int8 --dtype pure-bf16
ranks_refused '/--compress 1bit-adam needs its moments in f32/' 2 "${small[@]}" --compress 1bit-adam --moments 8bit
ranks_refused '/--compress-warmup 0: 1bit-adam freezes/' 2 "${small[@]}" --compress 1bit-adam --compress-warmup 0
ranks_refused '/--compress topk:2: the share/' 2 "${small[@]}" --compress topk:2
ranks_refused '/--compress zip is none of the ways/' 2 "${small[@]}" --compress zip
refused '/--compress int8 is for ranks that share a batch/' "${small[@]}" --compress int8
