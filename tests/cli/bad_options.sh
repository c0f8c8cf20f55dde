#!/bin/bash
# Options that cannot be: exit 2, a message that names the option, and nothing left behind.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

no() {
    local pattern=$1
    shift
    depth=2 refused "$pattern" train "${TINY[@]}" --out run "$@"
}

no '/unknown option --bogus/' --bogus 1
no '/--steps.*nothing follows/' --steps
no '/--steps.*0/' --steps 0
for value in -1 1.5 '' 5x 0x10 99999999999999999999 ' 5' nan inf; do
    no '/--steps/' --steps "$value"
    no '/--batch/' --batch "$value"
done
for value in nan -nan inf -inf -1 '' 1e400 1e3x 1,5 1001; do no '/--lr/' --lr "$value"; done
for option in dropout beta1 beta2 momentum validation; do
    for value in 1 -0.1 nan inf ''; do no "/--$option/" --$option "$value"; done
done
no '/--epsilon/' --epsilon 0
no '/--epochs/' --epochs -1
no '/--steps and --epochs/' --epochs 1
no '/--layers.*1000/' --layers 1001
no '/--layers/' --layers 0
no '/--heads/' --heads 0
no '/--channels/' --channels 0
no '/--context/' --context 0
no '/--seed/' --seed -1
no '/--threads.*4096/' --threads 100000
no '/--keep/' --keep 0
no '/--heads 3 does not divide --channels 16;/' --heads 3
no '/--heads 32 does not divide --channels 16;/' --heads 32
no '/--kv-heads 3 does not divide --heads 2;/' --kv-heads 3
no '/rotary.*even/' --channels 6 --position rotary
no '/--sequence 17 is longer than --context 16;/' --sequence 17
no '/--micro-batch 3 does not divide --batch 4; choose --micro-batch 2 or --micro-batch 4, or change --batch$/' --micro-batch 3
no '/--micro-batch 8 does not divide --batch 4; choose --micro-batch 4, or change --batch$/' --micro-batch 8
no '/--lr-min/' --lr-min 0.5
no '/--eager-update.*--clip 0/' --eager-update
no '/--eager-update.*--micro-batch/' --eager-update --clip 0 --micro-batch 2
no '/--eager-update.*f16.*--dtype bf16/' --eager-update --clip 0 --dtype f16
no '/--eager-update.*f16.*--dtype bf16/' --eager-update --clip 0 --dtype pure-f16
no '/--vocab 10 is smaller/' --vocab 10
no '/--model .gpt5. .*nano/' --model gpt5
no '/--model/' --model ''
no '/tokenizer .bpe.*word/' --tokenizer bpe
no '/tokenizer/' --tokenizer ''
no '/--optimizer.*adamw/' --optimizer adagrad
no '/--lr-schedule.*cosine/' --lr-schedule sawtooth
no '/--norm.*rmsnorm/' --norm batchnorm
no '/--tied/' --tied=maybe
no '/--loss-chunk 1 /' --batch 1000 --loss-chunk 1
no '/unexpected word/' extra
no '/unexpected word/' ''
no '/--prompt.*unknown character/' --prompt 'snow ☃'
no '/--prompt/' --tokenizer word --prompt '  '
printf -v long '%05000d' 7
no '/--steps/' --steps "$long"
no '/--model/' --model "$long"
no '/unknown option/' "--$long" 1

# Configuration files.
printf 'layers = 1\nlayer = 3\n' >unknown.ini
no '/unknown.ini:2: .*layer.*layers/' unknown.ini
printf 'layers = x\n' >value.ini
no '/value.ini:1: layers/' value.ini
printf '[Model]\n\nthis is no configuration\n' >garbage.ini
no '/garbage.ini:3/' garbage.ini
printf 'steps = 0\n' >range.ini
no '/range.ini:1: steps/' range.ini
printf 'lr = nan\n' >nan.ini
no '/nan.ini:1: lr/' nan.ini
printf 'layers = 1\0\n' >zero.ini
no '/zero.ini/' zero.ini
head -c 4000 /dev/urandom >random.ini
no '/random.ini/' random.ini
printf 'prompt = "open\n' >quote.ini
no '/quote.ini:1/' quote.ini
printf 'prompt = %s\n' "$long" >long.ini
no '/long.ini:1/' long.ini
no '/missing.ini/' missing.ini
mkdir folder.ini
no '/folder.ini/' folder.ini
