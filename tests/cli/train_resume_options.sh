#!/bin/bash
# --resume: what a run is stays what it is, what may change is said and recorded, and no data is skipped or
# seen twice.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for i in {1..400}; do echo "$((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not $((i % 11))"; done >book.txt
pgpt train "${TINY[@]}" --heads 4 --data book.txt --position rotary --out run
on=(train --resume run --steps 8)

# ---- Another model, also one of the same shapes; another order of the data.
fixed() { # OPTION VALUE HAS
    depth=2 refused "/--$1 $2 cannot be: the run has --$1 $3.*leave it out/" "${on[@]}" "--$1" "$2"
}
fixed heads 2 4
fixed kv-heads 2 4
fixed mlp gelu-erf gelu
fixed norm rmsnorm layernorm
fixed position learned rotary
fixed rotary-theta 500 10000
fixed context 32 16
fixed hidden 32 64
fixed vocab 400 '[0-9]*'
fixed model mini nano
fixed seed 2 1
fixed seed 0 1
fixed optimizer sgd adamw
fixed max-vocab 7 0
refused '/--heads 2 cannot be/' "${on[@]}" --heads 2 --kv-heads 2
refused '/--no-tied cannot be: the run has --tied,/' "${on[@]}" --no-tied
printf 'seed = 5\n' >mine.ini
refused '/seed = 5 cannot be: the run has --seed 1/' train mine.ini --resume run --steps 8
# Asked for by a 0 that would come to something else.
pgpt train "${TINY[@]}" --heads 4 --kv-heads 2 --data book.txt --out grouped
refused '/another model, with --kv-heads 2 instead of 4/' train --resume grouped --steps 8 --kv-heads 0
# The same, given again, is no change.
cp -r run same
pgpt train --resume same --steps 6 --heads 4 --kv-heads 4 --mlp gelu --seed 1 --model nano --hidden 0 --lr 3e-3 --tokenizer char
grep -q 'pgpt: --steps 6 instead of 5 from step 5 on' err || fail "not one change: $(cat err)"

# ---- A config.ini that was edited into another model.
edited() { # SED PATTERN
    cp -r run edited
    sed -i "$1" edited/config.ini
    depth=2 refused "$2" train --resume edited --steps 8
    rm -r edited
}
edited 's/^heads = 4/heads = 2/' '/edited\/config.ini says heads = 2, but the run.s checkpoint has 4/'
edited 's/^#mlp = .*/mlp = gelu-erf/' '/says mlp = gelu-erf, but/'
edited 's/^#seed = .*/seed = 9/' '/says seed = 9, but/'
edited 's/^#optimizer = .*/optimizer = sgd/' '/says optimizer = sgd, but/'
edited 's/^#model = .*/model = mini/' '/says model = mini, but/'
# The comments of another version's defaults do not make another run, and neither does a line that is lost.
pgpt "${on[@]}" --lr-schedule constant # recorded from here on
cp -r run whole
rm -r whole/checkpoints/step-00000005
cp -r whole bare
sed -i '/^heads = /d; /^position = /d; /^layers = /d' bare/config.ini
pgpt train --resume whole --steps 12
pgpt train --resume bare --steps 12
same_losses whole bare
same_model whole bare
# A default of another day: the run keeps what it had.
cp -r run other-day
sed -i 's/^#beta2 = .*/#beta2 = 0.5/; s/^#lr = .*/#lr = 0.001/' other-day/config.ini
pgpt train --resume other-day --steps 12
pgpt train --resume run --steps 12 --beta2 0.5 --lr 0.001
grep -q 'pgpt: --lr 0.001 instead of 0.003, --beta2 0.5 instead of 0.99, --steps 12 instead of 8 from step 8 on' err ||
    fail "not said: $(cat err)"
same_losses run other-day

