#!/bin/bash
# A job of three ranks to which something happens at a random moment: a rank is killed, stopped, throws an error or finds its disk
# full. The job ends by itself, in time, with a report that names the rank and where it was; and under `pgpt supervise` it
# goes on to the very weights of a run that nothing happened to. A rank that is late, stopped for a moment, is waited for.
# FAULT_RUNS=20 does every kind 20 times, alone and supervised; FAULT_LAYOUT="--pp 3 --layers 4 --micro-batch 1" in that layout, of
# whose ranks the report then names stage and micro-batch.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

runs=${FAULT_RUNS:-1} timeout=4 n_ranks=3
read -ra layout <<<"${FAULT_LAYOUT:-}"
job=(--layers 1 --heads 2 --channels 16 --context 16 --batch 6 --steps 600 --threads 1 --sample-tokens 0 --tokenizer char
    --eval-every 0 --save-every 70 --hang-timeout "$timeout" --quiet "${layout[@]}")
export OMP_NUM_THREADS=1
unset OMPI_MCA_odls_base_sigkill_timeout # as users have it

ranks "$n_ranks" train "${job[@]}" --out whole

# The processes that have left a notice, one a line: rank and number.
processes() {
    local notice
    for notice in "$1"/ranks/*; do
        [[ -s $notice ]] && echo "$(field rank <"$notice") $(field process <"$notice")"
    done
}

# strike SIGNAL RANK RUN: as soon as there is something to strike, and a moment later.
strike() {
    local i process
    for ((i = 0; i < 300; i++)); do
        process=$(processes "$3" 2>/dev/null | sed -n "s/^$2 //p") || true # nothing there yet
        if [[ -n $process ]]; then
            sleep "0.$((RANDOM % 3))"
            if [[ $1 == LATE ]]; then
                kill -STOP "$process" 2>/dev/null || true
                sleep "0.$((3 + RANDOM % 7))"
                kill -CONT "$process" 2>/dev/null || true
                return
            fi
            kill "-$1" "$process" 2>/dev/null || true
            return
        fi
        sleep 0.02
    done
}

# same_checkpoint RUN RUN: every tensor's file after the last step, byte for byte.
same_checkpoint() {
    local file last=checkpoints/step-00000600
    for file in "$2/$last"/*.safetensors; do
        cmp -s "$file" "$1/$last/$(basename "$file")" || depth=1 fail "$(basename "$file") of $1 and $2 differ"
    done
}

# has_report KIND RANK: what was said names the rank, and the step that it was in.
has_report() {
    local said
    case $1 in
    kill) said="rank $2 .*is gone; .*it was in: step [0-9]" ;;
    stop) said="rank $2 .*has not been heard of" ;;
    error) said="rank $2 .*: an error was thrown before step [0-9]" ;;
    disk) said="rank $2 .*: cannot write" ;;
    esac
    grep -Eq "$said" err || depth=1 fail "no word of rank $2 after $1: $(cat err)"
    [[ $1 != stop ]] || grep -Eq "^  rank $2 .*: step [0-9]" err || depth=1 fail "stop: not where rank $2 was: $(cat err)"
    if [[ " ${layout[*]} " == *' --pp '* && $1 == [ks]* ]]; then # others wait in an action of theirs, or for all at a step's end
        grep -Eq "^  rank [0-9] .*: step [0-9]+, ((forward|backward|weight gradient) [0-9]+ of stage [0-9]|[a-z-]+ [0-9]+ of 'world')" err ||
            depth=1 fail "$1: not which action of which stage: $(cat err)"
    fi
}

# ended KIND CODE START: the job that was struck is over: by itself, and not with 0.
ended() {
    (($2 != 0 && $2 != 124)) || depth=1 fail "$1: exit $2: $(cat err)"
    ((SECONDS - $3 <= 4 * timeout + 10)) || depth=1 fail "$1: took $((SECONDS - $3)) s"
}

# The end of a job that nobody supervises.
alone() {
    local kind=$1 rank=$((RANDOM % n_ranks)) code=0 start=$SECONDS
    timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" "$n_ranks" "$PGPT" train "${job[@]}" --out "alone-$kind" \
        --fault "$kind:$rank:$((1 + RANDOM % 60))" >out 2>err </dev/null || code=$?
    ended "$kind" "$code" "$start"
    # MPICH's launcher kills those that are left at once; where the rank was is then to be read in its notice.
    if [[ $kind == kill ]] && "$MPIEXEC" --version 2>/dev/null | grep -qi hydra && ! grep -q 'is gone' err; then
        grep -q '"where":"[^"]' "alone-$kind/ranks/$rank" || fail "kill: no notice of rank $rank"
        return
    fi
    has_report "$kind" "$rank"
}

for ((run = 0; run < runs; run++)); do
    for kind in kill stop error disk; do
        alone $kind
        rm -rf "alone-$kind"
    done
done

# A rank that is stopped before it has met the others.
rank=$((RANDOM % n_ranks)) code=0 start=$SECONDS
cat >late <<'END'
#!/bin/bash
[[ ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}} != "$1" ]] || kill -STOP $$
exec "${@:2}"
END
chmod +x late
timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" "$n_ranks" ./late $rank "$PGPT" train "${job[@]}" --out late-run >out 2>err </dev/null || code=$?
ended "stopped at the start" "$code" "$start"
grep -q "rank $rank .*has been stopped for" err || fail "no word of rank $rank: $(cat err)"

# One that is stopped in its last moments, when the others might think that it has left: they stay, and say so.
if [[ -n ${STOP_LEAVING:-} ]]; then
    rank=$((RANDOM % n_ranks)) code=0 start=$SECONDS
    cat >leaving <<'END'
#!/bin/bash
LD_PRELOAD=$STOP_LEAVING exec "$@"
END
    chmod +x leaving
    STOP_RANK=$rank timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" "$n_ranks" ./leaving "$PGPT" train "${job[@]}" --steps 20 --out leaving-run \
        >out 2>err </dev/null || code=$?
    ended "stopped as it left" "$code" "$start"
    grep -Eq "^pgpt: rank $rank .* is stopped$" err || fail "no word of rank $rank: $(cat err)"
    grep -Eq "^  rank $rank .*: stopped at the end of the run$" err || fail "not where rank $rank was: $(cat err)"
fi

# Under supervision. Killed and stopped from outside, at any moment; the other two cannot be done from there. A signal may come after
# the end of a job on a quick machine, but not all of them.
missed=0
for ((run = 0; run < runs; run++)); do
    for kind in KILL STOP LATE error disk; do
        rank=$((RANDOM % n_ranks)) out="kept-$kind-$run" code=0 fault=()
        case $kind in
        KILL | STOP | LATE) strike "$kind" "$rank" "$out" & ;;
        *) fault=(--fault "$kind:$rank:$((8 + RANDOM % 50))") ;;
        esac
        # shellcheck disable=SC2094 # the folder's name and the output's file are not the same thing
        timeout -k 5 120 "$PGPT" supervise --wait 0 --json -- "$MPIEXEC" "$MPIEXEC_N" "$n_ranks" "$PGPT" train "${job[@]}" \
            --out "$out" "${fault[@]}" >out 2>err </dev/null || code=$?
        wait
        ((code == 0)) || fail "$kind on rank $rank: exit $code: $(cat err)"
        restarts=$(tail -n 1 out | field restarts)
        if [[ $kind == LATE ]]; then
            ((restarts == 0)) || fail "a late rank $rank was not waited for: $(cat err)"
        elif ((restarts == 0)); then
            missed=$((missed + 1))
        fi
        same_checkpoint "$out" whole
        [[ ! -e $out/ranks ]] || fail "$kind: notices are left: $(ls "$out/ranks")"
        rm -rf "$out"
    done
done

((missed < 2 * runs)) || fail "all that was sent from outside came too late"

# A launcher that is killed, and a rank that is stopped and does not notice: nothing of the first attempt stays.
timeout -k 5 120 "$PGPT" supervise --wait 0 --json -- "$MPIEXEC" "$MPIEXEC_N" "$n_ranks" "$PGPT" train "${job[@]}" --out orphans \
    >out 2>err </dev/null &
supervisor=$!
process=
for ((i = 0; i < 300; i++)); do
    process=$(processes orphans 2>/dev/null | sed -n 's/^1 //p') || true
    [[ -z $process ]] || break
    sleep 0.02
done
[[ -n $process ]] || fail "no rank 1 was seen: $(cat err)"
launcher=$(awk '{ print $4 }' "/proc/$process/stat") # a name without blanks
kill -STOP "$process"
kill -KILL "$launcher"
wait $supervisor || fail "exit $? after the launcher was killed: $(cat err)"
! kill -0 "$process" 2>/dev/null || fail "rank 1 of the first attempt is still there: $(cat "/proc/$process/stat")"
same_checkpoint orphans whole

if ((${#layout[@]})); then
    echo "every fault was noticed and survived in ${layout[*]}; $missed of $((2 * runs)) signals came too late"
    exit
fi

# One process has nobody who watches it but the supervisor.
"$PGPT" train "${job[@]}" --out single
"$PGPT" supervise --wait 0 --json -- "$PGPT" train "${job[@]}" --hang-timeout 1 --fault stop:0:100 --out kept-single >out 2>err </dev/null ||
    fail "exit $?: $(cat err)"
[[ $(field restarts <out) == 1 ]] || fail "other restarts: $(cat out)"
grep -q 'no rank has been heard of' err || fail "not said: $(cat err)"
same_checkpoint kept-single single

# What is not the job's is left alone: the children of a shell that has become the supervisor.
# shellcheck disable=SC2016 # that shell expands it
bash -c 'sleep 60 & echo $! >bystander; exec "$0" "$@"' "$PGPT" supervise -- "$PGPT" train "${job[@]}" --steps 5 --out plain >out 2>err </dev/null ||
    fail "exit $?: $(cat err)"
kill "$(cat bystander)" || fail "a process that is not the job's was ended"

# A job that cannot be: said once, not tried again. And one that never gets better.
refused '/the job has no --out/' supervise -- true
refused '/there is no job/' supervise
refused '/cannot start/' supervise -- ./no-such-launcher --out here
code=0
"$PGPT" supervise --wait 0 -- "$PGPT" train "${job[@]}" --batch 0 --out never >out 2>err </dev/null || code=$?
((code == 2)) || fail "exit $code: $(cat err)"
grep -q 'had not begun' err || fail "not said: $(cat err)"
[[ ! -e never ]] || fail "a folder was made"
code=0
"$PGPT" supervise --wait 0 --restarts 2 --json -- /bin/sh -c 'exit 3' --out "$PWD/hopeless" >out 2>err </dev/null || code=$?
((code == 1)) || fail "exit $code: $(cat out err)"
[[ $(field restarts <out) == 2 ]] || fail "other restarts: $(cat out)"
grep -q 'giving up' err || fail "not said: $(cat err)"
echo "every fault was noticed and survived; $missed of $((2 * runs)) signals came too late"
