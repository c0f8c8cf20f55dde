#!/bin/bash
# More memory than there is: refused before anything is made, with what would fit; and what is advised is taken.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# So many sequences that no machine has the memory; a micro-batch of a few of them fits anywhere.
huge=(--layers 2 --heads 2 --channels 32 --context 64 --tokenizer char --sample-tokens 0 --out run --batch 16777216)
refused '/needs .*iB \(.*activations\), .*are free; what would fit: --micro-batch [0-9]+ \(.*iB\)/' train "${huge[@]}"
refused '/--micro-batch [0-9]+ --recompute 1 \(.*iB\)/' train "${huge[@]}"
refused '/alone take .*iB at the least: use a smaller --model/' train --model gpt3-175b --batch 512 --out run
refused '/what would fit: --batch [0-9]+ \(/' train "${huge[@]}" --eager-update --clip 0
refused '/iB are free: what would fit: --micro-batch [0-9]+ \(/' bench step "${huge[@]:0:8}" --batch 16777216

# The advice by itself: taken, the plan needs what was said, which is there; twice as much at a time would not be.
"$PGPT" train "${huge[@]}" >out 2>err </dev/null && fail "16777216 sequences at once are said to fit"
advice=$(grep -o 'what would fit: --micro-batch [0-9]*' err | grep -o '[0-9]*$')
((advice >= 1 && 16777216 % advice == 0)) || fail "a micro-batch of $advice does not divide the batch"
in_bytes() { sed 's/ \([KMGT]i\)B.*/\1/' | numfmt --from=iec-i; }
usable=$(grep -o '[0-9.]* [KMGT]iB are free' err | in_bytes)
said=$(grep -o 'what would fit: --micro-batch [0-9]* ([^)]*' err | sed 's/.*(//' | in_bytes)
for times in 1 2; do
    pgpt train "${huge[@]}" --micro-batch $((times * advice)) --print-program
    peak[times]=$(sed -n 's/^ *peak *\([0-9]*\) bytes.*/\1/p' out)
done
awk "BEGIN { exit !(${peak[1]} <= 1.01 * $usable && ${peak[2]} > 0.99 * $usable && ${peak[1]} < 1.01 * $said && ${peak[1]} > 0.99 * $said) }" ||
    fail "$usable are free; $advice at a time was said to take $said, and takes ${peak[1]}; twice as many take ${peak[2]}"
