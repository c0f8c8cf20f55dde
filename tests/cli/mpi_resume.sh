#!/bin/bash
# Checkpoints of several ranks: the same bits from the same layout, also after a kill; read by any other number of ranks
# in any other layout, and by the commands that run alone.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --data book.txt --lr 0.003 --dropout 0.1 --eval-every 0)

# Four ranks with everything cut up, twice.
whole=("${small[@]}" --steps 24 --save-every 8 --keep 10 --zero 3)
ranks 4 "${whole[@]}" --out whole
ranks 4 "${whole[@]}" --out again --no-background-save
same_losses whole again
diff -r whole/checkpoints again/checkpoints || fail "the same layout gives other checkpoints"
last=whole/checkpoints/step-00000024
(($(find $last -name 'model-0000?-of-00004.safetensors' -size +1k | wc -l) == 4)) || fail "not cut in four: $(ls $last)"
(($(find $last -name 'optimizer-0000?-of-00004.safetensors' -size +1k | wc -l) == 4)) || fail "not cut in four: $(ls $last)"

# begin NAME: a run that has got as far as step 8.
begin() {
    cp -r whole "$1"
    rm -r "$1"/checkpoints/step-00000016 "$1"/checkpoints/step-00000024
}
begin same
ranks 4 train --resume same
grep -q 'going on from step 8' err || fail "does not go on: $(cat err)"
same_losses whole same
diff -r whole/checkpoints same/checkpoints || fail "resumed in the same layout, it has other checkpoints"
begin three
ranks 3 train --resume three --zero 1 --micro-batch 2
close_numbers 1e-5 "$(column whole loss)" "$(column three loss)"
[[ $(ls three/checkpoints) == "$(ls whole/checkpoints)" ]] || fail "checkpoints: $(ls three/checkpoints)"
begin one
pgpt train --resume one
close_numbers 1e-5 "$(column whole loss)" "$(column one loss)"
[[ -s one/checkpoints/step-00000024/model.safetensors ]] || fail "one process writes parts: $(ls one/checkpoints/*)"
# And back to several, from what one process has written.
cp -r one two
rm -r two/checkpoints/step-00000024
ranks 2 train --resume two --zero 2 --allreduce halving
grep -q 'going on from step 16' err || fail "does not go on: $(cat err)"
close_numbers 1e-5 "$(column whole loss)" "$(column two loss)"

# Alone: evaluation, text, export, and a new beginning from it.
pgpt convert whole theirs
pgpt convert theirs ours
for folder in whole theirs ours; do
    pgpt generate $folder --prompt 'the ' --tokens 20
    [[ -e text ]] || cp out text
    cmp -s out text || fail "$folder writes another text: $(cat out)"
    pgpt eval $folder --data book.txt --json
    loss=${loss:-$(tail -n 1 out | field loss)}
    [[ $(tail -n 1 out | field loss) == "$loss" ]] || fail "$folder has another loss: $(tail -n 1 out), not $loss"
done
pgpt eval one --data book.txt --json
close_numbers 1e-4 "$loss" "$(tail -n 1 out | field loss)"
few=(--batch 4 --steps 4 --threads 1 --sample-tokens 0 --data book.txt)
pgpt train --init whole "${few[@]}" --out begun
ranks 3 train --init whole "${few[@]}" --zero 3 --out begun-3
close_numbers 1e-5 "$(column begun loss)" "$(column begun-3 loss)"

# A part that is missing or damaged: said, and the checkpoint before it taken, by all ranks.
damage=same/checkpoints/step-00000024/optimizer-00003-of-00004.safetensors
printf '\x5a' | dd of=$damage bs=1 seek=900 conv=notrunc status=none
ranks 2 train --resume same --zero 2
grep -q 'warning: .*optimizer-00003-of-00004.*using step-00000016 instead' err || fail "a damaged part is taken: $(cat err)"
(($(grep -c warning: err) == 1)) || fail "not said once: $(cat err)"
close_numbers 1e-5 "$(column whole loss)" "$(column same loss)"

# A rank killed in the middle takes the others down; the same words go on, to the bits of a run left in peace.
long=("${small[@]}" --layers 1 --channels 16 --batch 4 --steps 4000 --save-every 200 --keep 2 --zero 2 --resume auto
    --log-every 1000000)
ranks 2 "${long[@]}" --out peace
disturb() { # SIGNAL: to rank 1, after the first checkpoint
    limit=60 ranks_apart 2 "${long[@]}" --out disturbed &
    local process=$!
    until [[ -n $(find disturbed/checkpoints -path '*/step-????????/manifest.json' 2>/dev/null) ]]; do
        kill -0 $process 2>/dev/null || depth=1 fail "ended by itself: $(cat "$SCRATCH"/err.*)"
        sleep 0.01
    done
    kill "-$1" "$(<"$SCRATCH/pid.1")" 2>/dev/null || true
    code=0
    wait $process || code=$?
    for rank in 0 1; do # gone, or waiting to be buried
        ! ps -o stat= -p "$(<"$SCRATCH/pid.$rank")" | grep -q '^[^Z]' || depth=1 fail "rank $rank lives on"
    done
}
finish() {
    ranks 2 "${long[@]}" --out disturbed
    ! grep -q 'warning' err || depth=1 fail "a damaged checkpoint: $(cat err)"
    for file in peace/checkpoints/step-00004000/*; do
        cmp "$file" "disturbed/${file#peace/}" || depth=1 fail "$file differs"
    done
    same_losses peace disturbed
    [[ -z $(find disturbed -name '*.tmp.*') ]] || depth=1 fail "left behind: $(find disturbed -name '*.tmp.*')"
}
disturb KILL
((code != 0)) || [[ -e disturbed/checkpoints/step-00004000 ]] || fail "exit 0 although a rank was killed"
finish
rm -r disturbed
# A signal to any one rank stops all of them after the same step, with a checkpoint.
disturb TERM
((code == 0)) || fail "exit $code after SIGTERM: $(cat "$SCRATCH"/err.*)"
if [[ ! -e disturbed/checkpoints/step-00004000 ]]; then
    (($(cat "$SCRATCH"/err.* | grep -c 'stopped after step [0-9]* and saved') == 1)) || fail "not said once: $(cat "$SCRATCH"/err.*)"
    step=$(sed -n 's/.*stopped after step \([0-9]*\) .*/\1/p' "$SCRATCH/err.0")
    [[ -e disturbed/checkpoints/step-$(printf %08d "$step") ]] || fail "step $step is not there: $(ls disturbed/checkpoints)"
fi
finish
