#!/bin/bash
# pgpt eval.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# A model of a pattern that is easily learnt.
for _ in {1..400}; do printf 'red green blue black white '; done >pattern.txt
pgpt train "${TINY[@]}" --tokenizer char --data pattern.txt --channels 32 --batch 8 --steps 500 --lr 1e-2 --warmup 10 --out run
pgpt train "${TINY[@]}" --tokenizer word --data pattern.txt --out words

value() {
    tail -n 1 out | field "$1"
}

# Running text: all tokens but the first, whatever the stride, and fields that agree with each other.
printf 'red green blue black white red green blue black white red' >text.txt
pgpt eval run --data text.txt --json
tail -n 1 out | check_json
for key in command task data model step loss perplexity bits_per_byte accuracy items tokens bytes window stride \
    tokens_read seconds tokens_per_s peak_bytes interrupted; do
    [[ -n $(value $key) ]] || fail "no $key: $(tail -n 1 out)"
done
[[ $(value accuracy) == null && $(value stride) == 8 && $(value window) == 16 ]] || fail "$(tail -n 1 out)"
grep -q '^bits per byte ' out || fail "nothing for people: $(cat out)"
for stride in 1 3 8 16; do
    pgpt eval run --data text.txt --stride $stride --json
    [[ $(value tokens) == 56 && $(value bytes) == 56 ]] || fail "stride $stride: $(tail -n 1 out)"
    awk -v loss="$(value loss)" -v perplexity="$(value perplexity)" -v bits="$(value bits_per_byte)" 'BEGIN {
        p = exp(loss) / perplexity; b = loss / log(2) / bits
        exit !(p > 0.999999 && p < 1.000001 && b > 0.999999 && b < 1.000001) }' || fail "$(tail -n 1 out)"
done
[[ $(value tokens_read) == 56 ]] || fail "windows without overlap read $(value tokens_read) tokens"
loss=$(value loss)
for batch in 1 2 3 50; do
    pgpt eval run --data text.txt --stride 16 --batch $batch --threads 2 --json
    close_numbers 1e-6 "$(value loss)" "$loss"
done
"$PGPT" eval run --data - --stride 16 --json <text.txt >out || fail "--data -"
[[ $(value loss) == "$loss" ]] || fail "from standard input it is another loss"
pgpt eval run --data text.txt --window 4 --json
[[ $(value window) == 4 && $(value stride) == 2 ]] || fail "--window: $(tail -n 1 out)"
pgpt eval run --data text.txt --tokens-limit 11 --json
[[ $(value tokens) == 10 && $(value bytes) == 10 ]] || fail "--tokens-limit: $(tail -n 1 out)"
pgpt eval words --data text.txt --json
[[ $(value tokens) == 10 && $(value bytes) == 54 ]] || fail "words: $(tail -n 1 out)"
mkdir texts
printf 'red green' >texts/a.txt
printf 'blue black' >texts/b.txt
pgpt eval run --data texts --json
[[ $(value items) == 2 && $(value tokens) == 17 ]] || fail "a directory: $(tail -n 1 out)"
pgpt eval run/checkpoints --data text.txt
pgpt eval run --checkpoint best --data text.txt --quiet
[[ ! -s err ]] || fail "not quiet: $(cat err)"

# Token by token: the text itself, and the loss again.
pgpt eval run --data text.txt --per-token tokens.jsonl --json
[[ $(field text <tokens.jsonl | tr -d '\n') == "$(cat text.txt)" ]] || fail "the tokens are not the text"
head -n 1 tokens.jsonl | grep -q '"log_probability":null' || fail "the first token has a probability"
close_numbers 1e-6 "$(value loss)" "$(field log_probability <tokens.jsonl | awk '{ s -= $1 } END { printf "%.9g", s / (NR - 1) }')"

# The model knows the pattern.
cat >choices.jsonl <<'END'
{"context": "red green", "choices": [" white", " blue", " red"], "label": 1}
{"context": "blue black ", "choices": ["white", "blue"], "label": 0}

