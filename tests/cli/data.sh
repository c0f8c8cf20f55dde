#!/bin/bash
# Preparing text, and learning from what was prepared.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
export XDG_CACHE_HOME=$SCRATCH/cache
entries() {
    find "$XDG_CACHE_HOME" -mindepth 3 -maxdepth 3 2>/dev/null | wc -l
}

for i in {1..60}; do echo "The fox number $i runs, and the hen sits; it is \"late\"."; done >story.txt
mkdir texts
head -n 30 story.txt >texts/a.txt
tail -n 30 story.txt | sed 's/"/\\"/g; s/.*/{"id": 7, "text": "&\\n"}/' >texts/b.jsonl
echo "not this" >texts/c.md

# ---- There and back.
for kind in byte char word; do
    pgpt data prepare story.txt --tokenizer $kind --out $kind --json
    tail -n 1 out | check_json
    [[ $(field bytes <out) == "$(wc -c <story.txt)" ]] || fail "bytes: $(cat out)"
    [[ $(field tokenizer <out) == "$kind" ]] || fail "tokenizer: $(cat out)"
    grep -q "pgpt train --data $kind" err || fail "does not say how to go on: $(cat err)"
    pgpt data encode story.txt --tokenizer $kind/tokenizer.json
    (($(wc -l <out) == 1)) || fail "ids are not on one line"
    cp out ids
    pgpt data decode ids --tokenizer $kind/tokenizer.json
    cmp out story.txt || fail "$kind does not come back"
    "$PGPT" data decode --tokenizer $kind/tokenizer.json <ids | cmp - story.txt || fail "$kind from standard input"
    "$PGPT" data encode - --tokenizer $kind/tokenizer.json <story.txt | cmp - ids || fail "$kind to standard output"
    pgpt data inspect $kind --json
    [[ $(tail -n 1 out | field tokens) == "$(wc -w <ids)" ]] || fail "tokens: $(tail -n 1 out)"
    tail -n 1 out | check_json
    grep -q 'The fox number 1 runs' out || fail "no excerpt: $(cat out)"
    pgpt data verify $kind --json
    tail -n 1 out | grep -q '"verified":true' || fail "verify: $(cat out)"
done
pgpt data encode story.txt --tokenizer byte --json
[[ $(tail -n 1 out | field tokens) == "$(wc -c <story.txt)" ]] || fail "json of encode: $(tail -n 1 out)"
head -c 3000 /dev/urandom >noise
pgpt data encode noise --tokenizer byte
cp out ids
pgpt data decode ids --tokenizer byte
cmp out noise || fail "bytes do not come back"
pgpt data decode /dev/null --tokenizer byte
[[ ! -s out ]] || fail "nothing became something"

# ---- Documents, pipes, several files.
pgpt data prepare texts --tokenizer word --out folder --json
(($(field documents <out) == 31)) || fail "documents: $(cat out)"
"$PGPT" data prepare - --tokenizer char --out piped --quiet <story.txt 2>err || fail "a pipe: $(cat err)"
[[ ! -s err ]] || fail "not quiet: $(cat err)"
cmp piped/tokens-00000.bin char/tokens-00000.bin || fail "a pipe is not a file"
pgpt data prepare story.txt --tokenizer char --out small --shard-tokens 1000 --threads 1
(($(find small -name 'tokens-*' | wc -l) == ($(wc -m <story.txt) + 999) / 1000)) || fail "shards: $(ls small)"
pgpt data prepare story.txt --tokenizer char --out unsplit --validation 0

# ---- Learning from it: the same as from the text, whatever the files.
pgpt train "${TINY[@]}" --data story.txt --out text
pgpt train "${TINY[@]}" --data unsplit --out unsplit-run
same_losses text unsplit-run
same_model text unsplit-run
grep -q 'data unsplit: .* (char)' err || fail "does not name the tokenizer: $(cat err)"
pgpt train "${TINY[@]}" --data char --out char-run
pgpt train "${TINY[@]}" --data small --out small-run
same_model char-run small-run
pgpt train "${TINY[@]}" --data char --tokenizer char/tokenizer.json --out named
same_model char-run named
pgpt train "${TINY[@]}" --data story.txt --tokenizer word/tokenizer.json --out words
grep -q '(word)' err || fail "a tokenizer's file: $(cat err)"
pgpt train char-run/config.ini --out repeated
same_model char-run repeated

# ---- Mixtures, and going on where a run stopped.
pgpt data prepare texts --tokenizer char/tokenizer.json --out folder-char
for data in char:0.7,folder-char:0.3 char,story.txt:2.5 story.txt:1,builtin:3 story.txt; do
    name=$(tr ,:/ ___ <<<"$data")
    pgpt train "${TINY[@]}" --data $data --steps 4 --out "$name-4" --lr-schedule constant
    pgpt train "${TINY[@]}" --data $data --steps 8 --out "$name-8c" --lr-schedule constant
    pgpt train --resume "$name-4" --steps 8
    same_model "$name-8c" "$name-4"
done
cp story.txt 'a,b:0.5'
pgpt train "${TINY[@]}" --data 'a,b:0.5' --out odd-name # what exists is taken as it stands
same_model text odd-name
pgpt train "${TINY[@]}" --data char,folder-char --micro-batch 1 --out micro-1
pgpt train "${TINY[@]}" --data char,folder-char --micro-batch 4 --out micro-4
close_numbers 1e-4 "$(column micro-1 loss)" "$(column micro-4 loss)"

# ---- The cache.
(($(entries) == 0)) || fail "small texts do not need the cache"
pgpt train "${TINY[@]}" --data texts/b.jsonl --out lines
(($(entries) == 1)) || fail "no entry: $(find "$XDG_CACHE_HOME")"
grep -q 'preparing' err || fail "does not say that it prepares: $(cat err)"
pgpt train "${TINY[@]}" --data texts/b.jsonl --out lines-again
! grep -q 'preparing' err || fail "prepared again: $(cat err)"
same_model lines lines-again
shard=$(find "$XDG_CACHE_HOME" -name 'tokens-*')
printf '\377' | dd of="$shard" bs=1 seek=150 conv=notrunc status=none
pgpt train "${TINY[@]}" --data texts/b.jsonl --out lines-mended
grep -q 'warning: .*tokens_checksum.*making it again' err || fail "damage was not noticed: $(cat err)"
same_model lines lines-mended
pgpt train --resume lines --steps 6
pgpt train "${TINY[@]}" --data texts --out both # a folder with lines in it
(($(entries) == 2)) || fail "entries: $(find "$XDG_CACHE_HOME")"

# ---- Something larger.
seq 1 2700000 | sed 's/7$/7 and so on/; s/00$/&\n/' >large.txt
pgpt train "${TINY[@]}" --data large.txt --out large-text
(($(entries) == 3)) || fail "a large text does not go through the cache"
pgpt data prepare large.txt --tokenizer char --out large --validation 0 --threads 2 --json # each has pieces of its own
if ! grep -q __asan_init "$PGPT"; then
    (($(tail -n 1 out | field peak_bytes) < 60000000)) || fail "too much memory: $(cat out)"
fi
pgpt train "${TINY[@]}" --data large --out large-run
same_model large-text large-run
pgpt data verify large
