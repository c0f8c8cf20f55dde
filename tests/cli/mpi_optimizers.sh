#!/bin/bash
# Optimizers that go by tensors, in several layouts: they train as one process does, a run that goes on has the bits of one that
# was never stopped, and any other layout goes on from its checkpoints.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --eval-every 0)
optimizers=(lamb muon)
rate() {
    [[ $1 == lamb ]] && echo 0.03 || echo 0.003
}

sample=24 ways=('--zero 2' '--tp 2')
! is_long || sample=0 ways+=('--zero 3 --dtype pure-bf16')
for optimizer in "${optimizers[@]}"; do
    ranks 4 verify --all --optimizer "$optimizer" --threads 1 --steps 3 --sample $sample
    grep -q ' 0 differ' out || fail "$optimizer: $(cat out)"
    if is_long; then
        ranks 4 verify --optimizer "$optimizer" --threads 1 --steps 4
        grep -q ' 0 differ' out || fail "$optimizer: $(cat out)"
    fi
    ranks 4 verify --optimizer "$optimizer" --threads 1 --steps 2 --sample 4 --dtype bf16
    grep -q ' 0 differ' out || fail "$optimizer in bf16: $(cat out)"

    # Saved by ZeRO and by tp.
    for way in "${ways[@]}"; do
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
    if [[ $optimizer == lamb ]]; then
        pgpt "${one[@]}" --eager-update --out eager
        same_losses late eager
        same_model late eager
    fi
    pgpt "${one[@]}" --micro-batch 2 --out parts
    close_numbers 1e-5 "$(column late loss)" "$(column parts loss)"
done

# ---- moments in fewer bits ----

ranks 4 verify --moments 8bit --threads 1 --steps 3 --sample 6
grep -q ' 0 differ' out || fail "8 bits: $(cat out)"
ranks 2 verify --moments bf16 --threads 1 --steps 3 --sample 4 --optimizer sgd
grep -q ' 0 differ' out || fail "bf16: $(cat out)"

# The formula says what they take; a run that goes on has the bits of one that was never stopped; f32 and other layouts go on
# from it.
for way in '--zero 2' '--tp 2 --dtype pure-bf16'; do
    rm -rf whole same other
    # shellcheck disable=SC2086 # words
    ranks 2 "${small[@]}" --lr 0.003 --moments 8bit --steps 6 --save-every 3 --keep 3 $way --out whole
    [[ $way != '--zero 2' ]] || grep -q '4Ψ + 6.125Ψ/2' err || fail "no formula: $(cat err)"
    cp -r whole same
    rm -r same/checkpoints/step-00000006
    cp -r same other
    ranks 2 train --resume same
    same_losses whole same
    diff -r whole/checkpoints same/checkpoints || fail "8 bits, $way: other bits after going on"
    pgpt train --resume other --tp 1 --zero 0 --moments f32 --dtype f32
    close_numbers 1e-2 "$(column whole loss)" "$(column other loss)"
done

# The same learning.
learn=("${small[@]}" --steps 120 --lr 0.003)
pgpt "${learn[@]}" --out full
for moments in bf16 8bit; do
    pgpt "${learn[@]}" --moments $moments --out "$moments"
    close_numbers 0.05 "$(column full loss | tail -n 30 | awk '{ s += $1 } END { print s / NR }')" \
        "$(column $moments loss | tail -n 30 | awk '{ s += $1 } END { print s / NR }')"
done

ranks_refused '/--sync server averages f32 weights and moments.*--moments f32/' 2 "${small[@]}" --sync server --moments 8bit

ranks_refused '/--compress 1bit-adam needs its moments in f32.*--moments/' 2 "${small[@]}" --compress 1bit-adam --moments 8bit
refused '/--eager-update .*muon/' train "${TINY[@]}" --optimizer muon --eager-update --clip 0
refused '/lamb-max-ratio/' train "${TINY[@]}" --lamb-max-ratio 3

# Key/value heads that ranks of tp hold in common, each behind queries of its own, which are not as many: they stay the
# same, so that a run which is resumed with those of one rank has the same bits. Where they cannot it is refused.
shared=("${TINY[@]}" --layers 1 --heads 3 --kv-heads 1 --channels 192 --context 8 --batch 4 --tp 2 --steps 6 --save-every 3 --keep 2
    --lr 0.01 --eval-every 0)
for words in "--moments bf16" "--moments 8bit" "--dtype pure-bf16" "--dtype pure-bf16 --optimizer muon --moments 8bit"; do
    rm -rf whole on
    # shellcheck disable=SC2086
    ranks 2 train "${shared[@]}" $words --out whole
    cp -r whole on
    rm -r on/checkpoints/step-00000006
    ranks 2 train --resume on
    diff -r whole/checkpoints/step-00000006 on/checkpoints/step-00000006 || fail "$words: shared heads drift apart"
done
for words in "--moments 8bit" "--compress int8 --dp 2"; do
    n=2
    [[ $words != *dp* ]] || n=4
    # shellcheck disable=SC2086
    ranks_refused '/--(moments 8bit|compress int8) has scales .*key\/value heads of 16.*leave out --tp/' $n train "${shared[@]}" \
        --channels 48 $words --out refused
done
