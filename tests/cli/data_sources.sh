#!/bin/bash
# The same name means the same data to every command; what makes no sense to one is refused.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for i in {1..30}; do echo "The fox number $i runs, and the hen sits; it is late."; done >a.txt
for i in {1..30}; do echo "A dog and $i cats sleep; nobody sees them."; done >b.txt
lines() { while IFS= read -r text; do printf '{"text": "%s\\n", "n": 1}\n' "$text"; done; }
lines <a.txt >lines.jsonl
mkdir folder one-each
cp a.txt b.txt folder/
split -l 1 -d -a 3 --additional-suffix .txt a.txt one-each/
marked() { printf '\xEF\xBB\xBF' && cat "$1"; }
marked lines.jsonl >marked.jsonl

value() { tail -n 1 out | field "$1"; }
figures() { tail -n 1 out | grep -o '"loss":.*"bytes":[0-9]*'; }
evaluate() { # MODEL DATA...
    pgpt eval "$1" --data "$2" --json "${@:3}"
}

pgpt train "${TINY[@]}" --data a.txt,b.txt --out run
pgpt train "${TINY[@]}" --data a.txt,b.txt --tokenizer word --out words

# ---- eval: lines are their texts, each a document, as if it were a file.
for model in run words; do
    evaluate $model one-each
    expected=$(figures)
    [[ -n $expected && $(value items) == 30 ]] || fail "$(tail -n 1 out)"
    for data in lines.jsonl marked.jsonl; do
        evaluate $model $data
        [[ $(figures) == "$expected" && $(value items) == 30 ]] || fail "$data: $(tail -n 1 out), not $expected"
    done
    # Prepared data of the model's tokenizer: the same figures, in one file or in many.
    for tokens in 100000 77; do
        for data in one-each lines.jsonl; do
            rm -rf shards
            pgpt data prepare $data --tokenizer $model/tokenizer.json --shard-tokens $tokens --out shards
            evaluate $model shards
            [[ $(figures) == "$expected" && $(value items) == 30 ]] ||
                fail "prepared $data: $(tail -n 1 out), not $expected"
        done
    done
    evaluate $model folder
    expected=$(figures)
    evaluate $model a.txt,b.txt
    [[ $(figures) == "$expected" && $(value items) == 2 ]] || fail "a list: $(tail -n 1 out), not $expected"
done
pgpt data prepare lines.jsonl --tokenizer run/tokenizer.json --out chars
evaluate run chars --tokens-limit 100
[[ $(value tokens) == 98 && $(value items) == 2 ]] || fail "--tokens-limit: $(tail -n 1 out)"
expected=$(figures)
evaluate run lines.jsonl --tokens-limit 100
[[ $(figures) == "$expected" ]] || fail "--tokens-limit of lines: $(tail -n 1 out), not $expected"
evaluate run chars,b.txt
[[ $(value items) == 31 ]] || fail "prepared data and a text: $(tail -n 1 out)"
pgpt data prepare lines.jsonl --tokenizer byte --out bytes
refused '/bytes .*tokenizer_hash.*were not made by the tokenizer of the model/' eval run --data bytes
refused "/weight of 'a.txt'/" eval run --data a.txt:2,b.txt
refused '/twice/' eval run --data -,-
refused '/chars is prepared data/' eval run --data chars --task last-word
cp -r chars damaged
printf 'x' | dd of=damaged/tokens-00000.bin bs=1 seek=140 conv=notrunc status=none
refused '/damaged/' eval run --data damaged
echo '{"context": "The fox", "choices": [" runs", " sits"], "label": 0}' >choices.jsonl
pgpt eval run --task choice --data choices.jsonl,choices.jsonl --json
[[ $(value items) == 2 ]] || fail "two files of choices: $(tail -n 1 out)"
marked choices.jsonl >marked-choices.jsonl
pgpt eval run --task choice --data marked-choices.jsonl
printf '{"text": "The fox number"}\n' >last.jsonl
marked last.jsonl >marked-last.jsonl
pgpt eval run --task last-word --data marked-last.jsonl
marked choices.jsonl | "$PGPT" eval run --task choice --data - >out 2>err || fail "a mark on standard input: $(cat err)"

# ---- encode: the same ids as training has.
T=(--tokenizer run/tokenizer.json)
pgpt data encode one-each "${T[@]}"
cp out ids
for data in lines.jsonl marked.jsonl chars; do
    pgpt data encode $data "${T[@]}"
    cmp -s out ids || fail "$data is encoded otherwise"
done
"$PGPT" data decode "${T[@]}" <ids | cmp - a.txt || fail "the ids are another text"
pgpt data encode folder "${T[@]}"
cp out ids
pgpt data encode a.txt b.txt "${T[@]}"
cmp -s out ids || fail "two words"
pgpt data encode a.txt,b.txt "${T[@]}"
cmp -s out ids || fail "two names"
refused '/were not made by the tokenizer/' data encode bytes "${T[@]}"
refused '/chars is prepared data/' data encode chars a.txt "${T[@]}"
refused "/weight of 'b.txt'/" data encode a.txt,b.txt:0.5 "${T[@]}"

# ---- prepare, train-tokenizer, train.
for words in "folder" "a.txt b.txt" "a.txt,b.txt"; do
    rm -rf p v
    # shellcheck disable=SC2086 # several words
    pgpt data prepare $words --tokenizer char --out p
    [[ ! -d same ]] || cmp -s p/tokens-00000.bin same/tokens-00000.bin || fail "'data prepare $words' differs"
    rm -rf same && mv p same
    # shellcheck disable=SC2086
    pgpt data train-tokenizer $words --vocab-size 300 --out v
    [[ ! -f bpe.json ]] || cmp -s v/tokenizer.json bpe.json || fail "'data train-tokenizer $words' differs"
    mv v/tokenizer.json bpe.json
done
refused '/chars is prepared data, and its text is not in it/' data prepare chars --tokenizer byte --out new
refused '/chars is prepared data/' data train-tokenizer chars --vocab-size 300 --out new
refused "/weight of 'b.txt'/" data prepare a.txt,b.txt:3 --tokenizer byte --out new
pgpt train "${TINY[@]}" --data lines.jsonl --out of-lines
pgpt train "${TINY[@]}" --data marked.jsonl --out of-marked
same_losses of-lines of-marked
many=$(printf 'a.txt,%.0s' {1..1001})
refused '/1001 corpora, but at most 1000.*folder/' train "${TINY[@]}" --data "${many%,}" --out new
refused '/chars, 34 symbols|were not made by/' train "${TINY[@]}" --data chars,bytes --out new

# ---- A mark before other files of JSON that people bring.
pgpt convert run hf
for file in hf/*.json; do
    marked "$file" >marked-file
    mv marked-file "$file"
done
evaluate run a.txt
expected=$(value loss)
evaluate hf a.txt
close_numbers 1e-6 "$(value loss)" "$expected"
printf '\xEF\xBB\xBF{"prompt": "The fox"}\n' >prompts.jsonl
pgpt generate run --prompts prompts.jsonl --tokens 2
printf '\xEF\xBB\xBFThe fox\n' >prompts.txt
pgpt generate run --prompts prompts.txt --tokens 2
refused '/folder/' generate run --prompts folder --tokens 2
