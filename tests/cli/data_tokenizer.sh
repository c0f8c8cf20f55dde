#!/bin/bash
# Learning a tokenizer, and learning from text that it encodes.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
export XDG_CACHE_HOME=$SCRATCH/cache

for i in {1..300}; do echo "The fox number $i runs, and the hen sits; it is \"late\"."; done >story.txt
sed 's/"/\\"/g; s/.*/{"text": "&\\n"}/' story.txt >story.jsonl

pgpt data train-tokenizer story.txt --vocab-size 310 --out bpe --json
tail -n 1 out | check_json
[[ $(field vocabulary <out) == 310 ]] || fail "vocabulary: $(cat out)"
pgpt data train-tokenizer story.txt --vocab-size 310 --out again.json --threads 1
cmp bpe/tokenizer.json again.json || fail "not the same twice"
split -n l/7 story.txt part. --additional-suffix=.txt
pgpt data train-tokenizer part.*.txt --vocab-size 310 --out parts.json
cmp bpe/tokenizer.json parts.json || fail "not the same in seven files"
pgpt data train-tokenizer story.jsonl --vocab-size 310 --out lines.json
cmp bpe/tokenizer.json lines.json || fail "not the same in lines"
"$PGPT" data train-tokenizer - --vocab-size 310 --out pipe.json <story.txt 2>err || fail "a pipe: $(cat err)"
cmp bpe/tokenizer.json pipe.json || fail "not the same through a pipe"
pgpt data train-tokenizer story.txt --vocab-size 60000 --out few.json
grep -q 'warning: .* instead of 60000' err || fail "does not say that there are fewer: $(cat err)"

# A folder or its file; bytes that the text never had.
head -c 2000 /dev/urandom | cat story.txt - >noise
for tokenizer in bpe bpe/tokenizer.json; do
    pgpt data encode noise --tokenizer $tokenizer
    cp out ids
    pgpt data decode ids --tokenizer $tokenizer
    cmp out noise || fail "does not come back"
done

pgpt data prepare story.jsonl --tokenizer bpe --out shards --json
[[ $(field tokenizer <out) == bpe && $(field documents <out) == 300 ]] || fail "prepare: $(cat out)"
pgpt data verify shards
pgpt data encode story.txt --tokenizer shards
pgpt train "${TINY[@]}" --tokenizer auto --data shards --out run --lr-schedule constant
grep -q ' 310 symbols (bpe)' err || fail "does not name the tokenizer: $(cat err)"
pgpt train "${TINY[@]}" --tokenizer auto --data shards --out longer --lr-schedule constant --steps 8
pgpt train --resume run --steps 8
same_model run longer
pgpt generate run --prompt 'The fox' --tokens 5
[[ $(head -n 1 out) == "The fox"* ]] || fail "the prompt does not come back: $(cat out)"
pgpt train "${TINY[@]}" --data story.txt --tokenizer bpe --out direct
pgpt train "${TINY[@]}" --data story.jsonl:1,story.txt:2 --tokenizer bpe --out both

refused '/--vocab-size is missing/' data train-tokenizer story.txt --out new
refused '/--out is missing/' data train-tokenizer story.txt --vocab-size 300
refused '/257/' data train-tokenizer story.txt --vocab-size 100 --out new
refused '/exists already/' data train-tokenizer story.txt --vocab-size 300 --out bpe
refused '/missing.txt/' data train-tokenizer missing.txt --vocab-size 300 --out new
refused '/empty/' data train-tokenizer /dev/null --vocab-size 300 --out new
refused '/--vocab-size means nothing/' data prepare story.txt --tokenizer byte --out new --vocab-size 300
