#!/bin/bash
# Checkpoints on the way: when they are taken, which are kept, what is in them, what happens to a damaged one.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=("${TINY[@]}" --tokenizer byte --lr 0.01 --dropout 0.1 --eval-every 0)
steps() { find "$1/checkpoints" -mindepth 1 -printf '%f\n' -maxdepth 1 | sed 's/^step-0*//' | sort -n | tr '\n' ' '; }

# In the background or not, every checkpoint is the same: training goes on beside it and does not reach into it.
pgpt train "${small[@]}" --steps 12 --save-every 1 --keep 100 --out behind
pgpt train "${small[@]}" --steps 12 --save-every 1 --keep 100 --out before --no-background-save
diff -r behind/checkpoints before/checkpoints || fail "checkpoints differ"
[[ $(steps behind) == "1 2 3 4 5 6 7 8 9 10 11 12 " ]] || fail "steps: $(steps behind)"
cp -r behind copy
rm -r copy/checkpoints/step-0000001*
pgpt train --resume copy --keep 100
diff -r behind/checkpoints copy/checkpoints || fail "checkpoints differ after resuming"

# The copies are memory that is planned, and only where they are used.
peak() {
    pgpt train "${small[@]}" "$@" --print-program --json
    tail -n 1 out | field peak_bytes
}
none=$(peak --save-minutes 0) copies=$(peak --save-every 5) waits=$(peak --save-every 5 --no-background-save)
((copies > none && waits == none)) || fail "peaks: $none without saves, $copies, $waits in the foreground"
pgpt train "${small[@]}" --save-every 5 --out counted --json
[[ $(tail -n 1 out | field peak_bytes) == "$copies" ]] || fail "allocated is not what was planned"

# The newest, and the best of those that were measured.
pgpt train "${small[@]}" --steps 30 --save-every 2 --keep 2 --eval-every 10 --lr 3 --out kept
best=$(for manifest in kept/checkpoints/*/manifest.json; do
    echo "$(sed -n 's/.*"val_loss": \([0-9.e+-]*\).*/\1/p' "$manifest") $manifest"
done | grep '^[0-9]' | sort -g | head -n 1 | sed 's/.*step-0*\([0-9]*\).*/\1/')
lowest=$(paste <(column kept val_loss) <(grep val_loss kept/metrics.jsonl | field step) | sort -g | head -n 1 | cut -f 2)
[[ $best == "$lowest" ]] || fail "the best kept is that of step $best, the lowest loss that of $lowest"
[[ " $(steps kept)" == *" 28 30 "* ]] || fail "kept: $(steps kept)"
(($(steps kept | wc -w) == (best < 28 ? 3 : 2))) || fail "kept: $(steps kept), best $best"
grep -q '"val_loss": null' kept/checkpoints/step-00000028/manifest.json || fail "a loss that was not measured at step 28"

# By the clock.
pgpt train "${small[@]}" --steps 3000 --save-minutes 0.002 --keep 1000 --out clock
(($(steps clock | wc -w) > 1 && $(steps clock | wc -w) < 1000)) || fail "by the clock: $(steps clock)"
no() {
    local pattern=$1
    shift
    depth=2 refused "$pattern" train "${small[@]}" --out run "$@"
}
for value in -1 nan inf x ''; do no '/--save-minutes/' --save-minutes "$value"; done

# SIGTERM while checkpoints are under way: the last one is complete, nothing half-done stays.
"$PGPT" train "${small[@]}" --steps 100000 --save-every 1 --out term >out 2>err </dev/null &
process=$!
until (($(find term/checkpoints -maxdepth 1 -name "step-????????" 2>/dev/null | wc -l) >= 3)); do sleep 0.01; done
kill -TERM $process
code=0
wait $process || code=$?
((code == 0)) || fail "exit $code after SIGTERM: $(cat err)"
[[ -z $(find term -name '*.tmp.*') ]] || fail "left behind: $(find term -name '*.tmp.*')"
step=$(steps term | awk '{ print $NF }')
grep -q "stopped after step $step and saved" err || fail "step $step: $(cat err)"

# A damaged newest checkpoint: said, and the one before it taken; on the way to the same weights.
for file in model.safetensors optimizer.safetensors manifest.json; do
    rm -rf copy
    cp -r behind copy
    damaged=copy/checkpoints/step-00000012/$file
    printf '\x5a' | dd of="$damaged" bs=1 seek=200 conv=notrunc status=none
    if [[ $file != optimizer.safetensors ]]; then # generation does not read that
        pgpt generate copy --tokens 3
        grep -q "warning: .*$file.*using step-00000011 instead" err || fail "generate takes a damaged $file: $(cat err)"
        refused "/$file.*; name another checkpoint, or the run's folder/" generate copy/checkpoints/step-00000012 --tokens 3
    fi
    pgpt train --resume copy --keep 100
    grep -q "warning: .*$file.*using step-00000011 instead" err || fail "a damaged $file is resumed: $(cat err)"
    diff -r behind/checkpoints copy/checkpoints || fail "checkpoints differ after a damaged $file"
    same_losses behind copy
