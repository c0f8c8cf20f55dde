#!/bin/bash
# --recompute-blocks: the bits of a run without it, whatever the model is made of, with and without --recompute selective
# of the others; the more blocks, the less memory.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=(train "${TINY[@]}" --layers 4 --heads 4 --channels 32 --context 20 --batch 4 --steps 12 --lr 0.003)
llama="--norm rmsnorm --mlp swiglu --position rotary --kv-heads 2 --no-bias --no-tied"
experts="--experts 4 --experts-per-token 2 --expert-every 2"
while read -r name words; do
    for how in "" "--recompute-blocks 1" "--recompute-blocks 3" "--recompute selective --recompute-blocks 2"; do
        # shellcheck disable=SC2086 # several words
        pgpt "${small[@]}" $words $how --out "$name${how//[ -]/}"
        [[ ! $how ]] || same_losses "$name" "$name${how//[ -]/}"
        [[ ! $how ]] || same_model "$name" "$name${how//[ -]/}"
    done
done <<END
gpt2
dropout --dropout 0.1 --mlp gelu-erf
micro --dropout 0.1 --micro-batch 1 --threads 2
bf16 --dtype bf16 --dropout 0.1
llama $llama --dropout 0.1
experts $experts --dropout 0.1
depth --depth-capacity 0.25 --depth-every 2
documents --attention window:8 --document-mask --document-end 10
offload --offload activations:file=.
END

# Each block that is recomputed keeps one number of 16, and of those that are not 10 are kept by what is selective.
activations() {
    pgpt train --model nano --layers 8 --steps 1 --print-program "$@"
    awk '$1 == "activations" { print $2; exit }' out
}
none=$(activations) two=$(activations --recompute-blocks 2) six=$(activations --recompute-blocks 6)
all=$(activations --recompute-blocks 8) full=$(activations --recompute full)
both=$(activations --recompute selective --recompute-blocks 2) selective=$(activations --recompute selective)
((six < two && two < none && all == full)) || fail "none $none, two $two, six $six, all $all, full $full"
((both < selective && both < two)) || fail "selective $selective, two $two, both $both"
((two < none - none / 8 && six * 5 < none * 2)) || fail "none $none, two $two, six $six"

# With sequence parallelism the gathers of a recomputed block are repeated with it; the last one, which is left as it is,
# repeats one of its two, or both.
gathers() {
    pgpt train --model nano --layers 4 --batch 8 --tp 2 --print-mesh "$@"
    awk '$1 == "tp" && $2 == "all-gather" { print $3 }' out
}
full=$(gathers --recompute full)
(($(gathers --recompute-blocks 4) == full + 1)) || fail "gathers: $(cat out), $full with --recompute full"
(($(gathers --recompute selective --recompute-blocks 4) == full + 2)) || fail "gathers: $(cat out), $full"

# A resumed run takes it from its record, and another call may choose otherwise.
grep -q '^recompute-blocks *= *3$' gpt2recomputeblocks3/config.ini || fail "recorded: $(cat gpt2recomputeblocks3/config.ini)"
pgpt train --resume gpt2recomputeblocks3 --steps 14
pgpt train --resume gpt2 --steps 14 --recompute-blocks 2
same_model gpt2 gpt2recomputeblocks3
pgpt train --resume gpt2 --steps 15 --recompute 1
pgpt train --resume gpt2 --steps 16 --recompute-blocks 1
# What was never given is no change, and to give 0 takes nothing away.
pgpt "${small[@]}" --recompute 1 --out whole
pgpt train --resume whole --steps 13 --recompute-blocks 0
grep -q '^recompute *= *1$' whole/config.ini || fail "--recompute 1 was dropped: $(cat whole/config.ini)"
pgpt "${small[@]}" --out never
pgpt train --resume never --steps 13 --recompute 1
! grep -q 'recompute-blocks' err || fail "a change that was none: $(cat err)"

refused "/--recompute 1 recomputes all blocks, and --recompute-blocks 2 the first ones; leave one out/" \
    "${small[@]}" --recompute 1 --recompute-blocks 2 --out x
refused "/--recompute-blocks 5: the model has 4; give --recompute 1 for all/" "${small[@]}" --recompute-blocks 5 --out x
refused "/--recompute-blocks wants a whole number/" "${small[@]}" --recompute-blocks two --out x

# The search knows blocks that are all alike.
refused "/--recompute-blocks 2: the search knows what all blocks do alike, --recompute; leave it out/" \
    plan --machine h200 --gpus 2 --model nano --tune --recompute-blocks 2
refused "/--recompute 2 recomputes all blocks/" bench step --layers 2 --heads 2 --channels 16 --context 16 --batch 4 \
    --recompute 2 --recompute-blocks 1

pgpt plan --machine h200 --gpus 1 --model nano --recompute-blocks 2
grep -q 'the first 2 blocks of a chunk recomputed' out || fail "plan: $(cat out)"
pgpt bench step --layers 2 --heads 2 --channels 16 --context 16 --batch 4 --steps 1 --recompute-blocks 1 --json
tail -n 1 out | check_json
