#!/bin/bash
# Standard input reaches the first rank only, under most launchers.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..40}; do echo "The fox number $i runs, and the hen sits; it is late."; done >story.txt
code=0
timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" train "${TINY[@]}" --data - --out run <story.txt >out 2>err || code=$?
((code != 0)) || fail "two ranks read standard input"
grep -q 'standard input (--data -) reaches rank 0 only' err || fail "does not say why: $(cat err)"
[[ ! -e run ]] || fail "left a run behind"
code=0
timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" 1 "$PGPT" train "${TINY[@]}" --data - --out run <story.txt >out 2>err || code=$?
((code == 0)) || fail "one rank: $(cat err)"

# Where every rank has it, it is read by every rank.
VIEW="exec <$PWD/story.txt" ranks_apart 2 train "${TINY[@]}" --data - --out both || fail "$(cat "$SCRATCH"/err.*)"
pgpt train "${TINY[@]}" --data story.txt --out alone
close_numbers 1e-3 "$(column both loss)" "$(column alone loss)"
# Where nobody has any, that is what is wrong.
ranks_refused '/(rank 0 on [^ ]*: )?standard input is empty/' 2 train "${TINY[@]}" --data - --out none