done
for folder in copy/checkpoints/step-*; do truncate -s 100 "$folder/manifest.json"; done
refused '/no checkpoint in copy.* can be used; .*; restore one from a copy$/' train --resume copy --steps 20
refused '/no checkpoint in copy.* can be used/' train --resume auto --out copy --steps 20 --quiet

# Another model: the message names what differs.
refused "/--channels 32 cannot be: the run has --channels 16/" train --resume behind --steps 20 --channels 32
refused "/--layers 2 cannot be: the run has --layers 1/" train --resume behind --steps 20 --layers 2
refused "/--no-bias cannot be: the run has --bias,/" train --resume behind --steps 20 --no-bias

# auto: begins, goes on, and is content.
auto=("${small[@]}" --steps 8 --save-every 2)
pgpt train "${auto[@]}" --out peace
pgpt train "${auto[@]}" --out mine --resume auto
grep -q 'nothing to resume: mine has no checkpoint; beginning anew' err || fail "auto does not say that it begins: $(cat err)"
same_model peace mine
mkdir mine/ranks && echo "of a job that was killed after its last step" >mine/ranks/1
pgpt train "${auto[@]}" --out mine --resume auto
grep -q 'mine has its 8 steps done' err || fail "auto and a finished run: $(cat err)"
[[ ! -e mine/ranks ]] || fail "notices are left of a run that is done: $(ls mine/ranks)"
rm -r mine/checkpoints/step-00000008
pgpt train "${auto[@]}" --out mine --resume auto
grep -q 'going on from step 6' err || fail "auto does not go on: $(cat err)"
same_model peace mine
rm -r mine/checkpoints # as if killed before the first
pgpt train "${auto[@]}" --out mine --resume auto
same_model peace mine
same_losses peace mine
(($(wc -l <mine/metrics.jsonl) == 9)) || fail "metrics of a run begun again: $(wc -l <mine/metrics.jsonl) lines"
pgpt train "${auto[@]}" --resume auto
grep -q 'nothing to resume: runs/latest' err || fail "auto does not say that it begins: $(cat err)"
rm -r runs/latest/checkpoints/step-00000008
pgpt train --resume auto
grep -q 'going on from step 6' err || fail "auto does not go on: $(cat err)"
same_model peace runs/latest/
(($(find runs -mindepth 1 -maxdepth 1 -type d | wc -l) == 1)) || fail "auto made a second run: $(ls runs)"

# A run that was resumed through runs/latest stays where it is, whatever begins meanwhile.
rm -r runs/latest/checkpoints/step-00000008
first=$(readlink runs/latest)
pgpt train --resume runs/latest --json
[[ $(tail -n 1 out | field run) == "runs/$first" ]] || fail "resumed as $(tail -n 1 out | field run)"

# What cannot be written is known, the run ends with exit 2, and the checkpoint before is whole.
((EUID == 0)) || skip "a full disk and a read-only one: only root can mount them"
unshare -m true 2>/dev/null || skip "a full disk and a read-only one: no mounts are allowed here"
cat >full <<'END'
. "$SOURCE_ROOT/tests/cli/lib"
mkdir -p disk
mount -t tmpfs -o size=1m tmpfs disk || skip "no mounts are allowed here"
trap 'umount disk 2>/dev/null || true; rm -rf "$SCRATCH"' EXIT
for way in --background-save --no-background-save; do
    rm -rf disk/*
    "$PGPT" train "$@" --steps 1000000 --save-every 40 --keep 2 --out disk/run $way >out 2>err </dev/null &
    process=$!
    until (($(find disk/run/checkpoints -maxdepth 1 -name "step-????????" 2>/dev/null | wc -l) >= 2)); do sleep 0.01; done
    dd if=/dev/zero of=disk/filler bs=4k status=none 2>/dev/null || true
    code=0
    wait $process || code=$?
    ((code == 2)) || fail "exit $code on a full disk: $(tail -n 3 err)"
    tail -n 1 err | grep -Eq '^pgpt: .*(disk|room).*free' || fail "does not say that the disk is full: $(tail -n 3 err)"
    [[ -z $(find disk -name '*.tmp.*') ]] || fail "left behind: $(find disk)"
    pgpt generate disk/run --tokens 3
    ! grep -q warning err || fail "the newest checkpoint is damaged: $(cat err)"
    step=$(find disk/run/checkpoints -name 'step-*' | sort | tail -n 1 | sed 's/.*-0*//')
    rm disk/filler
    pgpt train --resume disk/run --steps $((step + 10))
    grep -q "going on from step $step" err || fail "the run does not go on: $(cat err)"
done
mount -o remount,ro disk
refused '/read-only/' train --resume disk/run --steps 1000000 --quiet
END
unshare -m bash full "${small[@]}"