{"context": "red green blue black white red green blue black", "choices": [" red", " white"], "label": 1}
END
pgpt eval run --task choice --data choices.jsonl --json --per-token tokens.jsonl
[[ $(value accuracy) == 1.0 && $(value accuracy_sum) == 1.0 && $(value items) == 3 ]] || fail "$(cat out)"
[[ $(value cut_items) == 1 && $(value cut_tokens) -gt 20 ]] || fail "cut: $(cat out)"
grep -q '^too long ' out || fail "nobody says what was cut: $(cat out)"
[[ $(grep -c '"item":0,"choice":1,' tokens.jsonl) == 5 ]] || fail "tokens: $(cat tokens.jsonl)"
pgpt eval run --task choice --data choices.jsonl --items-limit 1 --json
[[ $(value items) == 1 && $(value cut_items) == 0 ]] || fail "--items-limit: $(cat out)"
echo '{"context": "red green", "choices": ["white", "blue"], "label": 1}' >bare.jsonl
pgpt eval run --task choice --data bare.jsonl --delimiter ' ' --json --per-token tokens.jsonl
[[ $(value accuracy) == 1.0 && $(value bytes) == 5 ]] || fail "--delimiter: $(cat out)"

printf '{"text": "blue black white"}\n{"text": "white red green "}\n{"text": "red green red"}\n' >last.jsonl
pgpt eval run --task last-word --data last.jsonl --json
[[ $(value items) == 3 && $(value accuracy) == 0.666666667 ]] || fail "last words: $(cat out)"
printf 'blue black white\n\nwhite red green \nred green red\n' >last.txt
loss=$(value loss)
pgpt eval run --task last-word --data last.txt --batch 1 --json
close_numbers 1e-6 "$(value loss)" "$loss"
pgpt eval words --task last-word --data last.txt

# Bad input.
bad() {
    printf '%s\n' "$2" >bad.jsonl
    depth=2 refused "$1" eval run --task choice --data bad.jsonl
}
bad '/bad.jsonl:1: not valid JSON/' '{"context":'
bad "/bad.jsonl:1: field 'choices' has 0/" '{"context": "red", "choices": [], "label": 0}'
bad "/bad.jsonl:1: field 'label' wants a whole number between 0 and 1, got 2/" '{"context": "red", "choices": ["a", "b"], "label": 2}'
bad "/bad.jsonl:1: field 'choices', number 1: unknown character/" '{"context": "red", "choices": ["a", "Z"], "label": 0}'
bad "/bad.jsonl:1: field 'choices', number 0: it is empty/" '{"context": "red", "choices": ["", "b"], "label": 0}'
bad '/only empty lines/' ''
: >empty.txt
echo -n r >one.txt
echo 'Zebra' >strange.txt
refused '/--data is missing/' eval run
refused '/missing.txt/' eval run --data missing.txt
refused '/empty.txt is empty/' eval run --data empty.txt
refused '/one.txt has fewer than two tokens/' eval run --data one.txt
refused '/strange.txt: unknown character/' eval run --data strange.txt
refused '/strange.txt:1: it has only one word/' eval run --data strange.txt --task last-word
refused '/missing/' eval missing --data text.txt
refused '/runs.latest/' eval --data text.txt
refused '/--stride 17.*16/' eval run --data text.txt --stride 17
refused '/--window 17.*16/' eval run --data text.txt --window 17
refused '/--stride/' eval run --data text.txt --stride -1
refused '/--task/' eval run --data text.txt --task guess
refused '/--items-limit.*text/' eval run --data text.txt --items-limit 3
refused '/--tokens-limit.*choice/' eval run --data choices.jsonl --task choice --tokens-limit 3
refused '/--delimiter/' eval run --data text.txt --delimiter x
refused '/nowhere/' eval run --data text.txt --per-token nowhere/tokens.jsonl
refused eval run extra --data text.txt
cp -r run swapped
cp words/tokenizer.json swapped/
refused '/tokenizer/' eval swapped --data text.txt
rm swapped/tokenizer.json
refused '/tokenizer.json/' eval swapped --data text.txt
cp -r run broken
truncate -s 100 broken/checkpoints/*/model.safetensors
refused eval broken --data text.txt

# The built-in corpus was trained on, most of it: what is scored is what training held out.
pgpt train "${TINY[@]}" --data builtin --tokenizer char --out stories
pgpt eval stories --data builtin --stride 16 --json
grep -q "^held out .*of builtin's [0-9]* tokens the last 10 % are scored" out || fail "does not say what was scored: $(cat out)"
all=$(sed -n "s/^held out .*builtin's \([0-9]*\) tokens.*/\1/p" out)
[[ $(value tokens) == $((all / 10 - 1)) ]] || fail "scored $(value tokens) of $all tokens"
pgpt eval stories --data builtin --tokens-limit 100 --json
[[ $(value tokens) == 99 ]] || fail "--tokens-limit: $(tail -n 1 out)"
refused '/fewer than two tokens/' eval stories --data builtin --tokens-limit 1
pgpt eval stories --data text.txt
! grep -q '^held out' out || fail "of any text it says that it was held out"
