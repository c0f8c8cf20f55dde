#!/bin/bash
# Evaluation on several ranks: the figures of one process in every layout and for every task. Each task takes three layouts in turn;
# LONG=1 takes all of them for each.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..300}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
pgpt train "${TINY[@]}" --layers 5 --heads 5 --channels 40 --context 24 --batch 6 --steps 60 --lr 0.003 --data book.txt --out run
pgpt convert run hf
for i in {1..17}; do
    echo "{\"context\": \"the $((i % 13)) of $i\", \"choices\": [\" and 4 is not\", \" not\", \" 1 is the 3 of 4 and 5\"], \"label\": $((i % 3))}"
done >questions.jsonl
for i in {1..19}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the"; done >words.txt
for i in {1..40}; do echo "{\"text\": \"$(head -n $((i % 9)) book.txt | tail -n 1)\"}"; done >texts.jsonl

numbers() {
    local key
    for key in loss perplexity bits_per_byte accuracy accuracy_sum items tokens bytes cut_items cut_tokens tokens_read; do
        tail -n 1 "$1" | field $key | sed 's/null/-1/'
    done
}

layouts=('2 --tp 2' '2 --pp 2' '2 --dp 2' '4 --tp 2 --pp 2' '4 --dp 2 --pp 2' '3 --dp 3' '5 --pp 5')
at=0 n=3
! is_long || n=${#layouts[@]}
while read -r model words; do
    # shellcheck disable=SC2086 # several words
    pgpt eval $model $words --json --threads 1
    cp out one
    (($(numbers one | wc -l) == 11)) || fail "eval $words: $(cat one)"
    for ((i = 0; i < n; i++)); do
        layout=${layouts[at++ % ${#layouts[@]}]}
        # shellcheck disable=SC2086
        ranks ${layout%% *} eval $model $words --json --threads 1 ${layout#* }
        close_numbers 1e-6 "$(numbers one)" "$(numbers out)"
    done
done <<END
run --data book.txt
hf --data texts.jsonl --batch 3
run --data book.txt --tokens-limit 900 --window 20 --stride 7
run --task choice --data questions.jsonl
run --task last-word --data words.txt
END

((at >= 15)) || fail "only $at evaluations"

# Token by token; more groups than windows; the text on standard input, which the first rank reads.
pgpt eval run --data book.txt --tokens-limit 60 --per-token one.jsonl --threads 1
ranks 4 eval run --data book.txt --tokens-limit 60 --per-token four.jsonl --threads 1 --dp 2 --pp 2
close_numbers 1e-4 "$(field log_probability <one.jsonl | sed 's/null/-1/')" "$(field log_probability <four.jsonl | sed 's/null/-1/')"
pgpt eval run --data book.txt --tokens-limit 20 --json --threads 1
cp out one
ranks 4 eval run --data book.txt --tokens-limit 20 --json --threads 1
close_numbers 1e-6 "$(numbers one)" "$(numbers out)"
pgpt eval run --data book.txt --json --threads 1
cp out one
timeout 60 "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" eval run --data - --json --threads 1 --pp 2 <book.txt >out 2>err || fail "standard input: $(cat err)"
close_numbers 1e-6 "$(numbers one)" "$(numbers out)"

# Mistakes: said once, by one rank.
at_once ranks_refused '/--tp 2 --pp 3 does not divide the 4 ranks of this run|--pp 3 --tp 2 does not divide the 4 ranks/' 4 eval run --data book.txt --tp 2 --pp 3
at_once ranks_refused "/--pp 6 makes more stages than the model's 5 blocks/" 6 eval run --data book.txt --pp 6
at_once ranks_refused "/cannot find 'none.txt'/" 2 eval run --data none.txt --pp 2
at_once ranks_refused '/--window 99 wants a number from 1 to/' 2 eval run --data book.txt --window 99
at_once ranks_refused '/--data is missing/' 2 eval run
all_done
