#!/bin/bash
# Asynchronous and local SGD: every scheme trains nano to within a stated distance of the exact run (docs/ASYNC.md), staleness is bounded,
# what can be repeated and resumed is, and nobody is left waiting.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --batch 12 --data book.txt --lr 0.003 --lr-schedule constant --warmup 0 --eval-every 0 --eval-batches 2)

# The stated distance.
distance=0.15
for sync in exact server push groups local; do
    ranks 4 train --model nano --data book.txt --tokenizer word --sequence 32 --batch 12 --steps 60 --warmup 10 --lr 1e-3 \
        --sample-tokens 0 --eval-every 0 --eval-batches 4 --sync $sync --out nano-$sync --json
    loss=$(tail -n 1 out | field val_loss)
    exact=${exact:-$loss}
    awk "BEGIN { exit !($loss - $exact < $distance && $exact < 1) }" ||
        fail "--sync $sync ends with a loss of $loss, exact with $exact: more than $distance apart"
    [[ $(tail -n 1 out | field sync) == "$sync" && $(head -n 1 nano-$sync/metrics.jsonl | field sync) == "$sync" ]] ||
        fail "it is not said that the run was $sync: $(tail -n 1 out)"
    (($(column nano-$sync loss | wc -l) == 60)) || fail "steps of $sync: $(column nano-$sync loss | wc -l)"
done

# A worker alone is never late: server and worker are one process, to the bit. And local with a step between averages is exact, for SGD.
pgpt "${small[@]}" --steps 10 --out one
ranks 2 "${small[@]}" --steps 10 --sync server --out two
same_losses one two
for array in model optimizer; do # rank 0 writes all of it
    cmp one/checkpoints/step-00000010/$array.safetensors two/checkpoints/step-00000010/$array-00001-of-00002.safetensors ||
        fail "a server with one worker has another $array"
done
sgd=("${small[@]}" --steps 10 --optimizer sgd --lr 0.1 --clip 0)
ranks 4 "${sgd[@]}" --out sgd
ranks 4 "${sgd[@]}" --sync local --sync-every 1 --out sgd-local
close_numbers 1e-5 "$(column sgd loss)" "$(column sgd-local loss)"

# The bound holds, whoever is slow.
ranks 4 "${small[@]}" --steps 12 --sync server --staleness 3 --delay-rank 3 --delay-ms 15 --out slow --json
line=$(tail -n 1 out)
(($(field max_staleness <<<"$line") <= 3 && $(field updates <<<"$line") == 36)) || fail "the bound: $line"
histogram=${line#*'"staleness_histogram":['}
histogram=${histogram%%]*}
((${histogram//,/+} == 36)) || fail "not every update is in the histogram: $line"
(($(column slow staleness | sort -n | tail -n 1) == $(field max_staleness <<<"$line"))) || fail "$(column slow staleness)"
ranks 4 "${small[@]}" --steps 6 --sync server --staleness 0 --delay-ms 2 --out serial --json
(($(tail -n 1 out | field max_staleness) == 0)) || fail "staleness 0: $(tail -n 1 out)"

# The same bits twice, and after a resume, where the same steps were saved; from one scheme to another and to one process.
for sync in push groups local; do
    run=("${small[@]}" --sync "$sync" --sync-every 3 --steps 10 --save-every 5 --keep 9)
    ranks 3 "${run[@]}" --out $sync
    cp -r $sync again-$sync
    rm -r again-$sync/checkpoints/step-00000010
    ranks 3 train --resume again-$sync
    same_losses $sync again-$sync
    diff -r $sync/checkpoints again-$sync/checkpoints || fail "--sync $sync, resumed, has other checkpoints"
done
ranks 3 train --resume again-push --sync server --steps 14
pgpt train --resume again-push --steps 18
grep -q 'with one process it goes on as exact' err || fail "not said: $(cat err)"
(($(column again-push loss | wc -l) == 18)) || fail "steps: $(column again-push loss | wc -l)"

# A signal to one rank stops all of them, after the same step, and the run can go on.
for sync in server groups; do
    limit=60 ranks_apart 3 "${small[@]}" --steps 100000 --sync $sync --out stopped-$sync --log-every 1000000 &
    process=$!
    until [[ -s stopped-$sync/metrics.jsonl && $(wc -l <stopped-$sync/metrics.jsonl) -gt 3 ]]; do sleep 0.05; done
    kill -TERM "$(<"$SCRATCH/pid.2")"
    wait $process || fail "exit $? of $sync after SIGTERM: $(cat "$SCRATCH"/err.*)"
    steps=$(column stopped-$sync loss | wc -l)
    [[ -d stopped-$sync/checkpoints/step-$(printf %08d "$steps") ]] || fail "$steps steps: $(ls stopped-$sync/checkpoints)"
    ranks 3 train --resume stopped-$sync --steps $((steps + 2))
done

# The program has no sums, and says what comes after a step.
ranks 4 "${small[@]}" --sync groups --print-program
! grep -q all_reduce out || fail "the program sums gradients"
grep -q 'after each step (--sync groups)' out || fail "what follows a step is not said: $(tail -n 20 out)"

# What cannot be.
at_once ranks_refused '/--zero 1 .*--sync push/' 2 "${small[@]}" --sync push --zero 1
at_once ranks_refused '/--group-size 3 is more than the 2 ranks/' 2 "${small[@]}" --sync groups --group-size 3
at_once ranks_refused '/--staleness means something only with --sync server or push/' 2 "${small[@]}" --sync local --staleness 2
at_once ranks_refused '/--sync server averages f32|--sync server .*--dtype/' 2 "${small[@]}" --sync server --dtype f16
all_done
refused '/--sync local is for several ranks/' "${small[@]}" --sync local

# The study.
pgpt lab staleness --parts schemes --ranks 3 --steps 6 --delay-ms 3 --out lab --json -- "${TINY[@]:0:8}" --batch 6 --threads 1 --tokenizer char
tail -n 1 out | check_json
(($(grep -cE '^(exact|server|push|groups|local) ' out) == 5)) || fail "the table: $(cat out)"
[[ -s lab/staleness.dat && -z $(find lab -name metrics.jsonl) ]] || fail "what is left: $(find lab)"
refused "/'fast' is none of exact, server/" lab staleness --schemes exact,fast
refused "/behind '--', --sync cannot be given/" lab staleness -- --sync local
# With the ranks of a launch.
ranks 3 lab staleness --parts schemes,overlap --overlap-steps 40 --draws 1 --schemes exact,server --steps 4 --delay-rank 2 --delay-ms 3 --staleness 1 --out here --json -- "${TINY[@]:0:8}" \
    --batch 6 --threads 1 --tokenizer char
(($(grep -cE '^(exact|server) ' out) == 2)) || fail "the table: $(cat out)"
[[ $(tail -n 1 out) == *'"sync":"server"'*'"max_staleness":'[01]* ]] || fail "the bound: $(tail -n 1 out)"
at_once ranks_refused "/--delay-rank 0 is the server/" 3 lab staleness --schemes exact,server --delay-rank 0
all_done
