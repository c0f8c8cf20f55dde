#!/bin/bash
# An error in JSON under a launcher: one rank writes it, whether all of them know of the error or only one.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

# wrong CODE PATTERN N WORDS...
wrong() {
    local code=0 wanted=$1 pattern=$2 n=$3
    shift 3
    ranks_apart "$n" "$@" || code=$?
    ((code == wanted)) || depth=1 fail "exit $code, not $wanted: $n ranks, pgpt $* -- $(cat "$SCRATCH"/err.*)"
    (($(cat "$SCRATCH"/out.* | grep -c '"error":') == 1)) || depth=1 fail "not one error: $(cat "$SCRATCH"/out.*)"
    grep -h '"error":' "$SCRATCH"/out.* | depth=1 check_json
    grep -h '"error":' "$SCRATCH"/out.* | grep -Eq -e "$pattern.*\"exit_code\":$wanted}" ||
        depth=1 fail "no '$pattern': $(cat "$SCRATCH"/out.*)"
}

wrong 2 'unknown command' 3 nosuch --json
wrong 2 'unknown option --wrong' 3 train --wrong 3 --json
wrong 2 'no study' 2 lab nosuch --json
wrong 2 'runs in one process' 2 convert --json
wrong 2 'nowhere' 2 generate nowhere --json
wrong 2 '--data is missing' 2 eval nowhere --json
wrong 2 'missing.txt' 3 train --json --data missing.txt
wrong 1 'do not train as one process does' 2 verify --json --break 1 --steps 2 --threads 1
tail -n 1 "$SCRATCH/out.0" | grep -q '"differ":[1-9]' || fail "the result is gone: $(tail -n 1 "$SCRATCH/out.0")"

# On one rank alone, in the middle of the run: that rank writes it, with its number.
wrong 1 'rank 1 on ' 2 train "${TINY[@]}" --steps 30 --json --quiet --fault error:1:3 --out failed

# Ended by the watchdog, since nothing moves.
code=0
ranks_apart 2 train "${TINY[@]}" --steps 30 --json --quiet --fault hang:1:3 --hang-timeout 1 --out hung || code=$?
((code != 0)) || fail "a rank that hangs goes unnoticed"
(($(cat "$SCRATCH"/out.* | grep -c '"error":.*"exit_code":1}') == 1)) || fail "not one error: $(cat "$SCRATCH"/{out,err}.*)"
