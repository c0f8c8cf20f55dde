#!/bin/bash
# Sizes beyond all memory: refused at once, with what is needed and what there is, and no run folder.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

no() {
    depth=2 refused '/needs? .*[KMGTPE]iB.*[KMGTPE]iB are free; /' train --out run --sample-tokens 0 "$@"
}

no --layers 1000 --channels 100000
no --vocab 1073741824
no --hidden 1073741824
no --context 1073741824 --sequence 16
no --model gpt3-175b
no --model gpt3-175b --optimizer sgd --eager-update --clip 0
no --batch 1000000000
no --batch 1073741824 --context 4
no --batch 1073741824 --micro-batch 536870912 --context 2 --channels 64
no --batch 1073741824 --recompute 1000 --channels 1024 --heads 1
no --batch 20000000 --loss-chunk 1073741824

# More than can even be counted.
refused '/choose smaller/' train --out run --channels 1000000000
refused '/choose smaller/' train --out run --channels 1073741824 --heads 1073741824 --layers 1000 --vocab 1073741824
refused '/--batch.*--sequence/' train --out run --batch 1073741824 --context 1073741824
refused '/1073741825/' train --out run --context 1073741824
refused '/--layers/' train --out run --layers 1000000000000

# The sampler's caches count too, and only they need much here.
long=("${TINY[@]}" --position rotary --layers 100 --context 1073741824 --sequence 16 --channels 8 --heads 1)
refused '/iB of it to write samples\), .*iB are free; use --sample-tokens 0$/' train "${long[@]}" --out run --sample-tokens 5
pgpt train "${long[@]}" --out run --steps 1
