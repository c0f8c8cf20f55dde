#!/bin/bash
# Tensor parallelism: layers divided among ranks give the losses, the texts and the checkpoints of one process.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
small=(train "${TINY[@]}" --layers 2 --heads 3 --channels 36 --batch 6 --tokenizer word --data book.txt --lr 0.003
    --lr-schedule constant --beta2 0.95 --epsilon 1e-3 --dropout 0.1 --eval-every 10 --eval-batches 2 --sample-tokens 12)

# Three heads: two ranks have unequal parts, and of four one has none; of six, pairs divide the batch too.
pgpt "${small[@]}" --steps 20 --out one
cp out text
while read -r n words; do
    # shellcheck disable=SC2086 # several words
    ranks "$n" "${small[@]}" --steps 20 --out "ranks-$n" $words
    for key in loss val_loss grad_norm; do
        close_numbers 1e-4 "$(column one $key)" "$(column "ranks-$n" $key)"
    done
    cmp -s out text || fail "$n ranks say something else: $(diff out text)"
done <<END
2 --tp 2
3 --tp 3 --no-sequence-parallel --recompute 1
4 --tp 4
6 --tp 3 --zero 3 --micro-batch 2
5 --tp 5 --tp-style row
7 --tp 7 --tp-chunks 2 --micro-batch 3
8 --tp 4 --tp-chunks 3 --zero 3
END

# What a rank holds: the parts of two ranks are a little more than half of the whole; the model is reported as it is.
[[ $(head -n 1 ranks-2/metrics.jsonl | field parameters) == "$(head -n 1 one/metrics.jsonl | field parameters)" ]] ||
    fail "the size of the model: $(head -n 1 ranks-2/metrics.jsonl)"

# A checkpoint goes on in any layout, and its curve is one.
pgpt "${small[@]}" --steps 30 --out whole
for n in 1 3; do
    cp -r ranks-2 "from-2-on-$n"
    ranks $n train --resume "from-2-on-$n" --steps 30 --tp $n
    close_numbers 1e-4 "$(column whole loss)" "$(column "from-2-on-$n" loss)"
done
cp -r one from-1-on-4
ranks 4 train --resume from-1-on-4 --steps 30 --tp 2 --zero 1
close_numbers 1e-4 "$(column whole loss)" "$(column from-1-on-4 loss)"

# The program shows it: the first all-reduce of Megatron where the rows are whole, its two halves where they are not.
ranks 2 "${small[@]}" --tp 2 --print-program
{ grep -q reduce_scatter_start out && grep -q all_gather_start out; } || fail "no sequence parallelism: $(head -n 30 out)"
ranks 2 "${small[@]}" --tp 2 --no-sequence-parallel --print-program
{ grep -q all_reduce_start out && ! grep -q reduce_scatter_start out; } || fail "rows are split: $(head -n 30 out)"

# The naive style: twice as many sums in the forward, a checkpoint of any other, and all rows everywhere.
sums() { grep -Ec '^ *[0-9]+ +forward +all_reduce_start' out; }
column=$(sums)
ranks 2 "${small[@]}" --tp 2 --tp-style row --print-program
(($(sums) == 2 * column - 1)) || fail "$(sums) sums, $column in the other style" # the embedding's is the same
cp -r ranks-2 from-column
ranks 4 train --resume from-column --steps 25 --tp 2 --pp 2 --tp-style row --zero 1 --sample-tokens 0
ranks 2 train --resume from-column --steps 30 --tp 2 --pp 1 --tp-style column
close_numbers 1e-4 "$(column whole loss)" "$(column from-column loss)"

# Parts of a micro-batch take turns: a layer is computed while a message travels, but for the first and the last ones.
ranks 2 "${small[@]}" --tp 2 --tp-chunks 2 --print-program
for section in forward backward; do
    awk -v section=$section '$2 != section { next }
        $3 ~ /^(linear|attention|embedding)/ { computed++ }
        $3 ~ /^(all_gather|reduce_scatter)_start$/ { match($0, /@act\+[0-9]+/); begun[substr($0, RSTART, RLENGTH)] = computed }
        $3 == "wait" && match($0, /@act\+[0-9]+/) && substr($0, RSTART, RLENGTH) in begun {
            n++
            at_once += begun[substr($0, RSTART, RLENGTH)] == computed
            delete begun[substr($0, RSTART, RLENGTH)]
        }
        END { print n, at_once + 0; exit !(n >= 16 && at_once <= n / 3) }' out >counted ||
        fail "$section: messages, and how many of them are waited for at once: $(cat counted)"
done

# What a step sends: counted by the ranks together, or by one process for them all.
ranks 4 "${small[@]}" --tp 2 --zero 3 --print-mesh --ranks-per-host 2 --json
cp out together
pgpt "${small[@]}" --tp 2 --dp 2 --zero 3 --print-mesh --ranks-per-host 2 --json
cmp -s out together || fail "one process counts something else: $(diff out together)"
grep -Eq '^tp  *all-gather .* 0$' out || fail "tensor parallelism leaves the host: $(cat out)"
grep -Eq '^dp  *reduce-scatter .* ([0-9]+) +[0-9]+ +\1$' out || fail "dp does not: $(cat out)"
