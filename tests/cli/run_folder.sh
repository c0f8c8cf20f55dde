#!/bin/bash
# A run's folder can be trusted: one run at a time writes it, nothing of anybody else's is written over or removed, and
# who reads beside a run that goes on finds a model.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

Q=("${TINY[@]}" --data s.txt --steps 3)
for ((i = 0; i < 300; i++)); do echo "the quick brown fox number $i jumps over the lazy dog"; done >s.txt

# ---- Links and other people's files survive a prune.
mkdir v && echo precious >v/a.txt && echo precious >v/model.safetensors
pgpt train "${Q[@]}" --steps 20 --out r
ln -s "$PWD/v" r/checkpoints/step-00000001.tmp.7
ln -s "$PWD/v" r/checkpoints/step-00000002
ln -s "$PWD/v" r/checkpoints/step-00000003.old.tmp.9
mkdir r/checkpoints/step-00000004.tmp.8 && ln -s "$PWD/v/a.txt" r/checkpoints/step-00000004.tmp.8/model.safetensors
mkdir r/checkpoints/step-notes.tmp.1 && echo mine >r/checkpoints/step-notes.tmp.1/manifest.json
pgpt train --resume r --steps 25 --keep 1
[[ $(cat v/a.txt v/model.safetensors) == $'precious\nprecious' ]] || fail "a prune followed a link"
[[ ! -e r/checkpoints/step-00000001.tmp.7 && ! -L r/checkpoints/step-00000001.tmp.7 ]] || fail "the link itself stays"
[[ ! -L r/checkpoints/step-00000002 && ! -L r/checkpoints/step-00000003.old.tmp.9 ]] || fail "links stay"
[[ ! -e r/checkpoints/step-00000004.tmp.8 ]] || fail "a link in an unfinished checkpoint stays"
[[ $(cat r/checkpoints/step-notes.tmp.1/manifest.json) == mine ]] || fail "a prune removed what is not called as a checkpoint is"

# ---- What cannot be removed is a warning, and training goes on.
mkdir r/checkpoints/step-00000025/notes
pgpt train --resume r --steps 30 --keep 1
grep -q "warning: an old checkpoint stays: r/checkpoints/step-00000025 holds 'notes'" err || fail "no warning: $(cat err)"
[[ -s r/checkpoints/step-00000025/manifest.json && -s r/checkpoints/step-00000030/manifest.json ]] || fail "half removed: $(ls r/checkpoints/*)"
rm -r r/checkpoints/step-00000025/notes
mv r/checkpoints real && ln -s ../real r/checkpoints
pgpt train --resume r --steps 35 --keep 1
grep -q 'warning: an old checkpoint stays' err || fail "a prune went through a link: $(ls real)"
[[ -d real/step-00000025 && -d real/step-00000035 ]] || fail "$(ls real)"

# ---- Files that are appended to or replaced are not reached through links.
pgpt train "${Q[@]}" --out m
cp m/metrics.jsonl kept && printf 'no end of line' >>kept && cp kept copy && ln -sf "$PWD/kept" m/metrics.jsonl
code=0 && "$PGPT" train --resume m --steps 9 >out 2>err </dev/null || code=$?
{ ((code == 2)) && grep -q 'metrics.jsonl: it is a link' err; } || fail "exit $code: $(cat err)"
cmp kept copy || fail "somebody's file was cut"
rm -r m/metrics.jsonl m/ranks && cp copy m/metrics.jsonl
echo precious >v/0 && ln -s "$PWD/v" m/ranks
code=0 && "$PGPT" train --resume m --steps 9 >out 2>err </dev/null || code=$?
[[ $(cat v/0) == precious ]] || fail "a notice was written through a link (exit $code)"
rm m/ranks

# ---- Runs that start at once do not meet.
for ((i = 0; i < 20; i++)); do
    "$PGPT" train "${Q[@]}" --model nano >"$SCRATCH/out.$i" 2>&1 </dev/null &
    (((i + 1) % 4 != 0)) || wait
done
wait
(($(find runs -name model.safetensors | wc -l) == 20)) || fail "20 runs left $(find runs -name model.safetensors | wc -l) models"
[[ -L runs/latest && -d runs/latest/checkpoints ]] || fail "runs/latest does not lead to a run"

