#!/bin/bash
# SIGKILL while optimizer state, and in two runs of three weights and gradients, are in a file: at random moments and while a checkpoint is being written, of one process and of one or
# both of two ranks that share the state (ZeRO 1). The same words go on, and the last checkpoint has the bits of a run that offloads
# nothing and was left in peace. Nothing is left in the folder.
#
#   OFFLOAD_KILLS=20 ctest --preset release -R cli_mpi_offload_kill -V      so many kills; 3 where nothing is said, LONG=1: 12
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

wanted=3
! is_long || wanted=12
wanted=${OFFLOAD_KILLS:-$wanted}
options=("${TINY[@]}" --layers 3 --channels 48 --batch 4 --dropout 0.1 --lr 0.01 --steps 90 --save-every 2 --keep 3 --eval-every 0
    --hang-timeout 20)
last=checkpoints/step-00000090
mkdir disk

now() { date +%s%3N; }

# start_ranks N WORDS...: in the background; the launcher's process is $process, those of ranks are in $SCRATCH/pid.*.
start_ranks() {
    local n=$1
    shift
    rm -f "$SCRATCH"/{out,err,pid}.*
    timeout -k 5 120 "$MPIEXEC" "$MPIEXEC_N" "$n" "$SCRATCH/as-rank" train "$@" >"$SCRATCH/launcher" 2>&1 </dev/null &
    process=$!
}

# until_it CONDITION...: or the run is over.
until_it() {
    while kill -0 $process 2>/dev/null && ! "$@"; do sleep 0.01; done
}
has_begun() { (($(find "$SCRATCH" -maxdepth 1 -name 'pid.*' -size +0 | wc -l) == n)) && [[ -s $run/metrics.jsonl ]]; }
is_saving() { [[ -n $(find $run/checkpoints -name '*.tmp.*' 2>/dev/null) ]]; }

declare -A whole_ms
for n in 1 2; do
    start=$(now)
    ranks $n train "${options[@]}" --zero $((n - 1)) --out whole$n
    whole_ms[$n]=$(($(now) - start))
done

run=killed n_kills=0 n_in_save=0 n_both=0 n_runs=0 n_misses=0
while ((n_kills < wanted)); do
    n=$((2 - n_runs % 2)) io=$( ((n_runs % 4 < 2)) && echo auto || echo threads)
    away=optimizer:file=disk
    ((n_runs % 3 == 0)) || away+=,weights:file=disk,gradients:file=disk
    words=("${options[@]}" --zero $((n - 1)) --out "$run" --resume auto --offload "$away" --offload-bucket-mb 0.01 --offload-io "$io")
    rm -rf $run
    for ((kills = 0; kills < 2 && n_kills < wanted; kills++)); do
        start_ranks $n "${words[@]}"
        until_it has_begun
        if ((kills % 2)); then
            sleep "0.0$((RANDOM % 10))"
            until_it is_saving
        else
            sleep "$(printf '0.%03d' $(((RANDOM % (whole_ms[$n] / 2 + 1)) % 1000)))"
        fi
        ! is_saving || saving=1
        mapfile -t victims < <(cat "$SCRATCH"/pid.* 2>/dev/null)
        struck=("${victims[@]:RANDOM % n:1}")
        ((RANDOM % 2)) || struck=("${victims[@]}")
        ! kill -KILL "${struck[@]}" 2>/dev/null || has_hit=1
        code=0
        wait $process || code=$?
        if ((code == 0)); then # it was faster
            n_misses=$((n_misses + 1))
            ((n_misses < 10 + 3 * wanted)) || fail "every run is over before it is struck"
            break
        fi
        [[ ${has_hit:-} ]] || fail "exit $code without a kill: $(cat "$SCRATCH"/err.*)"
        n_kills=$((n_kills + 1)) n_in_save=$((n_in_save + ${saving:-0}))
        ((${#struck[@]} < 2)) || n_both=$((n_both + 1))
        unset has_hit saving
        [[ -z $(find disk -type f) ]] || fail "left behind in the folder: $(find disk -type f)"
        ! grep -q 'passed over' "$SCRATCH"/err.* || fail "a kill left a damaged checkpoint: $(cat "$SCRATCH"/err.*)"
    done
    unset has_hit saving
    ranks $n train "${words[@]}"
    ! grep -q 'passed over' err || fail "a kill left a damaged checkpoint: $(cat err)"
    for file in "whole$n/$last"/*; do
        cmp "$file" "$run/$last/$(basename "$file")" || fail "$(basename "$file") of $n ranks differs after $kills kills"
    done
    same_losses whole$n $run
    n_runs=$((n_runs + 1))
done
echo "$n_kills kills in $n_runs runs of 1 and 2 ranks: $n_in_save while a checkpoint was written, $n_both of both ranks; the same bits"
((wanted < 10 || n_in_save > 0)) || fail "no kill fell into saving"
