#!/bin/bash
# --offload: state in a file leaves the files of a run as they are, byte for byte, over a resume and over SIGKILL at any
# moment; nothing is left in the folder; what cannot be is refused before anything is made.
#
#   KILL_RUNS=20 ctest --preset release -R cli_train_offload -V      three kills each; 1 where nothing is said, LONG=1: 7
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --layers 2 --steps 24 --batch 4 --lr 0.01 --save-every 6 --keep 9 --eval-every 12 --eval-batches 1)
mkdir disk
away=(--offload optimizer:file=disk --offload-bucket-mb 0.002)

same_files() { # RUN RUN STEP
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp "$1/checkpoints/step-$3/$file" "$2/checkpoints/step-$3/$file" || fail "$file of $1 and $2 differs at $3"
    done
}

pgpt train "${options[@]}" --out plain
pgpt train "${options[@]}" --out away "${away[@]}"
grep -q 'offload: optimizer to a file in disk' err || fail "not said: $(cat err)"
for step in 00000006 00000012 00000018 00000024; do same_files plain away "$step"; done
same_losses plain away
[[ -z $(find disk -type f) ]] || fail "left behind: $(find disk -type f)"

# In 16 bits with master weights, with micro-batches, another clipping and a part that stays.
for words in "--dtype bf16 --offload-io threads" "--micro-batch 2 --offload-share 0.3" "--clip 0.5 --clip-style check" "--clip 0.9 --clip-style check --dtype bf16" \
    "--optimizer sgd --momentum 0.9" "--moments 8bit" "--moments bf16 --clip 0" "--optimizer muon --moments 8bit" "--optimizer lamb"; do
    rm -rf one two
    plain=()
    for word in $words; do [[ $word == --offload* || $word == 0.3 || $word == threads ]] || plain+=("$word"); done
    pgpt train "${options[@]}" --steps 6 --out one "${plain[@]}"
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" --steps 6 --out two $words "${away[@]}"
    [[ $words != *threads ]] || grep -q 'by 8 threads' err || fail "not by threads: $(cat err)"
    same_files one two 00000006
done

# On from a run without, and back.
cp -r plain on
rm -r on/checkpoints/step-00000018 on/checkpoints/step-00000024
pgpt train --resume on "${away[@]}"
same_files plain on 00000024
rm -r on/checkpoints/step-00000024
pgpt train --resume on --offload ""
same_files plain on 00000024

# SIGKILL at random moments; the same words go on.
kill_runs=1
! is_long || kill_runs=7
for ((i = 0; i < ${KILL_RUNS:-$kill_runs}; i++)); do
    rm -rf killed
    for ((k = 0; k < 3; k++)); do
        "$PGPT" train "${options[@]}" --out killed --resume auto "${away[@]}" >out 2>err </dev/null &
        process=$!
        sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
        kill -KILL $process 2>/dev/null || true
        wait $process 2>/dev/null || true
        [[ -z $(find disk -type f) ]] || fail "left behind after a kill: $(find disk -type f)"
    done
    pgpt train "${options[@]}" --out killed --resume auto "${away[@]}"
    same_files plain killed 00000024
done
rm -r killed

# The program shows the moves, planned for a GPU that is not here, too.
pgpt train "${options[@]}" --print-program "${away[@]}"
grep -q ' update    fetch ' out || fail "no fetch in the program"
grep -q ' update    offload ' out || fail "no offload in the program"
grep -Eq '^  file .* bytes .*on disk' out || fail "no file in the memory plan: $(tail -n 20 out)"
pgpt train "${options[@]}" --print-program --device cuda:h200 --offload optimizer
grep -Eq '^  host .*pinned' out || fail "no pinned memory in the plan: $(tail -n 20 out)"
! grep -q 'the host waits' out || fail "the host waits for what streams through the device"
pgpt train "${options[@]}" --print-program --device cuda:h200 --offload optimizer --offload-update host
grep -q 'the host waits' out || fail "the host does not wait"
refused "/offload-update device/" train "${options[@]}" --print-program --device cuda:h200 --offload optimizer --optimizer lamb --offload-update host