for ((i = 0; i < 20; i++)); do # two with the same --out: one trains, the other says why not
    codes=()
    "$PGPT" train "${Q[@]}" --out "same-$i" >"$SCRATCH/a" 2>&1 </dev/null &
    first=$!
    code=0 && "$PGPT" train "${Q[@]}" --out "same-$i" >"$SCRATCH/b" 2>&1 </dev/null || code=$?
    codes+=("$code") && code=0
    wait $first || code=$?
    codes+=("$code")
    [[ ${codes[*]} == "0 2" || ${codes[*]} == "2 0" ]] || fail "two runs in one folder ended with ${codes[*]}: $(cat "$SCRATCH/a" "$SCRATCH/b")"
    (($(column "same-$i" step | wc -l) == 3)) || fail "metrics are mixed: $(cat "same-$i/metrics.jsonl")"
done

# ---- A run that is under way is not resumed, and says who has it; when it is killed, it is free.
"$PGPT" train "${Q[@]}" --steps 100000000 --save-every 20 --keep 1 --out busy >"$SCRATCH/busy" 2>&1 </dev/null &
busy=$!
for ((i = 0; i < 400; i++)); do
    if compgen -G 'busy/checkpoints/step-????????' >/dev/null; then break; fi
    sleep 0.05
done
code=0 && "$PGPT" train --resume busy --steps 5 >out 2>err </dev/null || code=$?
((code == 2)) || fail "exit $code while another process trains there: $(cat err)"
grep -q "busy is being written by process $busy on " err || fail "$(cat err)"
code=0 && "$PGPT" supervise -- "$PGPT" train "${Q[@]}" --out busy >out 2>err </dev/null || code=$?
{ ((code == 2)) && grep -q "busy is being written by process $busy on " err; } || fail "supervise: exit $code, $(cat err)"
code=0 && "$PGPT" train "${Q[@]}" --out busy >out 2>err </dev/null || code=$?
{ ((code == 2)) && grep -Eq 'already holds a run|is being written' err; } || fail "exit $code: $(cat err)"

# ---- Beside it, a model can always be had: when a checkpoint goes, there is a newer one.
for ((i = 0; i < 60; i++)); do
    "$PGPT" generate busy --tokens 1 --threads 1 >out 2>err </dev/null || fail "generate $i beside a run that prunes: $(cat err)"
    ! grep -q 'passed over' err || fail "a checkpoint that was pruned is taken for damaged: $(cat err)"
