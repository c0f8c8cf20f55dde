#!/bin/bash
# A mixture of depths from training to text: what is reported, going on, text with and without a cache, evaluation that is the
# same in every batch, and what does not go with it.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for i in {1..300}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 4 --context 24 --batch 6 --steps 40 --lr 0.003 --data book.txt --dropout 0.1)
depths=("${small[@]}" --depth-capacity 0.3)
pgpt "${depths[@]}" --eval-every 20 --out whole --json

# Every step has the predictors' loss, apart from the model's, and it falls.
(($(column whole depth_loss | wc -l) == 40)) || fail "not every step has a depth_loss"
awk '{ if (!($1 > 0 && $1 < 2)) exit 1; last = $1; if (NR == 1) first = $1 } END { exit !(last < first) }' \
    <(column whole depth_loss) || fail "predictors do not learn: $(column whole depth_loss | tr '\n' ' ')"
awk '{ if (!($1 >= 0 && $1 <= 1)) exit 1 }' <(column whole depth_accuracy) || fail "accuracy: $(column whole depth_accuracy)"
[[ $(tail -n 1 out | field depth_loss) == "$(column whole depth_loss | tail -n 1)" ]] || fail "the summary: $(tail -n 1 out)"
pgpt "${small[@]}" --out dense --json
! grep -q depth_ dense/metrics.jsonl || fail "a dense model has a depth_loss"

# The same run twice, in two pieces, with activations made again: the same bits.
pgpt "${depths[@]}" --eval-every 20 --steps 40 --save-every 15 --keep 9 --out half
rm -r half/checkpoints/step-000000{30,40}
pgpt train --resume half
same_losses whole half
same_model whole half
pgpt "${depths[@]}" --eval-every 20 --recompute 1 --out again
same_losses whole again

# A step computes what passes: of half the blocks, 1 in 8 positions.
flops() {
    pgpt train "${TINY[@]}" --layers 4 --context 64 --channels 64 --data book.txt --steps 1 --no-save --json --out "$@"
    tail -n 1 out | awk -F'"(flops_per_s|step_ms)":' '{ print $2 * $3 }'
}
ratio=$(echo "$(flops f1 --depth-capacity 0.125) $(flops f0)" | awk '{ print $1 / $2 }')
awk "BEGIN { exit !($ratio > 0.5 && $ratio < 0.68) }" || fail "FLOPs are $ratio of the dense model's"

# Text: the cache of each block holds what passed it. Longer than the context.
words=(generate whole --temperature 0 --tokens 90 --threads 1)
pgpt "${words[@]}" --prompt 'the 3 of'
cp out cached
pgpt "${words[@]}" --prompt 'the 3 of' --no-cache
cmp -s out cached || fail "without a cache: $(diff out cached)"

# Evaluation decides token by token, so what else is in a batch does not show.
pgpt eval whole --data book.txt --batch 1 --json
loss=$(tail -n 1 out | field loss)
pgpt eval whole --data book.txt --batch 7 --json
awk "BEGIN { exit !(($loss - $(tail -n 1 out | field loss)) ^ 2 < 1e-10) }" || fail "loss $loss alone, others $(tail -n 1 out)"

# What does not go with it.
refused '/--depth-every 9 leaves none of --layers 4/' "${depths[@]}" --depth-every 9 --out no
refused '/--depth-capacity wants|--depth-capacity 1.5/' "${depths[@]}" --depth-capacity 1.5 --out no
refused '/block 1 has a router/' "${depths[@]}" --attention window:8 --out no
refused '/--document-mask and --depth-capacity/' "${depths[@]}" --document-mask --document-end 3 --out no
refused '/--depth-capacity, which Hugging Face/' convert whole hf
