#!/bin/bash
# Expert parallelism: experts divided among ranks give the losses, the reports, the texts and the checkpoints of one
# process, alone and with the other ways to divide a model; and what cannot be is refused with what can.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
small=(train "${TINY[@]}" --layers 2 --heads 4 --channels 32 --batch 7 --context 16 --tokenizer word --data book.txt
    --lr 0.003 --lr-schedule constant --beta2 0.95 --epsilon 1e-3 --dropout 0.1 --eval-every 10 --eval-batches 2
    --experts 5 --shared-experts 1 --sample-tokens 12)

# Five experts divide by nothing here, nor do seven sequences.
pgpt "${small[@]}" --steps 20 --out one
cp out text
while read -r name n words; do
    # shellcheck disable=SC2086 # several words
    ranks "$n" "${small[@]}" --steps 20 --out "$name" $words
    for key in loss val_loss grad_norm balance_loss router_entropy expert_load; do
        close_numbers 1e-4 "$(column one $key)" "$(column "$name" $key)"
    done
    [[ $name == stages4 ]] || cmp -s out text || fail "$name: another text: $(diff out text)"
done <<END
two2 2 --ep 2
three3 3 --ep 3 --recompute 1 --zero 1
four4 4 --ep 4 --zero 2 --micro-batch 1
mixed4 4 --ep 2 --tp 2
context4 4 --ep 2 --cp 2 --zero 1
stages4 4 --ep 2 --pp 2 --micro-batch 1 --schedule zb-h1
shards4 4 --ep 2 --dp 2 --zero 3
END

# A pipeline that is not flushed reports of its steps what one process does, where weights stand still; and moves no biases. So
# does one whose ranks of cp report for each other, behind an evaluation, too.
still=("${small[@]}" --steps 4 --lr 0 --weight-decay 0 --batch 6 --no-save --eval-every 2 --sample-tokens 0)
pgpt "${still[@]}" --out still
for schedule in pipedream pipedream-2bw 1f1b; do
    axis=--dp
    [[ $schedule == 1f1b ]] && axis=--cp
    ranks 4 "${still[@]}" --pp 2 $axis 2 --micro-batch 1 --schedule "$schedule" --out "$schedule"
    for key in loss balance_loss z_loss router_entropy expert_load empty_experts; do
        close_numbers 1e-4 "$(column still $key)" "$(column "$schedule" $key)"
    done
    diff <(grep -o '"expert_loads":[^"]*' still/metrics.jsonl) <(grep -o '"expert_loads":[^"]*' "$schedule/metrics.jsonl") ||
        fail "$schedule: other loads"
done
[[ $(grep -c expert_loads still/metrics.jsonl) == 2 ]] || fail "loads are not in every evaluation: $(cat still/metrics.jsonl)"
ranks_refused "/--schedule pipedream is not flushed between steps, and --router balance-free/" 2 \
    "${still[@]}" --pp 2 --micro-batch 1 --schedule pipedream --router balance-free

# A checkpoint goes on in any layout, and its curve is one.
pgpt "${small[@]}" --steps 30 --out whole
while read -r from name n words; do
    cp -r "$from" "$name"
    # shellcheck disable=SC2086
    ranks "$n" train --resume "$name" --steps 30 $words
    close_numbers 1e-4 "$(column whole loss)" "$(column "$name" loss)"
done <<END
two2 two2-on-1 1 --ep 1
one one-on-4 4 --ep 4 --zero 3
shards4 shards4-on-3 3 --ep 3 --dp 1 --zero 0
four4 four4-on-2 2 --ep 1 --tp 2 --zero 0
END

# A model in use: the ranks have the same rows, and each makes its experts' part.
pgpt generate two2 --prompt "the 3" --tokens 12 --temperature 0
cp out text
ranks 2 generate two2 --ep 2 --prompt "the 3" --tokens 12 --temperature 0
cmp -s out text || fail "generate --ep 2: another text: $(diff out text)"
ranks 4 generate two2 --ep 2 --tp 2 --prompt "the 3" --tokens 12 --temperature 0
cmp -s out text || fail "generate --ep 2 --tp 2: another text: $(diff out text)"
pgpt eval two2 --data book.txt --json
loss=$(tail -n 1 out | field loss) read=$(tail -n 1 out | field tokens_read)
for words in '3 --ep 3' '4 --ep 2 --dp 2'; do
    # shellcheck disable=SC2086
    ranks ${words%% *} eval two2 --data book.txt --json ${words#* }
    close_numbers 1e-5 "$loss" "$(tail -n 1 out | field loss)"
    [[ $(tail -n 1 out | field tokens_read) == "$read" ]] || fail "$words: not $read tokens were read: $(tail -n 1 out)"
done

# The program shows it: rows set out before the experts that all tokens pass are computed, and are waited for behind.
ranks 2 "${small[@]}" --ep 2 --print-program
[[ $(grep -c ' expert_exchange_start ' out) == 8 ]] || fail "two blocks exchange four times: $(grep exchange out)"
order=$(awk '$2 == "forward" && $3 ~ /^(expert_exchange_start|linear|grouped_linear|wait)$/ { print $3 }' out |
    grep -m1 -A8 expert_exchange_start | tr '\n' ' ')
[[ $order == "expert_exchange_start linear wait grouped_linear grouped_linear expert_exchange_start wait linear "* ]] ||
    fail "the exchange is not overlapped: $order"

# In f16 every chunk of a stage scales its routers' and predictors' losses, not only the one with the head.
for words in '--experts 3' '--depth-capacity 0.5'; do
    # shellcheck disable=SC2086
    ranks 2 verify --channels 14 --heads 7 --context 67 --hidden 16 --norm rmsnorm --dtype f16 --steps 2 --threads 1 --sample 4 \
        --only 'interleaved|zb-v' $words
    grep -q '^4 layouts .* 0 differ ' out || fail "in f16 $words: $(cat out)"
done

# Nor are their biases late where updates of weights are.
ranks 2 verify --experts 8 --router balance-free --bias-rate 0.1 --delayed-update 1 --steps 4 --threads 1 --sample 2 --only 'dp 2'
grep -q '^2 layouts .* 0 differ ' out || fail "biases of late updates: $(cat out)"

# What cannot be.
ranks_refused "/--ep 2 divides the experts of a model among ranks, and this one has none/" 2 \
    "${small[@]}" --experts 0 --shared-experts 0 --ep 2
ranks_refused "/--ep 4 is more ranks than the model has experts \(3\); lower it to 2, and let --dp take the other/" 4 \
    "${small[@]}" --experts 3 --ep 4
ranks_refused "/--ep 5 does not divide the 4 ranks of this run; choose --ep 2$/" 4 "${small[@]}" --experts 3 --ep 5
ranks_refused "/--sync push is of whole models, and --ep 2 divides the experts among ranks/" 4 \
    "${small[@]}" --ep 2 --sync push
ranks_refused "/--ep 6 is more ranks than the model has experts \(5\); lower it to 3/" 6 generate two2 --ep 6
