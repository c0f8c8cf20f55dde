#!/bin/bash
# pgpt lab pipeline --measure: schedules run by ranks whose stages sleep, beside their prediction; and the trace of a pipeline,
# drawn as a prediction is. No time is compared with anything that a busy machine could miss: bench/scaling does that.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

of() { # SCHEDULE KEY
    sed 's/.*"schedules":\[//; s/\].*//; s/},{/}\n{/g' <<<"$line" | grep "\"schedule\":\"$1\"" | field "$2"
}

# By itself: it starts the ranks. Nobody can sleep for less than was asked for, so a step is never shorter than its work.
pgpt lab pipeline --measure --pp 3 --micro-batches 6 --steps 2 --forward-ms 4 --backward-ms 4 --weight-ms 4 --json --out self
line=$(tail -n 1 out)
check_json <<<"$line"
while read -r name held versions; do
    awk -v ms="$(of "$name" measured_step_ms)" 'BEGIN { exit !(ms >= 6 * 12 * 0.9 && ms < 1e5) }' || fail "$name: $line"
    awk -v share="$(of "$name" measured_share)" 'BEGIN { exit !(share >= 0 && share < 1) }' || fail "$name: $line"
    [[ $(of "$name" planned_held) == "$held" && $(of "$name" planned_versions) == "$versions" ]] || fail "$name: $line"
    grep -Eq "^$name +[12] +[0-9.]+ +[0-9.]+ " out || fail "no line of $name: $(cat out)"
    # On a busy machine a step is long and a forward narrow: its label is then the number alone.
    grep -Eq '>F?0<' "self/pipeline-$name-measured.svg" || fail "the picture of $name lacks a forward"
    for part in '>stage 2, rank 2<' '>waiting<' "$name as it was run: bubble" 'mpirun -n 3 pgpt lab pipeline --measure'; do
        grep -qF "$part" "self/pipeline-$name-measured.svg" || fail "the picture of $name lacks $part"
    done
done <<'END'
naive 1.0 1
gpipe 6.0 1
1f1b 3.0 1
interleaved 4.5 1
zb-h1 3.0 1
zb-h2 5.0 1
zb-v 3.5 1
pipedream 3.0 3
pipedream-2bw 3.0 2
END
# One stage works at a time: three times the work, and more than any other schedule takes.
awk -v naive="$(of naive measured_step_ms)" 'BEGIN { exit !(naive >= 3 * 6 * 12 * 0.9) }' || fail "naive: $line"
grep -qF '>W0<' self/pipeline-zb-h1-measured.svg || fail "weight gradients are not apart"
! grep -qF '>W0<' self/pipeline-1f1b-measured.svg || fail "1f1b has weight gradients of its own"
[[ $(find self -name '.runs-*' | wc -l) == 0 ]] || fail "a trace was left: $(ls -a self)"

# Under mpirun, a stage for every rank. Messages that take longer than the work: --check says so, and fails.
code=0
timeout -k 5 120 "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" lab pipeline --measure --check --micro-batches 4 --steps 1 --schedule zb-h2 \
    --forward-ms 0.001 --backward-ms 0.001 --weight-ms 0.001 --out there >out 2>err </dev/null || code=$?
((code == 1)) || fail "exit $code: $(cat out err)"
grep -q -- '--check: zb-h2 has another bubble than predicted' err || fail "$(cat err)"
grep -q '^measured on 2 ranks' out || fail "$(cat out)"
ranks_refused '/--pp 3 wants as many ranks, and there are 2/' 2 lab pipeline --measure --pp 3
ranks_refused '/--launcher starts ranks/' 2 lab pipeline --measure --launcher mpirun
refused '/--check is of --measure/' lab pipeline --quick --check
refused '/--steps is of --measure/' lab pipeline --steps 3
refused '/--quick measures nothing/' lab pipeline --measure --quick
refused '/--message-ms is predicted with/' lab pipeline --measure --message-ms 1
refused '/--pp 2 or more/' lab pipeline --measure --pp 1
refused '/no-such-launcher/' lab pipeline --measure --launcher ./no-such-launcher

# A traced run of a pipeline: a band for every stage, its actions as boxes with their micro-batches.
ranks 2 train --layers 4 --heads 2 --channels 16 --context 16 --batch 4 --micro-batch 1 --pp 2 --schedule interleaved --steps 3 \
    --sample-tokens 0 --tokenizer char --eval-every 0 --no-save --quiet --out run --trace trace.json --trace-steps 2:2
grep -q '"name":"forward 3","cat":"step","pid":1,.*"args":{"number":3,"stage":1,"chunk":1}' trace.json || fail "no such action"
pgpt lab timeline trace.json --out drawn
for part in '>stage 0, rank 0<' '>stage 1, rank 1<' '>chunk 1<' '>forward<' '>backward<' '>step 2<'; do
    grep -qF "$part" drawn/timeline.svg || fail "the trace's picture lacks $part"
done
grep -Eq '>(F|B)?[0-3]<' drawn/timeline.svg || fail "no box has a number"
grep -q '^stage 1, rank 1 ' out || fail "$(cat out)"
