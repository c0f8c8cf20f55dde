#!/bin/bash
# With --json the last line of stdout is one JSON object, also when something is wrong: {"error": ..., "exit_code": ...}, once.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# wrong CODE PATTERN WORDS...
wrong() {
    local code=0 wanted=$1 pattern=$2
    shift 2
    timeout -s KILL 30 "$PGPT" "$@" >out 2>err </dev/null || code=$?
    ((code == wanted)) || depth=1 fail "exit $code, not $wanted: pgpt $* -- $(head -c 500 err)"
    tail -n 1 out | depth=1 check_json
    [[ $(tail -n 1 out | field exit_code) == "$wanted" ]] || depth=1 fail "exit_code: $(tail -n 1 out)"
    (($(grep -c '"error":' out) == 1)) || depth=1 fail "not one error: $(cat out)"
    tail -n 1 out | grep -Eq -e "$pattern" || depth=1 fail "no '$pattern': $(tail -n 1 out)"
    iconv -f UTF-8 -t UTF-8 out >/dev/null || depth=1 fail "not UTF-8"
    [[ $(head -c 6 err) == "pgpt: " ]] || depth=1 fail "the message is gone from stderr"
}

wrong 2 'unknown command .nosuch' nosuch --json
wrong 2 'no study .nosuch' lab nosuch --json
wrong 2 'wants STUDY before --json' lab --json
wrong 2 nosuch data nosuch --json
wrong 2 nosuch bench nosuch --json
wrong 2 '--json means nothing' data decode --tokenizer byte --json
for command in train generate eval 'convert a b' 'data encode x' verify bench supervise 'lab linear' 'lab table' 'lab scaling' \
    'lab collectives' 'lab staleness' 'lab timeline x'; do
    # shellcheck disable=SC2086 # words
    wrong 2 'unknown option --wrong' $command --wrong=3 --json
done
wrong 2 'unknown option --wrong' train --json --wrong 3
wrong 2 missing.txt train --data missing.txt --json=yes
wrong 2 missing train --json missing.ini
wrong 2 'missing' generate missing --json
wrong 2 'missing' eval missing --data x --json
wrong 2 'missing' convert missing x --json
wrong 2 'missing' data inspect missing --json
wrong 2 'missing' data encode $'missing\xff\e' --tokenizer byte --json
wrong 2 'missing' lab timeline missing --json
wrong 2 'no job' supervise --json
wrong 1 'job was not done' supervise --json --quiet --restarts 0 -- false --out x
[[ $(field job_exit_code <out) == 1 ]] || fail "the job's own exit code is gone: $(cat out)"

# Who did not ask gets none.
for words in 'train --wrong' 'train --json --no-json --wrong' 'train --json=off --wrong' 'supervise -- --json'; do
    # shellcheck disable=SC2086
    refused $words
done

# What only shows something says which command did.
for words in 'train --print-program' 'train --print-mesh' 'plan --machine a100 --print-machine' 'plan --machine cpu'; do
    # shellcheck disable=SC2086
    pgpt $words --json
    tail -n 1 out | check_json
    [[ $(tail -n 1 out | field command) == "${words%% *}" ]] || fail "$words: $(tail -n 1 out)"
done

# What succeeded, or was interrupted, is no error.
pgpt train "${TINY[@]}" --json --out run
! grep -q '"error"' out || fail "an error of a good run: $(cat out)"
pgpt supervise --json -- true --out run
[[ $(field exit_code <out) == 0 && $(field job_exit_code <out) == 0 ]] || fail "supervise: $(cat out)"
"$PGPT" train "${TINY[@]}" --steps 1000000 --json --quiet --out stopped >out 2>err &
job=$!
for ((i = 0; i < 200; i++)); do
    [[ -s stopped/metrics.jsonl ]] && break
    sleep 0.05
done
kill -TERM "$job"
wait "$job" || fail "an interrupted run failed: $(cat err)"
! grep -q '"error"' out || fail "an interrupted run is an error: $(cat out)"

# A stdout that cannot be written to is an error; one that is closed is not taken over by some file.
fails() {
    local code=0
    "$@" 2>err </dev/null || code=$?
    [[ $code == 1 && $(tail -n 1 err) == "pgpt: cannot write "* ]] || depth=1 fail "exit $code from $*: $(cat err)"
}
commands=('--help' '--version' man 'train --help' 'train --print-mesh' 'lab' 'generate run --tokens 3' 'generate run --tokens 3 --json'
    'data encode text --tokenizer byte' 'data encode text --tokenizer byte --json' 'verify --steps 1 --threads 1' 'eval run --data text'
    'supervise --json -- true --out run')
printf 'the cat sat on the mat %.0s' {1..20} >text
pgpt train "${TINY[@]}" --data text --out run2
rm -r run
mv run2 run
for words in "${commands[@]}"; do
    # shellcheck disable=SC2086
    [[ ! -w /dev/full ]] || fails "$PGPT" $words >/dev/full
done
for words in --version 'generate run --tokens 3' 'data encode text --tokenizer byte --json'; do
    # shellcheck disable=SC2086
    fails "$PGPT" $words >&-
done
code=0
"$PGPT" train "${TINY[@]}" --sample-tokens 5 --out closed >&- 2>err </dev/null || code=$?
[[ $code == 1 && $(tail -n 1 err) == "pgpt: cannot write"* ]] || fail "exit $code with a closed stdout: $(cat err)"
pgpt generate closed --tokens 5 # it was saved all the same
"$PGPT" train "${TINY[@]}" --out mute >out 2>&- </dev/null || fail "a closed stderr is the caller's wish"
LANG=C LC_ALL=C "$PGPT" train --data 'ä' 2>err && fail "there is no ä"
grep -q "'ä'" err || fail "a name in UTF-8 under LANG=C: $(cat err)"
