#!/bin/bash
# Runs killed with SIGKILL at random moments, many of them while a checkpoint is being written, then resumed with the
# same words, until they are done: every file of the last checkpoint is, byte for byte, that of a run left in peace.
#
#   KILL_RUNS=30 ctest --preset release -R cli_kill -V      as many runs as you like; 3 where nothing is said
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

runs=${KILL_RUNS:-3} most_kills=5
options=("${TINY[@]}" --tokenizer byte --batch 2 --steps 240 --dropout 0.1 --lr 0.01 --warmup 20 --eval-every 60 --eval-batches 2
    --keep 2)
last=checkpoints/step-00000240

now() { date +%s%3N; }

start=$(now)
pgpt train "${options[@]}" --out whole --save-every 3
whole_ms=$(($(now) - start))
[[ -s whole/$last/manifest.json ]] || fail "the undisturbed run has no last checkpoint"

# Some time between the start of a process and a good part of the whole run, in milliseconds.
random_ms() { echo $(((RANDOM * 32768 + RANDOM) % (whole_ms * 6 / 10 + 20))); }

n_kills=0 n_in_save=0 n_before_first=0 n_resumed=0
for ((i = 0; i < runs; i++)); do
    run=run-$i
    rm -rf "$run"
    # Every other run writes in the foreground; the next ones save as often as they can.
    words=(train "${options[@]}" --out "$run" --resume auto --save-every $((1 + i % 3)))
    ((i % 2 == 0)) || words+=(--no-background-save)
    for ((kills = 0; kills < most_kills; kills++)); do
        "$PGPT" "${words[@]}" >out 2>err </dev/null &
        process=$!
        sleep "$(printf '0.%03d' $(($(random_ms) % 1000)))"
        kill -KILL $process 2>/dev/null || true
        code=0
        wait $process 2>/dev/null || code=$?
        ((code == 137)) || break # it was faster
        n_kills=$((n_kills + 1))
        [[ -z $(find "$run" -path '*.tmp.*' 2>/dev/null) ]] || n_in_save=$((n_in_save + 1))
        [[ -n $(find "$run/checkpoints" -path '*/step-????????/manifest.json' 2>/dev/null) ]] || n_before_first=$((n_before_first + 1))
        ! grep -q 'passed over' err || fail "a kill left a damaged checkpoint: $(cat err)"
        ! grep -q 'going on from' err || n_resumed=$((n_resumed + 1))
    done
    if ((code == 137)); then
        pgpt "${words[@]}"
    else
        ((code == 0)) || fail "exit $code from a resumed run: $(cat err)"
    fi
    ! grep -q 'passed over' err || fail "a kill left a damaged checkpoint: $(cat err)"
    for file in model.safetensors optimizer.safetensors manifest.json; do
        cmp "whole/$last/$file" "$run/$last/$file" || fail "run $i: $file differs after $kills kills"
    done
    same_losses whole "$run"
    [[ -z $(find "$run" -name '*.tmp.*') ]] || fail "left behind: $(find "$run" -name '*.tmp.*')"

    # All done: the same words once more are no mistake.
    pgpt "${words[@]}" --json
    [[ $(tail -n 1 out | field step) == 240 ]] || fail "a finished run says: $(cat out err)"
    rm -r "$run"
done
echo "$runs runs, $n_kills kills: $n_in_save left a half-written checkpoint, $n_before_first came before the first one," \
    "$n_resumed hit a run that had been resumed"
((n_kills >= runs)) || fail "only $n_kills kills in $runs runs"
((runs < 10 || n_in_save > 0)) || fail "no kill fell into saving"
