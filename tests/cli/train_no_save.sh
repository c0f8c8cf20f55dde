#!/bin/bash
# --no-save: a run that leaves its metrics and nothing else, says so, and needs no room for what it does not save.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=("${TINY[@]}" --dropout 0.1 --eval-every 0)

pgpt train "${small[@]}" --steps 12 --out saved --json
[[ $(tail -n 1 out | field saved) == true ]] || fail "the summary says: $(tail -n 1 out)"
pgpt train "${small[@]}" --steps 12 --no-save --out watched --json
[[ $(tail -n 1 out | field saved) == false ]] || fail "the summary says: $(tail -n 1 out)"
tail -n 1 out | check_json
[[ $(find watched -type f -printf '%f\n' | sort | tr '\n' ' ') == 'config.ini metrics.jsonl tokenizer.json ' ]] ||
    fail "it leaves: $(find watched)"
[[ ! -e watched/checkpoints ]] || fail "a folder for checkpoints"
same_losses saved watched
grep -q 'done in .*not saved (--no-save).*watched' err || fail "does not say that it saves nothing: $(cat err)"
! grep -q 'pgpt generate' err || fail "advises to generate from nothing: $(cat err)"
refused '/no checkpoint in watched/' generate watched --tokens 3
refused '/no checkpoint in watched/' train --resume watched --steps 20

# It is of this call: the run that is repeated from its options saves.
! grep -q '^save *=' watched/config.ini || fail "config.ini: $(grep '^save' watched/config.ini)"
pgpt train watched/config.ini --out repeated
same_model saved repeated

# No memory for copies, whatever a file says of saving.
peak() {
    pgpt train "$@" --print-program --json
    tail -n 1 out | field peak_bytes
}
pgpt train "${small[@]}" --save-every 5 --save-minutes 1 --keep 7 --out often
none=$(peak "${small[@]}" --save-minutes 0) copies=$(peak often/config.ini) without=$(peak often/config.ini --no-save)
((copies > none && without == none)) || fail "peaks: $none, $copies with copies, $without with --no-save"
pgpt train often/config.ini --no-save --out seldom
[[ ! -e seldom/checkpoints ]] || fail "checkpoints: $(ls seldom/checkpoints)"

# What contradicts it.
for words in '--save-every 5' '--save-minutes 0.5' '--keep 2' '--background-save' '--no-background-save'; do
    # shellcheck disable=SC2086 # an option and its value
    refused '/--(save-every|save-minutes|keep|background-save) and --no-save/' train "${small[@]}" --no-save $words --out no
done
pgpt train "${small[@]}" --no-save --save-every 0 --save-minutes 0 --out zeros
refused '/--no-save/' supervise -- "$PGPT" train "${small[@]}" --no-save --out no

# Ctrl-C.
"$PGPT" train "${small[@]}" --steps 10000000 --no-save --out stopped --json >out 2>err </dev/null &
process=$!
until [[ $(wc -l <stopped/metrics.jsonl 2>/dev/null || echo 0) -gt 3 ]]; do sleep 0.01; done
kill -TERM $process
code=0
wait $process || code=$?
((code == 0)) || fail "exit $code after SIGINT: $(cat err)"
grep -q 'stopped after step [0-9]*; nothing was saved (--no-save)' err || fail "does not say that nothing is saved: $(cat err)"
! grep -q -- '--resume' err || fail "advises to resume what is not there: $(cat err)"
[[ ! -e stopped/checkpoints ]] || fail "it has saved"
[[ $(tail -n 1 out | field saved) == false && $(tail -n 1 out | field interrupted) == true ]] || fail "$(tail -n 1 out)"

# A run that was saved, watched for a while longer: it stays where it is, and goes on later as if nothing had been.
pgpt train "${small[@]}" --steps 12 --save-every 6 --out whole
cp -r whole half
rm -r half/checkpoints/step-00000012
cp -r half/checkpoints before
pgpt train --resume half --no-save
grep -q 'nothing will be saved (--no-save).*stays at step 6' err || fail "does not say so: $(cat err)"
same_losses whole half
cp half/config.ini config
pgpt train --resume half --no-save --steps 9 --lr 0.5
cmp config half/config.ini || fail "what was only tried is recorded: $(diff config half/config.ini)"
diff -r before half/checkpoints || fail "it has saved"
pgpt train --resume half
grep -q 'going on from step 6' err || fail "does not go on: $(cat err)"
same_losses whole half
diff -r whole/checkpoints half/checkpoints || fail "other bits after watching"
rm -r before

# Room for the metrics is enough.
((EUID == 0)) || skip "a small disk: only root can mount one"
unshare -m true 2>/dev/null || skip "a small disk: no mounts are allowed here"
cat >tight <<'END'
. "$SOURCE_ROOT/tests/cli/lib"
mkdir -p disk
mount -t tmpfs -o size=64k tmpfs disk || skip "no mounts are allowed here"
trap 'umount disk 2>/dev/null || true; rm -rf "$SCRATCH"' EXIT
refused '/a checkpoint of this run takes .* --no-save/' train "$@" --channels 64 --out disk/run
pgpt train "$@" --channels 64 --no-save --out disk/run
[[ -s disk/run/metrics.jsonl ]] || fail "no metrics"
END
unshare -m bash tight "${small[@]}"
