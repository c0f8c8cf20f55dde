#!/bin/bash
# pgpt generate: stop strings, the repetition penalty and log-probabilities.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --tokenizer char --steps 30 --out run

# The text up to where the stop string first stands, on the screen too: what was shown cannot be taken back.
pgpt generate run --prompt 'The cat' --tokens 60 --seed 3
whole=$(cat out)
text=${whole#The cat}
for at in 0 5 20; do
    stop=${text:at:3}
    want="The cat${text%%"$stop"*}"
    escaped=${stop//\\/\\\\} escaped=${escaped//|/\\|} escaped=${escaped//$'\n'/\\n}
    for way in --stream --no-stream; do
        pgpt generate run --prompt 'The cat' --tokens 60 --seed 3 --stop "$escaped" $way --json
        [[ $(head -n -1 out) == "$(printf '%s\n' "$want")" ]] || fail "stop '$stop': $(cat out), wanted: $want"
        [[ $(tail -n 1 out | field end) == stop ]] || fail "end: $(tail -n 1 out)"
    done
done
# One that never comes changes nothing, nor does one that is about to come when the tokens end.
pgpt generate run --prompt 'The cat' --tokens 60 --seed 3 --stop '\n\n\n\n|zzzzzz' --json
[[ $(head -n -1 out) == "$whole" ]] || fail "a stop string that is not there: $(cat out)"
[[ $(tail -n 1 out | field end) == length ]] || fail "end: $(tail -n 1 out)"
pgpt generate run --prompt 'The cat' --tokens 60 --seed 3 --stop "${text: -1}zzzz"
[[ $(cat out) == "$whole" ]] || fail "held back for ever: $(cat out)"
# The prompt's own text does not count, and the first of several does.
pgpt generate run --prompt 'The cat' --tokens 60 --seed 3 --stop 'cat' --json
[[ $(tail -n 1 out | field tokens) -gt 0 ]] || fail "stopped in the prompt"
pgpt generate run --prompt 'The cat' --tokens 60 --seed 3 --stop "zzzz|${text:0:1}" --json
[[ $(tail -n 1 out | field text) == "" && $(tail -n 1 out | field tokens) == 1 ]] || fail "not at once: $(cat out)"

# Tokens that are parts of characters.
for ((i = 0; i < 300; i++)); do echo "naïve café €€ a $((i % 7))"; done >accents.txt
pgpt train "${TINY[@]}" --data accents.txt --tokenizer byte --steps 150 --lr 0.01 --out bytes
pgpt generate bytes --prompt 'na' --tokens 60 --temperature 0
whole=$(cat out)
for stop in ï 'é €' €€; do
    [[ $whole == *"$stop"* ]] || fail "the model did not learn '$stop': $whole"
    pgpt generate bytes --prompt 'na' --tokens 60 --temperature 0 --stop "$stop"
    [[ $(cat out) == "${whole%%"$stop"*}" ]] || fail "stop '$stop': $(cat out) of $whole"
done

# A text that the model ends: [EOS] is no part of it.
pgpt train "${TINY[@]}" --tokenizer word --steps 30 --out words
pgpt generate words --prompt 'The cat' --tokens 3000 --temperature 100 --top-k 0 --stop-at-end --json
[[ $(tail -n 1 out | field end) == end_of_text ]] || fail "end: $(tail -n 1 out)"
[[ $(tail -n 1 out | field tokens) -lt 3000 ]] || fail "all tokens: $(tail -n 1 out)"

# Log-probabilities: one for each token; the sum is theirs; parts of characters do not break the JSON.
pgpt generate bytes --prompt 'na' --tokens 12 --temperature 0 --log-probs --json
tail -n 1 out | check_json
list=$(tail -n 1 out | grep -o '{"token":[0-9]*,"text":"[^}]*}')
(($(wc -l <<<"$list") == 12)) || fail "not 12 tokens: $(tail -n 1 out)"
sum=$(field log_probability <<<"$list" | awk '{ sum += $1 } END { print sum }')
close_numbers 1e-4 "$sum" "$(tail -n 1 out | sed 's/.*"tokens":12,"log_probability":\([^,]*\),.*/\1/')"
close_numbers 1e-4 "$(awk -v sum="$sum" 'BEGIN { print sum / 12 }')" "$(tail -n 1 out | field mean_log_probability)"
grep -q $'{"token":195,"text":"\xEF\xBF\xBD"' <<<"$list" || fail "no part of a character: $list"
refused '/--json/' generate run --log-probs

# The penalty: 1 is none; with a high one nothing is said twice while anything else has a logit above 0.
pgpt generate run --prompt 'The' --tokens 20 --temperature 0
cp out plain
pgpt generate run --prompt 'The' --tokens 20 --temperature 0 --repetition-penalty 1
cmp -s out plain || fail "a penalty of 1 changes the text"
pgpt generate run --prompt 'The' --tokens 8 --temperature 0 --repetition-penalty 1000 --log-probs --json
(($(tail -n 1 out | grep -o '"token":[0-9]*' | sort -u | wc -l) == 8)) || fail "repeats itself: $(cat out)"
pgpt generate run --prompt 'The' --tokens 40 --temperature 0 --repetition-penalty 1000 --repetition-window 2 \
    --log-probs --json
tail -n 1 out | grep -o '"token":[0-9]*' | awk '$0 == a || $0 == b { exit 1 } { a = b; b = $0 }' ||
    fail "repeats within the window: $(cat out)"
(($(tail -n 1 out | grep -o '"token":[0-9]*' | sort -u | wc -l) < 40)) || fail "repeats nothing: $(cat out)"

# Bad input.
refused '/--stop.*empty/' generate run --stop ''
refused '/--stop.*2 is empty/' generate run --stop 'a|'
refused '/--stop.*\\x/' generate run --stop '\x41'
refused '/--stop.*backslash/' generate run --stop "a\\"
refused '/--repetition-penalty/' generate run --repetition-penalty 0
refused '/--repetition-penalty/' generate run --repetition-penalty -2
refused '/--repetition-penalty/' generate run --repetition-penalty nan
refused '/--repetition-penalty/' generate run --repetition-penalty 1e9
refused '/--repetition-window/' generate run --repetition-penalty 1.2 --repetition-window -1
refused '/--repetition-penalty/' generate run --repetition-window 8
