#!/bin/bash
# Expert parallelism where load is as lopsided as it can be, with every router: all tokens the same, more experts than
# tokens, room for one token, experts and ranks that get nothing. Two ranks give the numbers of one process, and never hang.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

printf 'a%.0s' {1..3000} >same.txt
printf 'b%.0s' {1..400} >>same.txt
small=(train "${TINY[@]}" --layers 2 --heads 2 --channels 16 --context 8 --batch 3 --tokenizer char --data same.txt --steps 4
    --lr 0.01 --lr-schedule constant --no-save --sample-tokens 0 --eval-every 0)

# check NAME RANKS WORDS...: as one process with the same words, but for --ep.
check() {
    local name=$1 n=$2 words=("${@:4}")
    pgpt "${small[@]}" --out "$name-1" "${words[@]}"
    # shellcheck disable=SC2086 # several words
    limit=60 ranks "$n" "${small[@]}" --out "$name-$n" "${words[@]}" $3
    for key in loss grad_norm balance_loss expert_load empty_experts dropped; do
        close_numbers 1e-4 "$(column "$name-1" $key)" "$(column "$name-$n" $key)"
    done
}

i=0
for router in topk switch gshard noisy-topk balance-free expert-choice; do
    # In turn, unless there is time: what happens to rows is the same for all routers.
    if is_long || ((i % 3 == 0)); then at_once check "$router-same" 2 '--ep 2' --router $router --experts 4; fi
    if is_long || ((i % 3 == 1)); then
        at_once check "$router-many" 2 '--ep 2 --zero 1' --router $router --experts 60 --expert-hidden 4
    fi
    if is_long || ((i % 3 == 2)); then
        at_once check "$router-room" 2 '--ep 2' --router $router --experts 5 --expert-capacity 0.001 --recompute 1
    fi
    ((++i))
done
# Ranks whose experts nobody wants.
at_once check alone 3 '--ep 3' --router switch --experts 3 --balance-loss 0 --z-loss 0
! is_long || at_once check accumulated 4 '--ep 2 --dp 2' --router topk --experts 5 --batch 6 --micro-batch 1
all_done
