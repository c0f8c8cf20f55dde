#!/bin/bash
# What only one rank sees, and what leaves the training alone, ends all of them after they have saved together: a signal that comes more
# than once, metrics that cannot be written, a log that nobody reads.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

export OMP_NUM_THREADS=1
long=(train "${TINY[@]}" --tokenizer byte --steps 100000000 --eval-every 0 --log-every 1000)

has_saved() {
    (($(find "$1/checkpoints" -maxdepth 1 -name 'step-????????' 2>/dev/null | wc -l) == 1)) ||
        depth=1 fail "$1 is not saved: $(find "$1") $(cat "$SCRATCH"/err.*)"
    [[ -z $(find "$1" -name '*.tmp.*') ]] || depth=1 fail "left behind: $(find "$1")"
}

ways=("--zero 3" "--sync push" "--sync server")
for i in "${!ways[@]}"; do
    read -ra way <<<"${ways[i]}"
    # Metrics that cannot be written, of rank 0.
    code=0
    VIEW='((rank > 0)) || ulimit -f 200' limit=60 ranks_apart 2 "${long[@]}" "${way[@]}" --out "limited-$i" || code=$?
    ((code == 2)) || fail "${way[*]}: exit $code: $(cat "$SCRATCH"/err.* "$SCRATCH/launcher")"
    has_saved "limited-$i"
    tail -n 1 "$SCRATCH/err.0" | grep -q '^pgpt: stopped after step .* and saved .*metrics.jsonl.*ulimit -f' ||
        fail "${way[*]}: not said: $(cat "$SCRATCH"/err.*)"
    [[ ! -s $SCRATCH/err.1 ]] || fail "${way[*]}: rank 1 speaks too: $(cat "$SCRATCH/err.1")"
done
ranks 2 train --resume limited-0 --steps "$(($(find limited-0/checkpoints -name 'step-*' | sed 's/.*-0*//') + 5))"

# Nobody reads what rank 0 says.
code=0
VIEW='((rank > 0)) || exec 2> >(head -n 1 >&/dev/null)' limit=60 ranks_apart 2 "${long[@]}" --log-every 1 --out unread || code=$?
((code == 1)) || fail "exit $code with a broken pipe: $(cat "$SCRATCH"/err.* "$SCRATCH/launcher")"
has_saved unread

# A signal to one of them, twice in a row; and to all of them.
for who in 1 "0 1"; do
    rm -rf told
    limit=60 ranks_apart 2 "${long[@]}" --out told &
    launcher=$!
    until [[ -s told/metrics.jsonl ]] && (($(wc -l <told/metrics.jsonl) > 5)); do sleep 0.02; done
    for signal in TERM HUP TERM; do
        for rank in $who; do kill -$signal "$(<"$SCRATCH/pid.$rank")" 2>/dev/null || true; done
    done
    code=0
    wait $launcher || code=$?
    ((code == 0)) || fail "exit $code after signals to $who: $(cat "$SCRATCH"/err.* "$SCRATCH/launcher")"
    has_saved told
done

# A launcher that was told to stop ends ranks that take their time: what is saved by then is no failure, and nobody calls it one.
command -v "${CC:-cc}" >/dev/null || exit 0
cat >slow.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int MPI_Finalize(void);
int MPI_Finalize(void) {
    sleep(3);
    return ((int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize"))();
}
END
"${CC:-cc}" -shared -fPIC -o slow.so slow.c -ldl
unset OMPI_MCA_odls_base_sigkill_timeout # those that are left have a second
VIEW="export LD_PRELOAD=$PWD/slow.so" limit=60 ranks_apart 2 "${long[@]}" --out ended &
launcher=$!
until [[ -s ended/metrics.jsonl ]]; do sleep 0.02; done
kill -TERM "$(<"$SCRATCH/pid.0")" "$(<"$SCRATCH/pid.1")"
until grep -q 'stopped after step .* and saved' "$SCRATCH/err.0" || ! kill -0 $launcher 2>/dev/null; do sleep 0.02; done
sleep 0.2
kill -KILL "$(<"$SCRATCH/pid.0")"
wait $launcher || true
has_saved ended
! grep -q 'is gone' "$SCRATCH"/err.* || fail "a run that was saved is called a failure: $(cat "$SCRATCH"/err.*)"