# Weights and sums of gradients, in files: with an evaluation, micro-batches, resume and the rest.
for words in "" "--dtype bf16 --micro-batch 1" "--dtype pure-f16" "--dtype f16 --offload-io threads" "--clip 0.5 --clip-style check" "--optimizer muon" \
    "--optimizer lamb --moments 8bit" "--recompute 1 --clip 0" "--dtype bf16 --experts 4 --router balance-free"; do
    rm -rf one two
    plain=()
    for word in $words; do [[ $word == --offload-io || $word == threads ]] || plain+=("$word"); done
    pgpt train "${options[@]}" --steps 12 --out one "${plain[@]}"
    for offload in weights:file=disk gradients:file=disk gradients:file=disk,weights:file=disk optimizer:file=disk,weights:file=disk,gradients:file=disk; do
        rm -rf two
        # shellcheck disable=SC2086
        pgpt train "${options[@]}" --steps 12 --out two $words --offload $offload --offload-bucket-mb 0.01
        same_files one two 00000012
        same_losses one two
        [[ -z $(find disk -type f) ]] || fail "left behind: $(find disk -type f)"
    done
done
rm -r two/checkpoints/step-00000012 one/checkpoints/step-00000012
pgpt train --resume two --offload ""
pgpt train --resume one --offload weights:file=disk,gradients:file=disk
same_files one two 00000012

# Updates that are a step late: the same with and without offload, over a resume and over SIGKILL, and where a run goes on with the
# other; not those of a run without. The gradient that is kept is in checkpoints, and the last one has none.
late=(--delayed-update 4)
for words in "" "--dtype f16" "--dtype pure-bf16 --micro-batch 1" "--optimizer muon --moments 8bit" "--optimizer lamb --clip 0.3"; do
    rm -rf one two
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" --steps 18 --out one $words "${late[@]}"
    # shellcheck disable=SC2086
    pgpt train "${options[@]}" --steps 18 --out two $words "${late[@]}" "${away[@]}"
    for step in 00000006 00000012 00000018; do same_files one two $step; done
    same_losses one two
    grep -q '"late_update"' two/checkpoints/step-00000012/manifest.json || fail "no gradient is kept"
    ! grep -q '"late_update"' two/checkpoints/step-00000018/manifest.json || fail "an update is left"
    rm -r one/checkpoints/step-0000001* two/checkpoints/step-00000018
    pgpt train --resume one "${away[@]}"
    pgpt train --resume two --offload ""
    same_files one two 00000018
done
! cmp -s plain/checkpoints/step-00000012/model.safetensors two/checkpoints/step-00000012/model.safetensors || fail "no update was late"
rm -r two/checkpoints/step-00000018
refused "/update is to come/" train --resume two --delayed-update 0
pgpt train "${options[@]}" --steps 5 --out short "${late[@]}"
grep -q 'of 5 steps the first 4 and the last update at once; none is late' err || fail "not said: $(cat err)"
for ((k = 0; k < 3; k++)); do
    "$PGPT" train "${options[@]}" --save-every 1 --out killed "${late[@]}" --resume auto "${away[@]}" >out 2>err </dev/null &
    process=$!
    sleep "0.$((RANDOM % 2))$((RANDOM % 10))"
    kill -KILL $process 2>/dev/null || true
    wait $process 2>/dev/null || true
done
rm -rf one
pgpt train "${options[@]}" --out killed "${late[@]}" --resume auto "${away[@]}"
pgpt train "${options[@]}" --out one "${late[@]}"
same_files one killed 00000024
rm -rf killed
refused "/clip-style/" train "${options[@]}" --out x "${late[@]}" --clip-style check
refused "/eager-update/" train "${options[@]}" --out x "${late[@]}" --eager-update --clip 0
for offload in gradients:file=disk optimizer:file=disk,gradients:file=disk; do
    refused "/a second gradient.*gradients:file; leave one out/" train "${options[@]}" --out x "${late[@]}" --offload $offload
