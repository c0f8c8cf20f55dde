#!/bin/bash
# Samples, checkpoints on the way, epochs.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# The sample at the end is the output; without --json nothing else is.
pgpt train "${TINY[@]}" --sample-tokens 40 --prompt 'Once upon' --out sample
[[ $(head -c 9 out) == "Once upon" ]] || fail "the sample does not begin with its prompt: $(cat out)"
(($(wc -c <out) == 9 + 40 + 1)) || fail "the sample has $(wc -c <out) bytes"
cp out again
pgpt train "${TINY[@]}" --sample-tokens 40 --prompt 'Once upon' --out sample-again
cmp -s out again || fail "the same run gives another sample"
pgpt train "${TINY[@]}" --out no-sample
[[ ! -s out ]] || fail "a sample in spite of --sample-tokens 0"

pgpt train "${TINY[@]}" --steps 7 --sample-tokens 10 --sample-every 3 --out samples
[[ $(grep -c '^--- sample after step [36] ---$' err) == 2 ]] || fail "not a sample after steps 3 and 6: $(cat err)"

# Checkpoints: every second step and the last, of which the last two stay; the training does not notice.
pgpt train "${TINY[@]}" --steps 7 --save-every 2 --keep 2 --out saves
[[ $(ls saves/checkpoints) == $'step-00000006\nstep-00000007' ]] || fail "checkpoints: $(ls saves/checkpoints)"
same_model saves samples
pgpt train "${TINY[@]}" --steps 7 --save-every 2 --keep 10 --out all-saves
(($(find all-saves/checkpoints -name manifest.json | wc -l) == 4)) || fail "checkpoints: $(ls all-saves/checkpoints)"
pgpt generate all-saves/checkpoints/step-00000004 --tokens 3 --json
[[ $(tail -n 1 out | field step) == 4 ]] || fail "generate took another checkpoint than it was given"

# Two passes over 100 windows of 16 tokens (and the one that follows them), four at a time, are 50 steps.
printf 'abcdefghijklmnop%.0s' {1..100} >text
printf 'a' >>text
pgpt train "${TINY[@]::8}" --batch 4 --threads 1 --sample-tokens 0 --data text --validation 0 --epochs 2 --out epochs
[[ $(column epochs step | tail -n 1) == 50 ]] || fail "two epochs took $(column epochs step | tail -n 1) steps"
pgpt train epochs/config.ini --out epochs-again
same_model epochs epochs-again
[[ -z $(column epochs val_loss) ]] || fail "an evaluation of nothing"