# ---- What was changed stays changed, and can be read up.
cp -r run kept
pgpt train --resume kept --steps 14
! grep -q 'instead.*beta2' err || fail "said again: $(cat err)"
pgpt train --resume run --steps 14 --beta2 0.5 --lr 0.001
same_losses run kept
grep -qx 'beta2 = 0.5' kept/config.ini || fail "not recorded: $(grep beta2 kept/config.ini)"
grep '^#+' kept/config.ini >history
[[ $(cat history) == "#+ from step 5 on: --lr-schedule constant instead of cosine, --steps 8 instead of 5
#+ from step 8 on: --lr 0.001 instead of 0.003, --beta2 0.5 instead of 0.99, --steps 12 instead of 8
#+ from step 12 on: --steps 14 instead of 12" ]] || fail "the record: $(cat history)"
pgpt train kept/config.ini --out repeated # may well be repeated, from the beginning
[[ $(column repeated lr | tail -n 1) == 0.001 ]] || fail "not repeated: $(column repeated lr)"
# Nothing is written where nothing is changed, or nothing is done.
cp kept/config.ini before.ini
refused '/14 steps done/' train --resume kept --lr 0.5
cmp -s before.ini kept/config.ini || fail "recorded, and not done"

# ---- Data: what it says counts, not where it lies.
mkdir elsewhere
cp book.txt elsewhere/moved.txt
sed 's/is not/not is/' book.txt >other.txt
rm book.txt
pgpt train --resume kept --steps 15 --data elsewhere/moved.txt
! grep -q 'warning\|--data' err || fail "a text that was moved: $(cat err)"
pgpt train --resume kept --steps 16
! grep -q 'warning\|--data' err || fail "the new path is not recorded: $(cat err)"
pgpt train --resume kept --steps 17 --data other.txt
grep -q -- '--data other.txt instead of elsewhere/moved.txt from step 16 on' err || fail "another text: $(cat err)"
pgpt train --resume kept --steps 18
! grep -q 'warning\|--data' err || fail "the other text is not recorded: $(cat err)"
sed -i 's/of/fo/' other.txt
pgpt train --resume kept --steps 19
grep -q 'warning: the text is not the one' err || fail "a text that was edited: $(cat err)"
refused '/tokenizer/' train --resume kept --steps 20 --tokenizer byte
printf 'ABC%.0s' {1..200} >strange.txt
refused '/unknown character/' train --resume kept --steps 20 --data strange.txt

# ---- Another batch: the data goes on where it was. Windows of 16 tokens, each of one digit, say which were
# seen: a run without learning has the loss of each.
for i in {1..64}; do for j in {1..16}; do printf '%s ' "$((i * i % 17)),$((i * j % 7))"; done; done >windows.txt
still=("${TINY[@]}" --data windows.txt --validation 0 --lr 0 --weight-decay 0)
pgpt train "${still[@]}" --batch 1 --steps 12 --out singly
pgpt train "${still[@]}" --batch 2 --steps 2 --out changed
pgpt train --resume changed --batch 4 --steps 3
pgpt train --resume changed --batch 1 --steps 7
column singly loss >singly.losses
{
    sed -n '1,2p' singly.losses | awk '{ s += $1 } END { printf "%.5f\n", s / 2 }'
    sed -n '3,4p' singly.losses | awk '{ s += $1 } END { printf "%.5f\n", s / 2 }'
    sed -n '5,8p' singly.losses | awk '{ s += $1 } END { printf "%.5f\n", s / 4 }'
    sed -n '9,12p' singly.losses
} >wanted.losses
close_numbers 1e-4 "$(cat wanted.losses)" "$(column changed loss)"
[[ $(column changed tokens | tr '\n' ' ') == "32 64 128 144 160 176 192 " ]] || fail "tokens: $(column changed tokens)"
grep -q '"sequences": 12,' changed/checkpoints/step-00000007/manifest.json || fail "the position is not recorded"
# Shorter sequences: behind the tokens that were seen.
pgpt train --resume changed --sequence 8 --batch 2 --steps 8
grep -q '"tokens": 208,' changed/checkpoints/step-00000008/manifest.json || fail "tokens of shorter sequences"
pgpt train "${still[@]}" --sequence 8 --batch 2 --steps 13 --out short
[[ $(column changed loss | tail -n 1) == "$(column short loss | tail -n 1)" ]] || fail "not behind what was seen"
# Epochs are of the text, whatever the steps.
pgpt train "${still[@]}" --batch 2 --steps 10 --out passes
pgpt train --resume passes --epochs 1 --batch 4
n=$(column passes tokens | tail -n 1)
pgpt train "${TINY[@]:0:8}" --threads 1 --sample-tokens 0 --tokenizer char --data windows.txt --validation 0 --epochs 1 --batch 4 --out one-pass
((n - $(column one-pass tokens | tail -n 1) < 64 && n >= $(column one-pass tokens | tail -n 1))) || fail "an epoch of $n tokens"
grep -q -- '--epochs 1 instead of --steps 10' passes/config.ini ||
    fail "epochs: $(grep '^#+' passes/config.ini)"

# Steps instead of epochs, were they as many as the default.
pgpt train "${TINY[@]:0:8}" --threads 1 --sample-tokens 0 --eval-every 0 --data windows.txt --epochs 0.1 --out steps
pgpt train --resume steps --steps 600
grep -q -- '--steps 600 instead of --epochs 0.1 from step' err || fail "not said: $(cat err)"
refused '/600 steps done/' train --resume steps # and not as few as the epochs make

# ---- What is named by --resume.
n=$(find changed/checkpoints -mindepth 1 -maxdepth 1 | sort | tail -n 1)
pgpt train --resume "$n" --steps 9 --json
[[ $(tail -n 1 out | field run) == changed ]] || fail "the newest checkpoint: $(tail -n 1 out)"
(cd changed/checkpoints && "$PGPT" train --resume "${n##*/}" --steps 9 --quiet >/dev/null 2>"$SCRATCH/old") && fail "an old checkpoint is resumed"
grep -q "is not the newest checkpoint of its run.*--resume .*changed.*--init" "$SCRATCH/old" || fail "says: $(cat "$SCRATCH/old")"
refused "/is not the newest checkpoint of its run; go on from that one with --resume changed, .*--init $n/" train --resume "$n"
refused '/has no config.ini|no config.ini in it/' train --resume elsewhere
refused '/is a file; give a run/' train --resume changed/config.ini
pgpt train --resume changed/checkpoints/ --steps 10
cp -r "$n" alone
refused '/without its run.*--init alone/' train --resume alone