done
refused "/or give gradients:host/" train "${options[@]}" --print-program --device cuda:h200 "${late[@]}" --clip 0 --offload gradients:file=disk

# Weights, in an evaluation too: a copy here, which only verify allows.
pgpt verify --threads 1 --steps 3 --offload weights,gradients,optimizer:file=disk,activations:host --offload-bucket-mb 0.01
grep -q ', 0 differ' out || fail "verify: $(cat out)"

# Sums over tensors come out the same where an update is cut: a model of several runs of them.
pgpt verify --threads 1 --steps 2 --layers 2 --channels 160 --vocab 37 --context 8 --optimizer lamb --offload optimizer:file=disk \
    --offload-bucket-mb 0.01 --only '1 micro-batch'
grep -q ', 0 differ' out || fail "verify: $(cat out)"

# As little as fits is nothing here.
pgpt train "${options[@]}" --steps 6 --out auto --offload auto:file=disk
grep -q 'offload: nothing, for everything fits' err || fail "auto: $(cat err)"

# Where a run does not fit, what an optimizer that keeps nothing has is no reason to stop: activations are next.
refused '/this run needs .*iB .*are free/' train "${options[@]}" --out x --offload auto:file=disk --optimizer sgd --momentum 0 \
    --batch 16777216 --micro-batch 16777216

# A trace shows what each way is busy with.
pgpt train "${options[@]}" --steps 3 --out traced --trace "${away[@]}"
for way in out in; do grep -q "\"moves $way\"" traced/trace.json || fail "the trace has no track of moves $way"; done
! command -v python3 >/dev/null || python3 - traced/trace.json <<'END' || fail "the trace has no moves on their tracks"
import json, sys
trace = json.load(open(sys.argv[1]))
events = trace["traceEvents"] if isinstance(trace, dict) else trace
tracks = {event["args"]["name"]: event["tid"] for event in events if event.get("name") == "thread_name"}
for way, name in (("out", "offload"), ("in", "fetch")):
    found = [event for event in events if event.get("tid") == tracks["moves " + way] and event.get("ph") == "X"]
    assert len(found) >= 3 and all(event["name"].startswith(name) for event in found), (way, found[:3])
END
rm -r traced

# Measured.
pgpt bench step "${TINY[@]:0:8}" --steps 2 --batch 2 --threads 1 --offload optimizer:file=disk,activations:file=disk --json
(($(tail -n 1 out | field moved_in_bytes) > 0)) || fail "bench step has moved nothing: $(cat out)"

# What cannot be.
refused "/optimizer:file=DIR/" train "${options[@]}" --out x --offload optimizer
refused "/disk2/" train "${options[@]}" --out x --offload optimizer:file=disk2
refused "/auto:file=DIR/" train "${options[@]}" --out x --offload auto
refused "/leave out the rest/" train "${options[@]}" --out x --offload auto:file=disk,optimizer:file=disk
refused "/gradients:host/" train "${options[@]}" --print-program --device cuda:h200 --offload gradients:file=disk
refused "/sample-tokens 0/" train "${options[@]}" --sample-tokens 4 --out x --offload weights:file=disk
refused "/pgpt train/" verify --offload auto
refused "/weights or activations/" train "${options[@]}" --out x --offload moments
refused "/twice/" train "${options[@]}" --out x --offload optimizer:file=disk,optimizer:file=disk
refused "/keeps nothing/" train "${options[@]}" --out x --offload optimizer:file=disk --optimizer sgd --momentum 0
refused "/--offload/" train "${options[@]}" --out x --offload-share 0.5
refused "/file=DIR/" train "${options[@]}" --out x --offload-io threads
refused "/auto, uring, threads/" train "${options[@]}" --out x --offload optimizer:file=disk --offload-io aio
