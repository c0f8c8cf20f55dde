#!/bin/bash
# pgpt generate.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --tokenizer char --out run
pgpt train "${TINY[@]}" --tokenizer word --out words

# The prompt, then as many tokens as were asked for: of characters, one byte each.
pgpt generate run --prompt 'The cat' --tokens 20
[[ $(head -c 7 out) == "The cat" ]] || fail "no prompt: $(cat out)"
(($(head -c -1 out | wc -c) == 27 || $(wc -c <out) == 27)) || fail "$(wc -c <out) bytes for 27 characters and a line end"
cp out first
pgpt generate run --prompt 'The cat' --tokens 20
cmp -s out first || fail "the same seed gives another text"
pgpt generate run --prompt 'The cat' --tokens 20 --no-stream --threads 2
cmp -s out first || fail "without --stream it is another text"
pgpt generate run --prompt 'The cat' --tokens 20 --seed 2
! cmp -s out first || fail "another seed gives the same text"
printf 'The cat\n' | "$PGPT" generate run --tokens 20 >out || fail "prompt on standard input"
cmp -s out first || fail "the prompt from standard input gives another text"
printf 'The cat' | "$PGPT" generate run --prompt - --tokens 20 >out || fail "--prompt -"
cmp -s out first || fail "--prompt - gives another text"

# Greedy: no luck in it.
pgpt generate run --prompt 'The' --tokens 20 --temperature 0 --seed 1
cp out greedy
pgpt generate run --prompt 'The' --tokens 20 --top-k 1 --seed 7
cmp -s out greedy || fail "top-k 1 is not greedy"
pgpt generate run --prompt 'The' --tokens 20 --temperature 0 --seed 9
cmp -s out greedy || fail "greedy depends on the seed"

# Without the KV cache every token reads the text again: 3 + 4 + ... + 12 tokens instead of 12, and the same text.
pgpt generate run --prompt 'The' --tokens 10 --temperature 0 --json
cp out cached
pgpt generate run --prompt 'The' --tokens 10 --temperature 0 --no-cache --json
[[ $(head -n 1 out) == "$(head -n 1 cached)" ]] || fail "without the cache it is another text: $(cat out)"
[[ $(tail -n 1 cached | field tokens_read) == 12 && $(tail -n 1 out | field tokens_read) == 75 ]] ||
    fail "read $(tail -n 1 cached | field tokens_read) and $(tail -n 1 out | field tokens_read) tokens"

# Far beyond the context of 16, as long as asked; and a prompt that is longer than it.
pgpt generate run --prompt 'The' --tokens 200 --json
[[ $(tail -n 1 out | field tokens) == 200 ]] || fail "not 200 tokens: $(tail -n 1 out)"
pgpt generate run --prompt "$(printf 'The cat sat. %.0s' {1..50})" --tokens 10 --json
[[ $(tail -n 1 out | field prompt_tokens) == 650 ]] || fail "prompt: $(tail -n 1 out)"
# Generation up to the context does not depend on what comes after.
pgpt generate run --prompt 'The' --tokens 10
head -c 13 out >short
pgpt generate run --prompt 'The' --tokens 60
head -c 13 out | cmp -s - short || fail "a longer text begins differently"

# Several at once are different texts, the first of them the one that comes alone.
pgpt generate run --prompt 'The cat' --tokens 20 --samples 3 --json
[[ $(grep -c '^--- sample [123] of 3 ---$' out) == 3 ]] || fail "not three samples: $(cat out)"
tail -n 1 out | check_json
(($(tail -n 1 out | grep -o '"log_probability"' | wc -l) == 3)) || fail "not three samples in JSON"
(($(tail -n 1 out | grep -o '"text":"[^"]*"' | sort -u | wc -l) >= 2)) || fail "the samples are the same"
pgpt generate run --samples 40 --tokens 3

pgpt generate run --tokens 5 --json
tail -n 1 out | check_json
for key in command checkpoint step prompt_tokens samples tokens seconds tokens_per_s peak_bytes; do
    [[ -n $(tail -n 1 out | field $key) ]] || fail "no $key"
done
pgpt generate words --prompt 'The unheardof fox' --tokens 5
pgpt generate run/checkpoints --tokens 2
pgpt generate run --checkpoint best --tokens 2

# Bad input.
refused '/unknown character.*é/' generate run --prompt 'é'
printf 'na\303\257ve' >naive
input=naive refused '/standard input.*unknown character/' generate run
refused '/missing.*pgpt train/' generate missing
refused '/runs.latest/' generate
mkdir empty
refused generate empty
refused generate naive
refused generate run extra
refused '/--tokens/' generate run --tokens 0
refused '/--tokens/' generate run --tokens -1
refused '/--samples/' generate run --samples 0
refused '/--temperature/' generate run --temperature nan
refused '/--temperature/' generate run --temperature -1
refused '/--top-p/' generate run --top-p 0
refused '/--top-p/' generate run --top-p 1.5
refused '/--tokens/' generate run --token 3
cp -r run broken
truncate -s 100 broken/checkpoints/*/model.safetensors
refused generate broken
cp -r run swapped
cp words/tokenizer.json swapped/
refused '/tokenizer/' generate swapped
rm swapped/tokenizer.json
refused '/tokenizer.json/' generate swapped
