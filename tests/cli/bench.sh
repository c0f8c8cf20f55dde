#!/bin/bash
# pgpt bench: each benchmark on something tiny. Figures are not judged here, only that they are there.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

model=(--layers 1 --heads 2 --channels 16 --context 16 --threads 1)

has() {
    tail -n 1 out | check_json
    for key in "$@"; do
        [[ -n $(tail -n 1 out | field "$key") ]] || depth=1 fail "no $key: $(tail -n 1 out)"
    done
}

pgpt bench step "${model[@]}" --batch 4 --steps 2 --json
has command tokens_per_s step_ms blocks_ms flops_per_s standard_flops_per_step standard_flops_per_s peak_bytes
# Blocks are a part of it: with a vocabulary of thousands and one block, a small one.
pgpt bench step "${model[@]}" --batch 4 --steps 2 --vocab 20000 --json
awk "BEGIN { b = $(tail -n 1 out | field blocks_ms); exit !(b > 0 && b < 0.5 * $(tail -n 1 out | field step_ms)) }" ||
    fail "the head is counted among the blocks: $(tail -n 1 out)"
pgpt bench step "${model[@]}" --batch 4 --steps 2 --json
bench_peak=$(tail -n 1 out | field peak_bytes)
((bench_peak > 0)) || fail "peak_bytes $bench_peak"
pgpt bench step "${model[@]}" --batch 4 --micro-batch 2 --steps 1 --recompute 1 --dropout 0.1 --clip 1 --json
pgpt bench step "${model[@]}" --batch 2 --steps 1 --eager-update --optimizer sgd --no-tied
pgpt bench step "${model[@]}" --batch 2 --steps 1 --experts 4 --router balance-free --one-expert
refused "/--one-expert/" bench step --one-expert
pgpt bench ops "${model[@]}" --batch 2 --json
has command
for name in attention attention_backward linear_weight_gradient cross_entropy adamw; do
    grep -q "^$name  .* 1  " out || fail "bench ops does not have $name in the step"
done
for name in rmsnorm_backward residual_norm_backward swiglu rotary attention_cached dropout squared_norm sgd; do # not in the step: beside it
    grep -q "^$name  .* 0  " out || fail "bench ops leaves out $name"
done
pgpt bench generate "${model[@]}" --tokens 12 --runs 1 --samples 2 --json
has command tokens_per_s
pgpt bench experts "${model[@]}" --batch 2 --experts 4 --experts-per-token 2 --json
has command rows times
[[ $(tail -n 1 out | field rows) == 64 ]] || fail "bench experts has other rows: $(tail -n 1 out)"
[[ $(grep -c 'half at one .* ms ' out) == 3 ]] || fail "bench experts: $(cat out)"
[[ $(echo *) == "err out" ]] || fail "left behind: $(ls)"

pgpt bench attention "${model[@]}" --sequence 200 --batch 2 --pattern window:20,fixed:16:2 --json
has command times
for name in attention dense window:20 fixed:16:2; do
    grep -q "^$name  .* ms " out || fail "bench attention leaves out $name"
done
pgpt bench attention "${model[@]}" --sequence 200 --batch 2 --document-length 30
# documents of 30 of 200 tokens: of 4 blocks on the diagonal and 6 under it, those that share a document are left
grep -q "^dense  *[0-9.]* %" out || fail "no share of tiles: $(cat out)"
[[ $(awk '$1 == "dense" { print ($2 < 80) }' out) == 1 ]] || fail "documents leave all tiles: $(cat out)"

refused '/no-such/' bench attention --pattern no-such
refused "/--pattern: attention pattern '' is not known/" bench attention --pattern window:3,
refused "/--pattern: attention pattern 'window:99999999999': choose its number 1 from 1 to 16777216/" \
    bench attention --pattern window:99999999999
refused '/--pattern/' bench step --pattern window:3
refused "/--attention means nothing to 'bench attention'/" bench attention --attention window:3
refused "/--document-mask means nothing to 'bench experts'/" bench experts --experts 4 --document-mask --document-end 3
refused '/--router means something only with --experts/' bench step --router switch
refused '/--depth-every means something only with --depth-capacity/' bench step --depth-every 1
refused '/step, ops, generate, experts, attention or machine/' bench nothing
refused '/--experts/' bench experts --model nano
refused '/--clip/' bench experts --experts 4 --clip 1
refused "/did you mean 'step'/" bench stp
refused bench
refused '/--tokens/' bench step --tokens 5
refused '/--batch/' bench generate --batch 5
refused '/does not divide/' bench step --heads 3 --channels 16
refused bench step --batch 4 --micro-batch 3
refused '/iB.*free/' bench step --batch 1000000000
refused '/iB.*free/' bench ops --vocab 1073741824
refused '/iB.*free/' bench generate --context 1073741824
refused bench step --channels 1000000000
