#!/bin/bash
# Mixtures of experts from the command line: every router learns, reports every step, is saved and goes on bit for bit;
# what they cannot do is refused.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=(--layers 2 --channels 32 --heads 2 --context 32 --batch 4 --experts 4 --threads 2 --log-every 1)

for router in topk switch gshard noisy-topk balance-free expert-choice; do
    pgpt train "${small[@]}" --router "$router" --expert-capacity 1.5 --steps 12 --save-every 6 --out "$router" --json
    tail -n 1 out | check_json
    for name in balance_loss z_loss dropped expert_load router_entropy empty_experts; do
        (($(grep -c "\"$name\":" "$router/metrics.jsonl") == 12)) || fail "$router: not every step says $name"
        tail -n 1 out | field "$name" >/dev/null || fail "$router: the last line does not say $name"
    done
    awk "BEGIN { exit !($(column "$router" loss | tail -n 1) < $(column "$router" loss | head -n 1)) }" ||
        fail "$router learns nothing: $(column "$router" loss)"
    awk "BEGIN { exit !($(column "$router" router_entropy | head -n 1) <= 1.3863) }" || fail "$router: more than log 4"

    # As if it had not been interrupted.
    cp -r "$router" again
    rm -r "again/checkpoints/step-00000012"
    pgpt train --resume again
    cmp "$router/checkpoints/step-00000012/model.safetensors" "again/checkpoints/step-00000012/model.safetensors" ||
        fail "$router does not go on where it stopped"
    diff <(grep -A 20 router_bias "$router/checkpoints/step-00000012/manifest.json" | head -n 12) \
        <(grep -A 20 router_bias "again/checkpoints/step-00000012/manifest.json" | head -n 12) || fail "$router: biases"
    rm -r again
done

# With the cache and without it the model says the same.
pgpt generate topk --tokens 24 --temperature 0
cp out cached
pgpt generate topk --tokens 24 --temperature 0 --no-cache
cmp out cached || fail "the cache changes what the model says"

# What experts make is added to the stream, and its gradient is the stream's, not a copy.
pgpt train "${small[@]}" --shared-experts 0 --steps 1 --print-program
grep -q ' expert_scatter_backward ' out || fail "no experts in the program"
! grep -q ' copy ' out || fail "a gradient is copied: $(grep ' copy ' out)"

# Who chooses from whole sequences cannot write.
refused /expert-choice/ generate expert-choice --tokens 5
refused /sample-tokens/ train "${small[@]}" --router expert-choice --sample-tokens 5 --steps 1
refused '/--router expert-choice and --depth-capacity do not go together/' train "${small[@]}" --router expert-choice \
    --depth-capacity 0.5 --steps 1
refused '/only with --experts/' train --router switch --steps 1
refused /experts-per-token/ train "${small[@]}" --experts-per-token 5 --steps 1
refused '/--balance-loss -0.5: a loss has no negative weight; choose one from 0 on, or -1 for 0.01/' \
    train "${small[@]}" --balance-loss -0.5 --steps 1
refused '/--z-loss -0.001: a loss has no negative weight/' train "${small[@]}" --z-loss -0.001 --steps 1
refused '/--router gshard sends a token to 2 experts, and there are --experts 1; choose more, or take --router topk/' \
    train "${small[@]}" --experts 1 --router gshard --steps 1

# Who trains a model further may do it with other losses and another capacity; what it is made of stays.
pgpt train --init topk --balance-loss 0.5 --z-loss 0 --expert-capacity 1 --batch 4 --steps 1 --out further
for option in 'balance-loss = 0.5' 'z-loss = 0' 'expert-capacity = 1'; do
    grep -q "^$option\$" further/config.ini || fail "no $option: $(grep -e loss -e capacity further/config.ini)"
done
refused '/has --experts 4, not 8; leave out --experts/' train --init topk --experts 8 --steps 1

# The experts of a token are the router's where the model's name does not say more.
pgpt train --model moe-mini --router switch --print-program
grep -q 'route .*(2048,1)' out || fail "not one expert a token: $(grep ' route ' out)"
