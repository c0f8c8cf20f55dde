#!/bin/bash
# Pipeline parallelism: blocks divided among stages give the losses, norms, evaluations, texts and checkpoints of one process, in
# every schedule and together with the other axes; what cannot be is said with what can. LONG=1 tries clipping in every layout.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do
    echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11)) of $((i * 7 % 17))"
done >book.txt
small=(train "${TINY[@]}" --layers 16 --heads 4 --channels 24 --batch 8 --tokenizer word --data book.txt --lr 0.003
    --lr-schedule constant --beta2 0.95 --epsilon 1e-3 --dropout 0.1 --eval-every 4 --eval-batches 2)

# same_numbers RUN RUN: in every step that the second one has done.
same_numbers() {
    local key n
    n=$(column "$2" loss | wc -w)
    ((n > 0)) || depth=1 fail "$2 has no steps"
    for key in loss grad_norm tokens lr; do
        close_numbers 1e-4 "$(column "$1" $key | head -n "$n")" "$(column "$2" $key)"
    done
    n=$(column "$2" val_loss | wc -w)
    ((n > 0)) || depth=1 fail "$2 was not evaluated"
    close_numbers 1e-4 "$(column "$1" val_loss | head -n "$n")" "$(column "$2" val_loss)"
}

# Every synchronous schedule follows one process; 16 blocks do not divide by 3, nor 8 sequences into micro-batches of 3.
pgpt "${small[@]}" --steps 24 --save-every 4 --keep 10 --out whole
while read -r n words; do
    rm -rf run
    # shellcheck disable=SC2086 # several words
    ranks "$n" "${small[@]}" --steps 4 --out run $words
    same_numbers whole run
    grep -Eq 'rank 0 waited [0-9.]+ ms for messages of other stages' err || fail "$words: nothing of what was waited for: $(cat err)"
    for key in comm_ms comm_wait_ms stage_wait_ms; do
        awk "BEGIN { exit !($(tail -n 1 run/metrics.jsonl | field $key) > 0) }" || fail "$words: $key: $(tail -n 1 run/metrics.jsonl)"
    done
done <<END
2 --pp 2 --schedule naive --micro-batch 4
3 --pp 3 --schedule gpipe --micro-batch 4
3 --pp 3 --stages 5,6,5 --micro-batch 1
2 --pp 2 --schedule interleaved --chunks 3 --recompute 1
3 --pp 3 --recompute-stages 2,0,1 --micro-batch 1
4 --pp 2 --tp 2 --schedule zb-h1 --recompute-stages 1,0
3 --pp 3 --schedule zb-h1
4 --pp 2 --tp 2 --schedule zb-h2
4 --pp 2 --dp 2 --schedule zb-v --zero 2
END

# Each stage recomputes by itself: the first one's frames are those of a run that recomputes everywhere, or of one that does not.
frame_of() {
    ranks 2 "${small[@]}" --pp 2 --micro-batch 1 --print-program "$@"
    sed -nE 's/^ *([0-9]+) bytes a frame.*/\1/p' out | sort -n | tail -n 1
}
kept=$(frame_of) everywhere=$(frame_of --recompute 1)
((everywhere > 0 && everywhere * 4 < kept)) || fail "frames of $kept bytes, and of $everywhere with --recompute"
[[ $(frame_of --recompute-stages 1,0) == "$everywhere" ]] || fail "the first stage does not recompute by itself"
[[ $(frame_of --recompute-stages 0,1) == "$kept" ]] || fail "the first stage recomputes because the second does"

# Without a flush weights are late: other numbers, and every run has the same ones (what they are: pgpt verify).
for schedule in pipedream pipedream-2bw; do
    for again in 1 2; do
        rm -rf "late-$again"
        ranks 3 "${small[@]}" --steps 4 --pp 3 --schedule $schedule --out "late-$again"
    done
    [[ $(column late-1 loss) == "$(column late-2 loss)" ]] || fail "$schedule: two runs differ"
    [[ $(column late-1 loss) != "$(column whole loss | head -n 4)" ]] || fail "$schedule is not late"
