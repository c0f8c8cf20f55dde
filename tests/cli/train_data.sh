#!/bin/bash
# Where text comes from, and the tokenizers.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for i in {1..40}; do echo "The fox number $i runs, and the hen sits; it is \"late\"."; done >story.txt
mkdir folder
head -n 20 story.txt >folder/a.txt
tail -n 20 story.txt >folder/b.txt
echo "not this" >folder/c.md

pgpt train "${TINY[@]}" --data story.txt --out file
grep -q 'data story.txt: .* (char)' err || fail "does not say what it reads: $(cat err)"
"$PGPT" train "${TINY[@]}" --data - --out stdin <story.txt >out 2>err || fail "standard input: $(cat err)"
same_losses file stdin
same_model file stdin
"$PGPT" train "${TINY[@]}" --data - --out pipe < <(cat story.txt) >out 2>err || fail "a pipe: $(cat err)"
same_model file pipe
pgpt train "${TINY[@]}" --data folder --out folder-run
(($(column folder-run loss | wc -l) == 5)) || fail "a folder of texts"
! grep -q '"z"' folder-run/tokenizer.json || fail "a file that is not .txt was read"
pgpt train "${TINY[@]}" --out builtin
pgpt train "${TINY[@]}" --data builtin --out builtin-named
same_model builtin builtin-named

for kind in byte char word; do
    pgpt train "${TINY[@]}" --data story.txt --tokenizer $kind --sample-tokens 20 --out $kind
    grep -q "($kind)" err || fail "does not say which tokenizer"
    [[ -s out ]] || fail "no sample with $kind"
    pgpt generate $kind --prompt 'The fox' --tokens 5
    [[ $(cat out) == "The fox"* ]] || fail "$kind does not give its prompt back: $(cat out)"
done
pgpt train "${TINY[@]}" --data story.txt --tokenizer byte --json --out bytes
[[ $(tail -n 1 out | field parameters) == $(((256 + 16) * 16 + 16 * 16 * 12 + 16 * 13 + 2 * 16)) ]] ||
    fail "parameters with 256 symbols: $(tail -n 1 out)"

# Few words, the rest unknown; a larger vocabulary than the text has.
pgpt train "${TINY[@]}" --data story.txt --tokenizer word --max-vocab 10 --out few
grep -q ' 10 symbols (word)' err || fail "--max-vocab 10: $(cat err)"
pgpt train "${TINY[@]}" --data story.txt --vocab 64 --sample-tokens 50 --out large
pgpt generate large --tokens 100

# Exactly one window each for training and evaluation.
head -c 34 story.txt >shortest.txt
pgpt train "${TINY[@]}" --data shortest.txt --validation 0.5 --out shortest
[[ -n $(column shortest val_loss) ]] || fail "no evaluation of the shortest text"
head -c 17 story.txt >one.txt
pgpt train "${TINY[@]}" --data one.txt --validation 0 --out one
