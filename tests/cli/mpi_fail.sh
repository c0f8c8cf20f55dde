#!/bin/bash
# Communication that fails on one rank, sooner or later: that rank says so, once the run has begun with the instruction, and
# the others do not wait for it.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"
command -v "${CC:-cc}" >/dev/null || skip "there is no C compiler"

# A library before MPI's: on rank 1 the FAIL_AFTER-th look at a message, and every later one, fails.
cat >fail.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int MPI_Testall(int n, void *requests, int *flag, void *statuses);
int MPI_Testall(int n, void *requests, int *flag, void *statuses) {
    static int n_calls;
    static int (*real)(int, void *, int *, void *);
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    const char *after = getenv("FAIL_AFTER");
    if (rank && after && atoi(rank) == 1 && ++n_calls > atoi(after)) return 15;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "MPI_Testall");
    return real(n, requests, flag, statuses);
}
END
"${CC:-cc}" -shared -fPIC -o fail.so fail.c -ldl

# Until it is told otherwise, the run goes on for ever.
run=(train --model nano --layers 1 --heads 2 --channels 32 --context 16 --batch 6 --steps 1000000 --eval-every 0
    --sample-tokens 0 --quiet --threads 1)

n_instructions=0
# fails_after N STAGE: with the N-th look.
fails_after() {
    local code=0
    export FAIL_AFTER=$1 VIEW="export LD_PRELOAD=$PWD/fail.so"
    ranks_apart 3 "${run[@]}" --zero "$2" --save-every 100 --keep 1 --out "run-$2-$1" || code=$?
    what="zero $2, after $1: exit $code, $(cat "$SCRATCH"/err.* | head -c 600)"
    ((code != 0 && code != 124 && code != 137)) || depth=1 fail "did not end by itself: $what"
    (($(grep -c '^pgpt: rank 1 on ' "$SCRATCH/err.1") == 1)) || depth=1 fail "rank 1 did not say so, once: $what"
    ! grep -q '^pgpt:' "$SCRATCH/err.0" "$SCRATCH/err.2" || depth=1 fail "another rank spoke too: $what"
    n_instructions=$((n_instructions + $(grep -c ': instruction [0-9]* (' "$SCRATCH/err.1" || true)))
}

for zero in 0 1 3; do
    for after in 1 40 100 400 3000; do fails_after $after $zero; done
done
# How many looks a step takes depends on the library's haste.
for after in 5000 7000 9000 11000 13000 17000 23000 30000 41000 55000 77000 100000 140000 200000 300000 500000; do
    ((n_instructions > 0)) || fails_after $after 1
done
((n_instructions > 0)) || fail "no failure was in an instruction, or none was named"