done

# Clipping that does not wait has the bits of clipping that does: half of the steps are clipped, some after several that are not.
clipped=('4 --pp 2 --zero 1' '2 --pp 2 --dtype f16')
! is_long || clipped+=('2 --pp 2 --schedule zb-h2' '2 --zero 2')
for layout in "${clipped[@]}"; do
    n=${layout%% *} words=${layout#* }
    for style in wait check; do
        rm -rf "clip-$style"
        # shellcheck disable=SC2086 # several words
        ranks "$n" "${small[@]}" --layers 4 --steps 60 --clip 1.0 --clip-style $style --eval-every 25 --out "clip-$style" $words
    done
    for key in loss grad_norm val_loss; do
        [[ $(column clip-wait $key) == "$(column clip-check $key)" ]] || fail "$words: another $key with --clip-style check"
    done
    n=$(column clip-wait grad_norm | awk '$1 > 1.0' | wc -l)
    ((n > 5 && n < 55)) || fail "$n of 60 steps were clipped"
    for file in clip-wait/checkpoints/step-00000060/*.safetensors; do
        cmp "$file" "clip-check/checkpoints/step-00000060/$(basename "$file")" || fail "$words: other weights with --clip-style check"
    done
done

# A curve of many layouts, and back to the first.
ranks 8 "${small[@]}" --steps 4 --dp 2 --tp 2 --pp 2 --zero 1 --keep 10 --out chain
while read -r n steps words; do
    # shellcheck disable=SC2086 # several words
    ranks "$n" train --resume chain --steps "$steps" $words
done <<END
8 8 --tp 4 --dp 2 --pp 1 --zero 3
8 12 --tp 1 --dp 1 --pp 8 --schedule interleaved --zero 0
4 16 --tp 1 --dp 2 --cp 2 --pp 1 --zero 2
1 20 --tp 1 --dp 1 --cp 1 --pp 1 --zero 0
8 24 --tp 2 --dp 2 --pp 2 --zero 1
END
(($(column chain loss | wc -w) == 24)) || fail "not 24 steps: $(cat chain/metrics.jsonl)"
same_numbers whole chain

# A folder for Hugging Face comes of any of them: it says of a text what the folder of one process does.
for step in 04 08 12 16 20 24; do
    for run in whole chain; do
        pgpt convert "$run/checkpoints/step-000000$step" "$run-$step"
        pgpt eval "$run-$step" --data book.txt --tokens-limit 400 --threads 1 --json
        tail -n 1 out | field loss >"$run-$step.loss"
    done
    cmp -s {whole,chain}-$step/config.json || fail "another model: $(diff {whole,chain}-$step/config.json)"
    close_numbers 1e-4 "$(cat whole-$step.loss)" "$(cat chain-$step.loss)"
done
(($(sort -u chain-*.loss | wc -l) == 6)) || fail "folders of different steps say the same: $(cat chain-*.loss)"

# What is in the program: messages at the ends of the parts, and the part that waits.
ranks 2 "${small[@]}" --pp 2 --schedule zb-h1 --print-program
for words in ' send_start .* to rank 1' ' send_wait ' ' receive .* from rank 1' ' receive_start .*not last micro-batch' ' weight  *linear'; do
    grep -q "$words" out || fail "no '$words' in the program: $(head -n 40 out)"
done
grep -q 'weight gradient 0@0' out || fail "no weight gradients among the actions: $(tail -n 5 out)"

# Nobody knows better than the trace: every action of every stage.
ranks 3 "${small[@]}" --steps 2 --pp 3 --micro-batch 2 --trace --out traced
pgpt lab timeline traced/trace.json --out drawn --json
[[ $(tail -n 1 out | field ranks) == 3 ]] || fail "the trace: $(tail -n 1 out)"
for stage in 0 1 2; do
    for micro in 0 3; do
        grep -q "\"forward $micro\".*\"pid\":$stage,.*\"stage\":$stage," traced/trace.json ||
            fail "no forward $micro of stage $stage: $(grep -m 5 forward traced/trace.json)"
    done
done

# A rank that is late is waited for; one that is gone or stopped is named, and so is where all others were.
ranks_apart 3 "${small[@]}" --steps 20 --pp 3 --hang-timeout 20 --out delayed &
job=$!
for ((i = 0; i < 300; i++)); do
    [[ ! -s delayed/metrics.jsonl ]] || break
    sleep 0.02
done
process=$(cat "$SCRATCH/pid.$((RANDOM % 3))")
kill -STOP "$process" 2>/dev/null || true # on a quick machine it is over
sleep 1
kill -CONT "$process" 2>/dev/null || true
wait $job || fail "exit $? of a job with a late rank: $(cat "$SCRATCH"/err.*)"
same_numbers whole delayed
unset OMPI_MCA_odls_base_sigkill_timeout # as users have it: those that are left have a second to say what they see
for kind in kill stop; do
    rank=$((RANDOM % 3)) code=0
    timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" 3 "$PGPT" "${small[@]}" --steps 1000 --eval-every 0 --pp 3 --micro-batch 1 --hang-timeout 2 \
        --no-save --fault $kind:$rank:3 --out "struck-$kind" >out 2>err </dev/null || code=$?
    ((code != 0 && code != 124)) || fail "$kind of rank $rank: exit $code: $(cat err)"
    # MPICH's launcher kills those that are left at once.
    if [[ $kind == kill ]] && "$MPIEXEC" --version 2>/dev/null | grep -qi hydra && ! grep -q 'is gone' err; then continue; fi
    grep -Eq "rank $rank .*(is gone|has not been heard of)" err || fail "no word of rank $rank: $(cat err)"
    grep -Eq '^  rank [0-2] .*: step 3, (forward|backward) [0-7] of stage [0-2], ' err ||
        fail "not which action of which stage: $(cat err)"
done

# Without a flush a rank comes to a step while others are in the one before: the fault is in its step, not where the row of them began.
for kind in error hang; do
    code=0
    timeout -k 5 60 "$MPIEXEC" "$MPIEXEC_N" 3 "$PGPT" "${small[@]}" --steps 1000 --eval-every 0 --pp 3 --micro-batch 1 --hang-timeout 2 \
        --schedule pipedream --no-save --fault $kind:1:5 --out "unflushed-$kind" >out 2>err </dev/null || code=$?
    ((code != 0 && code != 124)) || fail "$kind without a flush: exit $code: $(cat err)"
    words='error was thrown before step 5'
    [[ $kind == error ]] || words='^  rank 1 .*: step 5'
    grep -Eq "$words" err || fail "$kind: not in step 5: $(cat err)"
done

# What was said of a pipeline goes with it: chunks with the schedule, the blocks of stages with their number. It is said.
ranks 2 "${small[@]}" --steps 1 --pp 2 --schedule interleaved --chunks 2 --stages 3,5,5,3 --out other
ranks 2 train --resume other --steps 2 --schedule zb-v
! grep -Eq -- '--(chunks|stages) as is the default' err || fail "as many stages, and not the blocks that were named: $(cat err)"
ranks 2 train --resume other --steps 3 --schedule gpipe
grep -q -- '--chunks as is the default instead of 2, --stages as is the default instead of 3,5,5,3 from step 2 on' err ||
    fail "nothing of what goes with the schedule: $(cat err)"
ranks 4 train --resume other --steps 4 --pp 4
close_numbers 1e-4 "$(column whole loss | head -n 4)" "$(column other loss)"

# Nor can a call leave out what another one was given: what excludes something that is given now goes back to its default.
ranks 2 "${small[@]}" --steps 1 --tp 2 --tp-chunks 2 --recompute 1 --clip-style check --out said
while read -r step words; do
    # shellcheck disable=SC2086
    ranks 2 train --resume said --steps "$step" ${words% note:*}
    grep -qF -e "${words#* note: }" err || fail "$words: $(cat err)"
done <<END
2 --tp-style row note: --tp-chunks as is the default instead of 2
3 --tp 1 --pp 2 --recompute-stages 1,0 note: --recompute as is the default instead of 1
4 --recompute 2 note: --recompute-stages as is the default instead of 1,0
5 --schedule pipedream note: --clip-style as is the default instead of check
END

# What cannot be, with the nearest that can.
no() {
    depth=2 at_once ranks_refused "$1" "$2" "${small[@]}" --out bad "${@:3}"
}
no '/--pp 2 makes more stages than the model.s 1 blocks; choose --pp 1, or --layers 2/' 2 --pp 2 --layers 1
no '/--pp 2 with 2 chunks a stage makes 4 parts of a model of 3 blocks, and each needs one; choose .*--layers 4/' 2 --pp 2 --layers 3 \
    --schedule interleaved
no '/--pp 2 does not divide the 3 ranks of this run; start 2 or 4 ranks \(mpirun -n\), or choose --pp 1 or --pp 3/' 3 --pp 2
no '/--pp 2 --dp 2 does not multiply to the 3 ranks of this run; start 4 ranks \(mpirun -n\)/' 3 --pp 2 --dp 2
no '/--schedule pipedream-2bw needs as many micro-batches in a step as there are stages: with --pp 3 at least 3, not 2; .*--pp 2/' 3 --pp 3 \
    --schedule pipedream-2bw --micro-batch 4
no '/--stages 3,3 names 2 stages; --pp 3 has 3 in the order of the model, as /' 3 --pp 3 --stages 3,3
no '/--recompute-stages 1,0,1 is of 3 stages; --pp 2 has 2/' 2 --pp 2 --recompute-stages 1,0,1
no '/--recompute-stages 1,x: number 2 is not one from 0 to 1000; /' 2 --pp 2 --recompute-stages 1,x
no '/--recompute-stages 1,0 says of each stage what --recompute 1 says of all; /' 2 --pp 2 --recompute-stages 1,0 --recompute 1
no '/--recompute-stages 1,0 says of each stage what --recompute selective says of all; /' 2 --pp 2 --recompute-stages 1,0 --recompute selective
no '/--stages 8,x: number 2 is not a number of blocks, 1 or more; /' 2 --pp 2 --stages 8,x
no '/--stages 8,9 has 17 blocks and the model 16; /' 2 --pp 2 --stages 8,9
no '/--schedule 1f1b has one chunk a stage, not 2; leave --chunks out, or choose --schedule interleaved/' 2 --pp 2 --chunks 2
no '/--schedule zb-v has --chunks 2, not 3; /' 2 --pp 2 --schedule zb-v --chunks 3
no '/--schedule wants one of .*did you mean zb-v\?/' 2 --pp 2 --schedule zbv
no '/--chunks means something only with --pp 2 or more/' 2 --chunks 2
no '/--schedule pipedream lets every stage clip by a norm of its own, .*leave it out/' 2 --pp 2 --schedule pipedream --clip-style check
no '/--clip-style check has nothing to check with --clip 0/' 2 --pp 2 --clip 0 --clip-style check
no '/--schedule pipedream is not flushed between steps, and the loss scale of f16/' 2 --pp 2 --schedule pipedream --dtype f16
no '/--sync local is of ranks that have a whole model each, and --pp 2 divides one among them; leave one out/' 2 --pp 2 --sync local
no '/--micro-batch 1 cuts the 4194304 sequences of a rank into more than the 524288 micro-batches that a pipeline of so many chunks can have; raise it to 8, or lower --batch/' \
    2 --pp 2 --schedule zb-v --batch 4194304 --micro-batch 1
all_done
