#!/bin/bash
# Checkpoints of several ranks in pure 16 bits, at every stage of ZeRO: parts in their own types, the same bits after going on
# and after a kill, and any other layout goes on from them. Ranks that do not save at all.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --lr 0.003 --dropout 0.1 --eval-every 0)

data_bytes() { # FILES: beside their headers
    local file sum=0
    for file in "$@"; do
        ! head -c 100000 "$file" | grep -q '"dtype":"F32"' || fail "$file has f32"
        sum=$((sum + $(stat -c %s "$file") - 8 - $(od -An -t u8 -N 8 "$file")))
    done
    echo $sum
}
for way in 'pure-bf16 0 2' 'pure-bf16 1 4' 'pure-bf16 2 3' 'pure-bf16 3 2' 'pure-f16 0 3' 'pure-f16 3 4'; do
    read -r dtype zero n_ranks <<<"$way"
    rm -rf whole same old
    ranks "$n_ranks" "${small[@]}" --steps 9 --save-every 3 --keep 10 --zero "$zero" --dtype "$dtype" --out whole --json
    n=$(tail -n 1 out | field parameters)
    last=whole/checkpoints/step-00000009
    (($(data_bytes $last/model-*) == 2 * n && $(data_bytes $last/optimizer-*) == 4 * n)) ||
        fail "$way: $(data_bytes $last/model-*) and $(data_bytes $last/optimizer-*) bytes of $n parameters"
    cp -r whole same
    rm -r same/checkpoints/step-0000000[69]
    cp -r same old
    ranks "$n_ranks" train --resume same
    grep -q 'going on from step 3' err || fail "$way does not go on: $(cat err)"
    same_losses whole same
    diff -r whole/checkpoints same/checkpoints || fail "$way: other bits after going on"
    ((zero == 0 || zero == 3)) || continue
    "$WIDEN_CHECKPOINT" old || fail "not widened"
    ranks "$n_ranks" train --resume old --no-background-save
    same_losses whole old
    for step in 6 9; do
        diff -r whole/checkpoints/step-0000000$step old/checkpoints/step-0000000$step || fail "$way: other bits from an old checkpoint"
    done
done

# Another layout, and one process, in another precision too.
begin() {
    rm -rf "$1"
    cp -r whole "$1"
    rm -r "$1"/checkpoints/step-0000000[69]
}
begin other
ranks 2 train --resume other --zero 1
close_numbers 1e-2 "$(column whole loss)" "$(column other loss)"
begin one
pgpt train --resume one --dtype f32
close_numbers 1e-2 "$(column whole loss)" "$(column one loss)"

# A rank that is killed: the same words go on, to the bits of a run left in peace.
long=("${small[@]}" --layers 1 --channels 16 --batch 4 --steps 1000 --save-every 100 --keep 2 --zero 2 --dtype pure-bf16
    --log-every 1000000)
ranks 2 "${long[@]}" --out peace
ranks_apart 2 "${long[@]}" --out killed &
process=$!
until [[ -e killed/checkpoints/step-00000300 ]]; do sleep 0.01; done
kill -KILL "$(cat "$SCRATCH/pid.1")"
wait $process && fail "the others go on without it"
ranks 2 "${long[@]}" --out killed --resume auto
grep -Eq 'going on from step [1-9]' err || fail "does not go on: $(cat err)"
for file in peace/checkpoints/step-00001000/*.safetensors; do
    cmp "$file" "killed/checkpoints/step-00001000/$(basename "$file")" || fail "other bits after a kill"
done

# Nothing is saved, by all ranks or by none.
ranks 3 "${small[@]}" --zero 2 --no-save --out watched
[[ -s watched/metrics.jsonl && ! -e watched/checkpoints ]] || fail "it leaves: $(find watched)"
# shellcheck disable=SC2016 # for the rank
VIEW='((rank == 0)) || set -- "$@" --no-save' ranks_refused '/.*--save/' 2 "${small[@]}" --out apart
