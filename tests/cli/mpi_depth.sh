#!/bin/bash
# A mixture of depths on several ranks: layouts train as one process does, with the report of one; texts and figures are those of
# one process; sequences are not divided.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

# Odd sizes; routers in all blocks, and beside experts.
small=(verify --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 4 --json)
for words in '2 --depth-every 1 --sample 40' '3 --position rotary --sample 30' '4 --sample 40' \
    '4 --experts 3 --expert-every 1 --sample 24 --only sequence|recompute|zb-v'; do
    # shellcheck disable=SC2086 # several words
    ranks ${words%% *} "${small[@]}" --depth-capacity 0.4 ${words#* }
    [[ $(tail -n 1 out | field differ) == 0 ]] || fail "$words: $(cat out)"
done

for i in {1..300}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
train=(train "${TINY[@]}" --layers 5 --heads 5 --channels 40 --context 24 --batch 7 --steps 12 --lr 0.003 --data book.txt
    --depth-capacity 0.3)
pgpt "${train[@]}" --out one

# What is said of the predictors, on the way; the batch does not divide.
same_reports() {
    local n=$1
    shift
    ranks "$n" "${train[@]}" "$@" --out many
    for key in depth_loss depth_accuracy; do
        paste <(column one $key) <(column many $key) | awk '{ if (($1 - $2) ^ 2 > 1e-10) exit 1 } END { exit NR != 12 }' ||
            depth=1 fail "$key of $n ranks, $*: $(paste <(column one $key) <(column many $key))"
    done
    rm -r many
}
same_reports 2 --dp 2
same_reports 2 --tp 2
same_reports 2 --tp 2 --no-sequence-parallel
same_reports 2 --pp 2
same_reports 2 --pp 2 --clip-style check
same_reports 4 --dp 2 --zero 3 --tp 2

# Of a pipeline that is not flushed, where weights stand still.
still=(train --init one --data book.txt --batch 6 --steps 3 --lr 0 --weight-decay 0 --no-save --sample-tokens 0 --threads 1)
pgpt "${still[@]}" --out still
for schedule in pipedream pipedream-2bw; do
    ranks 4 "${still[@]}" --pp 2 --dp 2 --micro-batch 1 --schedule "$schedule" --out "$schedule"
    for key in loss depth_loss depth_accuracy; do close_numbers 1e-4 "$(column still $key)" "$(column $schedule $key)"; done
done

pgpt generate one --prompt 'the 3 of' --tokens 60 --temperature 0 --threads 1
cp out text
pgpt eval one --data book.txt --threads 1 --json
loss=$(tail -n 1 out | field loss)
for words in '2 --tp 2' '2 --pp 2' '4 --tp 2 --pp 2'; do
    # shellcheck disable=SC2086 # several words
    ranks ${words%% *} generate one --prompt 'the 3 of' --tokens 60 --temperature 0 --threads 1 ${words#* }
    cmp -s out text || fail "text of $words: $(diff out text)"
    # shellcheck disable=SC2086
    ranks ${words%% *} eval one --data book.txt --threads 1 --json ${words#* }
    awk "BEGIN { exit !(($loss - $(tail -n 1 out | field loss)) ^ 2 < 1e-11) }" || fail "loss of $words: $(tail -n 1 out), not $loss"
done

ranks_refused '/--depth-capacity chooses among all positions of a sequence, and --cp 2/' 2 "${train[@]}" --cp 2 --out no
