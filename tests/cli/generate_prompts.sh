#!/bin/bash
# pgpt generate: prompts from a file, several rows at a time, and samples in a file.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --tokenizer char --channels 32 --steps 100 --out run

# Shorter and longer than each other and than the context of 16; empty lines and Windows' line ends do not count.
prompts=('The cat' 'A' 'Once upon a time there was a little girl' 'Tom said' 'The cat' ' and')
printf 'The cat\n\nA\r\nOnce upon a time there was a little girl\nTom said\n   \nThe cat\n and' >prompts.txt
i=0
for prompt in "${prompts[@]}"; do
    pgpt generate run --prompt "$prompt" --tokens 50 --temperature 0
    cp out greedy$((++i))
    pgpt generate run --prompt "$prompt" --tokens 50 --seed 5 --samples 2 --json
    tail -n 1 out | grep -o '"text":"[^"]*"' >>sampled
done

# Each prompt gives what it gives alone, in the order of the file, whatever the rows.
for ((k = 1; k <= 6; k++)); do
    echo "--- prompt $k of 6 ---"
    cat greedy$k
done >want
for rows in 1 2 3 4 6 0 100; do
    pgpt generate run --prompts prompts.txt --rows $rows --tokens 50 --temperature 0
    cmp -s out want || fail "rows $rows: $(diff out want)"
    grep -q 'warning.*1 of 6 prompts.*prompts.txt:4' err || fail "no warning: $(cat err)"
    pgpt generate run --prompts prompts.txt --rows $rows --tokens 50 --seed 5 --samples 2 --json
    tail -n 1 out | check_json
    tail -n 1 out | grep -o '"text":"[^"]*"' | cmp -s - sampled || fail "rows $rows: other samples"
    [[ $(tail -n 1 out | field tokens) == 600 ]] || fail "tokens: $(tail -n 1 out | field tokens)"
done
grep -qx -e '--- prompt 3 of 6, sample 2 of 2 ---' out || fail "no heading: $(cat out)"
"$PGPT" generate run --prompts - --tokens 50 --temperature 0 <prompts.txt >out 2>err || fail "standard input"
cmp -s out want || fail "other texts from standard input"

# Stop strings end rows at different times, and the next prompts take their places.
pgpt generate run --prompts prompts.txt --rows 6 --tokens 50 --temperature 0 --stop ' |e' --json
cp out stopped
pgpt generate run --prompts prompts.txt --rows 2 --tokens 50 --temperature 0 --stop ' |e' --json
cmp -s <(head -n -1 out) <(head -n -1 stopped) || fail "stop strings and rows: $(diff out stopped)"

# JSON lines in, with what lines cannot hold; JSON lines out.
cat >prompts.jsonl <<'LINES'
{"prompt": "The cat"}
{"id": 7, "prompt": "Tom said\nA"}

{"prompt": ""}
LINES
pgpt generate run --prompts prompts.jsonl --tokens 5 --output samples.jsonl --log-probs
[[ ! -s out ]] || fail "samples on standard output too: $(cat out)"
(($(wc -l <samples.jsonl) == 3)) || fail "not three lines: $(cat samples.jsonl)"
while read -r line; do check_json <<<"$line"; done <samples.jsonl
[[ $(sed -n 2p samples.jsonl | field prompt) == 'Tom said\nA' ]] || fail "prompt: $(sed -n 2p samples.jsonl)"
[[ $(sed -n 3p samples.jsonl | field prompt_index) == 2 ]] || fail "index: $(sed -n 3p samples.jsonl)"
pgpt generate run --prompt 'The cat' --tokens 5 --json
[[ $(tail -n 1 out | field text) == "$(sed -n 1p samples.jsonl | sed 's/,"log_probabilities.*//' | field text)" ]] ||
    fail "another text: $(cat out)"
cp samples.jsonl before
pgpt generate run --prompts prompts.jsonl --tokens 5 --output samples.jsonl --log-probs --rows 1 --json --quiet
[[ $(wc -l <out) == 1 && ! -s err ]] || fail "not one line: $(cat out err)"
without_numbers() { sed 's/"[a-z_]*log_probability":[^,}]*//g' "$1"; } # their last digits depend on the rows
cmp -s <(without_numbers before) <(without_numbers samples.jsonl) || fail "not the same again"

# Bad input.
: >empty.txt
refused '/empty.txt.*empty/' generate run --prompts empty.txt
printf '\n \n' >blank.txt
refused '/blank.txt.*empty lines/' generate run --prompts blank.txt
refused '/nowhere.txt/' generate run --prompts nowhere.txt
refused '/folder/' generate run --prompts run
refused '/--prompts/' generate run --prompts ''
printf 'The cat\n\nna\303\257ve\n' >naive.txt
refused '/naive.txt:3:.*unknown character/' generate run --prompts naive.txt
printf '{"prompt": "The"}\n{"prompt": 3}\n' >number.jsonl
refused "/number.jsonl:2: field 'prompt' wants a text/" generate run --prompts number.jsonl
printf '{"prompt": "The"}\n{"text": "The"}\n' >other.jsonl
refused "/other.jsonl:2: field 'prompt' is missing/" generate run --prompts other.jsonl
printf '{"prompt": "The"\n' >broken.jsonl
refused '/broken.jsonl:1: not valid JSON/' generate run --prompts broken.jsonl
refused '/--prompts/' generate run --prompts prompts.txt --prompt The
refused '/--rows/' generate run --rows -1
refused '/--output/' generate run --output ''
refused '/nowhere/' generate run --prompt The --output nowhere/samples.jsonl
refused '/folder/' generate run --prompt The --output run