done
kill -KILL $busy
wait $busy 2>/dev/null || true
[[ -e busy/lock ]] || fail "there was no lock"
step=$(find busy/checkpoints -maxdepth 1 -name 'step-????????' | sort | tail -n 1 | tr -dc 0-9)
pgpt train --resume busy --steps $((10#$step + 2))
[[ ! -e busy/lock ]] || fail "the lock file stays behind a run that has ended"

# ---- One that is told to stop before it has begun leaves nothing.
for signal in TERM HUP; do
    mkfifo pipe
    "$PGPT" train "${Q[@]}" --data pipe --tokenizer byte --out early >out 2>err </dev/null &
    early=$!
    for ((i = 0; i < 400; i++)); do [[ ! -s early/lock ]] || break && sleep 0.02; done
    kill -$signal $early
    code=0 && wait $early || code=$?
    { ((code > 128)) && [[ ! -e early ]]; } || fail "exit $code, and it leaves $(find early): $(cat err)"
    rm pipe
done

# ---- A folder that is moved away while its run goes on: nothing is saved into another's.
"$PGPT" train "${Q[@]}" --steps 100000000 --out there >"$SCRATCH/there" 2>&1 </dev/null &
process=$!
for ((i = 0; i < 400; i++)); do
    if [[ -s there/metrics.jsonl ]]; then break; fi
    sleep 0.05
done
mv there moved
pgpt train "${Q[@]}" --out there
kill -TERM $process
code=0 && wait $process || code=$?
{ ((code == 2)) && grep -q 'not the one that the run began in' "$SCRATCH/there"; } || fail "exit $code: $(tail -n 3 "$SCRATCH/there")"
[[ $(ls there/checkpoints) == step-00000003 ]] || fail "saved into another run's folder: $(ls there/checkpoints)"

# ---- Folders that are something else are left alone.
mkdir tok shards hf somebody && echo '{"kind": "char"}' >tok/tokenizer.json && echo x >shards/manifest.json && echo y >hf/config.json && echo z >somebody/notes.txt
for folder in tok shards hf somebody; do
    before=$(cat "$folder"/*)
    refused '/is not empty and not a run/' train "${Q[@]}" --out "$folder"
    refused '/is not empty and not a run/' train "${Q[@]}" --out "$folder" --resume auto --quiet
    refused '/is not empty/' supervise -- "$PGPT" train "${Q[@]}" --out "$folder"
    refused '/not empty/' convert r "$folder"
    refused '/not (an )?empty|exists already|already holds/' data prepare s.txt --tokenizer byte --out "$folder"
    refused '/not (an )?empty|exists already/' data train-tokenizer s.txt --vocab-size 270 --out "$folder"
    refused '/no picture/' lab linear --points 10 --epochs 1 --out "$folder" --quiet
    [[ $(cat "$folder"/*) == "$before" ]] || fail "$folder was written to"
done
mkdir empty
pgpt train "${Q[@]}" --out empty
[[ -s $(model empty) ]] || fail "an empty folder is not taken"
refused '/is a file/' train "${Q[@]}" --out s.txt
refused '/--heads/' train "${Q[@]}" --heads 3 --out a/b/c # and a is not made

# ---- Nor is a file lost that is called as a lock is.
mkdir called && echo precious >called/lock
refused '/called.lock: it is not a file of pgpt/' train "${Q[@]}" --out called
echo 'steps = 3' >called/config.ini
refused '/called.lock: it is not a file of pgpt/' train --resume called
"$PGPT" train "${Q[@]}" --out called --resume auto >out 2>err </dev/null && fail "a folder with somebody's lock was taken: $(cat err)"
[[ $(cat called/lock called/config.ini) == $'precious\nsteps = 3' ]] || fail "somebody's files were written: $(head called/*)"
mkdir named twice && echo precious >named/supervise.lock && ln v/a.txt twice/lock
refused '/supervise.lock: it is not a file of pgpt/' supervise -- "$PGPT" train "${Q[@]}" --out named
refused '/twice.lock: it is not a file of pgpt/' train "${Q[@]}" --out twice
[[ $(cat named/supervise.lock v/a.txt) == $'precious\nprecious' ]] || fail "somebody's files were written"

# ---- A run that was killed while it wrote the first of its files begins again; what it left goes.
mkdir early && touch early/lock early/supervise.lock early/config.ini.tmp.123
pgpt supervise --quiet -- "$PGPT" train "${Q[@]}" --out early
[[ -s $(model early) && ! -e early/config.ini.tmp.123 ]] || fail "$(ls early)"
mkdir early-2 && touch early-2/lock early-2/config.ini.tmp.123 && pgpt train "${Q[@]}" --out early-2
touch early/config.ini.tmp.77 && pgpt train --resume early --steps 5 # killed while it recorded a change
[[ ! -e early/config.ini.tmp.77 && ! -e early-2/config.ini.tmp.123 ]] || fail "$(ls early early-2)"

# ---- Two that go on by themselves: the one that waits for the other does not begin anew over what that has saved.
for ((i = 0; i < 20; i++)); do
    "$PGPT" train "${Q[@]}" --steps 500 --out "auto-$i" --resume auto >"$SCRATCH/a" 2>&1 </dev/null &
    first=$! code=0 other=0
    "$PGPT" train "${Q[@]}" --steps 500 --seed 2 --out "auto-$i" --resume auto >"$SCRATCH/b" 2>&1 </dev/null || code=$?
    wait $first || other=$?
    ((code + other > 0)) || fail "both have begun: $(cat "$SCRATCH/a" "$SCRATCH/b")"
    (($(grep -l '^step 500/500' "$SCRATCH/a" "$SCRATCH/b" | wc -l) == 1)) || fail "$(cat "$SCRATCH/a" "$SCRATCH/b")"
done

# ---- A pipe in the place of a run's file is said, and not waited for; a link to checkpoints that are not there is not nothing.
for name in config.ini tokenizer.json metrics.jsonl; do
    cp -r early pipe && rm "pipe/$name" && mkfifo "pipe/$name" && mkdir -p pipe/ranks && touch pipe/ranks/0
    refused "/$name: it is not a regular file/" train --resume pipe --steps 9 --quiet
    rm -r pipe
done
cp -r early apart && rm -r apart/checkpoints && ln -s "$PWD/not-mounted" apart/checkpoints
refused '/apart.checkpoints is not a folder, nor a link to one/' train "${Q[@]}" --out apart --resume auto --quiet
refused '/apart.checkpoints is not a folder, nor a link to one/' train --resume apart --steps 9
[[ -s apart/metrics.jsonl ]] || fail "a run began anew over one whose checkpoints are elsewhere"
