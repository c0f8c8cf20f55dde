#!/bin/bash
# verify --offload: no bit of any layout changes. Some layouts, in which every choice meets; LONG=1 takes more.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

n=10
! is_long || n=200
# Sums of gradients where a rank holds what it sums.
limit=300 ranks 4 verify --layers 5 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 3 --sample $((n / 2)) \
    --offload gradients,optimizer:file=. --offload-bucket-mb 0.005 --only 'zero 2|zero 3|pp 2, tp 2'
grep -q "$((n / 2)) layouts in .*, 0 differ" out || fail "verify --offload gradients says: $(cat out)"
# Weights and sums of gradients, at the host and in files, with every strategy: what is sent is of what was fetched.
for words in weights:host,gradients:host weights:file=.,gradients:file=.,optimizer:file=.; do
    limit=300 ranks 4 verify --layers 5 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 3 --sample $((2 * n)) \
        --offload "$words" --offload-bucket-mb 0.005
    grep -q "$((2 * n)) layouts in .*, 0 differ" out || fail "verify --offload $words says: $(cat out)"
done
# Updates that are a step late: as one process makes them of gradients that it keeps, with the same bits wherever state is.
limit=300 ranks 4 verify --layers 5 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 5 --delayed-update 2 --sample $((2 * n)) \
    --offload optimizer:file=. --offload-bucket-mb 0.005
grep -q "$((2 * n)) layouts in .*, 0 differ" out || fail "verify --delayed-update says: $(cat out)"
# Every optimizer and all kinds of moments, sharded and not.
for words in "--optimizer lamb" "--optimizer muon --moments 8bit" "--moments 8bit" "--moments bf16"; do
    # shellcheck disable=SC2086
    limit=300 ranks 4 verify --layers 5 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 2 --sample $((n / 2)) \
        --offload optimizer:file=. --offload-bucket-mb 0.005 $words
    grep -q "$((n / 2)) layouts in .*, 0 differ" out || fail "verify --offload $words says: $(cat out)"
done
for words in optimizer:file=.,activations:host optimizer:host,activations:file=.; do
    limit=300 ranks 4 verify --layers 5 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1 --steps 3 --sample $n \
        --offload "$words" --offload-bucket-mb 0.005
    grep -q "$n layouts in .*, 0 differ" out || fail "verify --offload $words says: $(cat out)"
done

# An evaluation finds the weights where a step has left them, whatever else of the step is away: with ZeRO-3, too.
for zero in 1 3; do
    words=("${TINY[@]}" --layers 2 --zero "$zero" --eval-every 2 --eval-batches 2)
    rm -rf here away
    ranks 2 train "${words[@]}" --out here
    ranks 2 train "${words[@]}" --out away --offload optimizer:file=.,weights:file=.,gradients:file=.
    grep -q '"val_loss":' here/metrics.jsonl || fail "no evaluations"
    [[ $(grep -o '"val_loss":[^,}]*' here/metrics.jsonl) == "$(grep -o '"val_loss":[^,}]*' away/metrics.jsonl)" ]] ||
        fail "ZeRO $zero: evaluations differ: $(grep -h val_loss here/metrics.jsonl away/metrics.jsonl)"
done

# A model so small that a rank has nothing to update has nothing to offload there.
words=("${TINY[@]}" --layers 1 --heads 1 --channels 2 --zero 1 --bucket-mb 0)
ranks 2 train "${words[@]}" --out few
ranks 2 train "${words[@]}" --out few-away --offload optimizer:file=.
same_losses few few-away
diff -r few/checkpoints few-away/checkpoints || fail "a rank without state: other checkpoints"
