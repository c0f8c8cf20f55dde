#!/bin/bash
# pgpt plan: what it prints, that it is quick, that it makes the mistakes of pgpt train in the same words, and that published runs
# come out near what was published.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# near SHARE A B
near() {
    awk "BEGIN { a = $2; b = $3; exit !(a > b * (1 - $1) && a < b * (1 + $1)) }" || depth=1 fail "$2 is not near $3"
}

# What there is to say.
pgpt plan --model mini --machine cpu --gpus 2 --tokens 1e6 --json
for words in 'model mini: ' 'machine Zen 3 core' 'dp +all-reduce' 'time of a step: ' 'MFU ' '1.00 M tokens take '; do
    grep -Eq "$words" out || fail "no '$words' in $(cat out)"
done
[[ $(tail -n 1 out | field fits) == true && $(tail -n 1 out | field ranks) == 2 ]] || fail "$(tail -n 1 out)"
for key in schedule zero recompute hosts busiest_stage phase_bounds links watts; do
    tail -n 1 out | grep -q "\"$key\":" || fail "no $key in $(tail -n 1 out)"
done
cp out first
pgpt plan --model mini --machine a100 --gpus 8 --pp 2 --tp 2 --batch 8 --micro-batch 1 --json
for words in '^memory .* frames +state ' '^0 x1 .* 2 x ' '^together ' 'critical path: forward .* on stage [01]$' \
    'inside a host: .* of a rank, .* of all$'; do
    grep -Eq "$words" out || fail "no '$words' in $(cat out)"
done
[[ $(tail -n 1 out | field total_bytes) == \
    $(tail -n 1 out | grep -o '"peak_bytes":[0-9]*,"flops"' | grep -o '[0-9]*' | awk '{ sum += $1 } END { printf "%.0f", sum }') ]] ||
    fail "not the sum of all ranks: $(tail -n 1 out)"
pgpt plan --model mini --machine cpu --gpus 2 --tokens 1e6 --json
cmp -s out first || fail "two plans of the same differ"

# A ring's bytes: 2 (N-1)/N of the gradients, on each rank.
pgpt plan --model mini --machine cpu --gpus 4 --bucket-mb 1000 --json
sent=$(tail -n 1 out | grep -o '"axis":"dp","operation":"all-reduce"[^}]*' | field rank_bytes) 
near 1e-6 "$sent" "1.5 * $(tail -n 1 out | sed 's/.*"rank":\[//' | field gradients)"

# Published runs, each within 12 %: 7.5B, 145.6B and 529.6B of Narayanan et al.; bench/plan has all ten.
published() {
    local wanted=$1
    shift
    pgpt plan --context 2048 --vocab 51200 --recompute 1 --machine a100 "$@" --json
    near 0.12 "$(tail -n 1 out | field device_flops_per_s)" "${wanted}e12"
}
published 142 --layers 36 --heads 32 --channels 4096 --tp 4 --gpus 128 --batch 512 --micro-batch 16
published 148 --layers 80 --heads 96 --channels 12288 --tp 8 --pp 8 --schedule interleaved --gpus 1536 --batch 2304 --micro-batch 2
published 163 --layers 105 --heads 128 --channels 20480 --tp 8 --pp 35 --schedule interleaved --gpus 2520 --batch 2520 --micro-batch 1

# 4,096 GPUs in seconds, with a picture and a trace.
limit=20 timeout 20 "$PGPT" plan --model 1t --machine a100 --gpus 4096 --tp 8 --pp 64 --recompute 1 --draw step.svg --trace step.json \
    >out 2>err || fail "$(cat err)"
grep -q '<svg' step.svg || fail "no picture"
grep -q '"ph":"X"' step.json || fail "no trace"
pgpt plan --model mini --draw alone.svg
grep -q '<svg' alone.svg || fail "no picture of one rank"

# Three ranks of two cores: where they meet all the time (tp), those of the emptier core wait for the rest; where they meet once,
# the cores are shared evenly.
step_of() {
    pgpt plan --machine "$1.ini" --layers 4 --heads 12 --channels 192 --context 128 --threads 1 --gpus 3 "${@:2}" --json
    tail -n 1 out | field step_ms
}
pgpt plan --machine cpu --print-machine
sed 's/^inside-us.*/inside-us = 0.01/; s/^inside-gbs.*/inside-gbs = 1e6/; s/^step-us.*/step-us = 0/' out >two.ini
sed 's/^cores.*/cores = 3/; s/^host-memory-gbs.*/host-memory-gbs = 1e4/' two.ini >three.ini
sed -i 's/^host-memory-gbs.*/host-memory-gbs = 1e4/' two.ini
near 0.05 "$(step_of two --tp 3 --batch 2)" "1.8 * $(step_of three --tp 3 --batch 2)"
near 0.03 "$(step_of two --batch 24)" "1.5 * $(step_of three --batch 24)"

# Machines.
for machine in a100 cpu ethernet h100 h200 v100; do pgpt plan --model gpt2 --machine $machine --batch 16 --micro-batch 1; done
pgpt plan --machine a100 --print-machine
cp out mine.ini
pgpt plan --machine a100 --print-machine --json
[[ $(head -n -1 out) == "$(<mine.ini)" && $(tail -n 1 out | field machine) == a100 ]] || fail "$(tail -n 1 out)"
sed -i 's/^devices = .*/devices = 4/; s/^links = .*/links = 2/' mine.ini
pgpt plan --model gpt2 --machine mine.ini --gpus 8 --batch 16
grep -q '2 hosts of 4' out || fail "$(head -n 3 out)"
refused '/no machine .a10.; did you mean .a100/' plan --machine a10
echo 'memory-gbs = 10' >poor.ini
refused '/poor.ini: a device that computes nothing/' plan --machine poor.ini
printf 'tflops-32 = 1\nmemory-gbs = 10\nmemory-gib = 1\ndevices = 4\n' >poor.ini
refused '/nothing between them: give inside-gbs/' plan --machine poor.ini
printf 'tflops-32 = 1\nmemory-gbs = 10\nmemory-gib = 1\ngemm-classes = 64:2\n' >poor.ini
refused '/gemm-classes = 64:2/' plan --machine poor.ini
printf 'speed = 1\n' >poor.ini
refused '/poor.ini:1: unknown option speed; docs.PLAN.md lists them/' plan --machine poor.ini
printf 'tflops-32 = 1\nmemory-gbs = 10\nmemory-gib = 1\ndevices = 4\ninside-gbs = 1\nhosts = 2\nbetween-gbs = 1\ndevice = cuda:a100\n' >small.ini
sed 's/^memory-gbs.*/memory-gbs = 1e-300/' small.ini >slow.ini
refused '/whose memory carries nothing/' plan --machine slow.ini
for words in 'tflops-16 = 1e-300' 'inside-gbs = 1e-20' 'gemm-efficiency = 1e-12' 'message-samples = all-reduce:4,2=1' \
    'message-samples = all-rduce:4,2,65536=1'; do
    { grep -v "^${words%% *} =" small.ini; echo "$words"; } >odd.ini
    refused "/machine odd.ini: .*${words%% *}/" plan --machine odd.ini
done
refused '/(2 hosts of 4)/' plan --machine small.ini --gpus 12
refused "/unexpected word 'gpt2'; a config file's name ends in .ini/" plan gpt2
sed '$a dtype = f99' small.ini >kind.ini
refused '/machine kind.ini: .*f99/' plan --machine kind.ini
sed '$a samples = linear:1,2=fast' small.ini >fast.ini
refused '/fast.ini: samples: .linear:1,2=fast.: write/' plan --machine fast.ini
# Samples that no instruction would ask for: of an operation that there is not, or by other sizes.
for words in 'samples = add:8=1 linaer:64,64,64=1/samples: .*linaer.*did you mean .linear/' \
    'samples = linear+activatoin:8,8,8=1/did you mean .linear.activation/' \
    'busy-samples = layernrom:8=1/busy-samples: .*did you mean .layernorm/' \
    'all-thread-samples = attention:64,64=1/all-thread-samples: .attention. with 2 numbers before its rate; write FLOPs/' \
    'samples = linear:64=1/.linear. with 1 number before its rate; write rows/' 'samples = adamw:1,2,3=1/.adamw. with 3 numbers before its rate; write its bytes/'; do
    sed "\$a ${words%%/*}" small.ini >word.ini
    refused "/machine word.ini: .*${words#*/}" plan --machine word.ini
done
refused '/--draw x.png: pictures are SVG/' plan --draw x.png
refused '/12 ranks are 4 more than the 8 devices/' plan --machine small.ini --gpus 12
refused '/--device cpu and machine a100, which has GPUs/' plan --machine a100 --device cpu
refused "/--print-program is of 'pgpt train'/" plan --print-program

# --epochs are the steps that train takes.
for i in {1..200}; do echo "word $((i * i % 13)) and word $((i % 7))"; done >book.txt
epochs=(--layers 1 --heads 2 --channels 16 --context 16 --batch 4 --epochs 2 --threads 1 --sample-tokens 0 --data book.txt)
pgpt plan "${epochs[@]}" --json
tokens=$(grep -o '"run_tokens":[0-9]*' out)
pgpt train "${epochs[@]}" --no-save --out epochs --json
grep -q "\"tokens\":${tokens#*:}," out || fail "--epochs: said $tokens, took $(grep -o '"tokens":[0-9]*' out)"

# The same mistakes, the same words.
while read -r words; do
    [[ -n $words ]] || continue
    # shellcheck disable=SC2086 # several words
    refused train --print-mesh $words
    said=$(cat "$SCRATCH/err")
    # shellcheck disable=SC2086
    refused plan $words
    [[ $(cat "$SCRATCH/err") == "$said" ]] || fail "$words: '$(cat "$SCRATCH/err")', and train: '$said'"
done <<END
--model mini --heads 5
--model mini --pp 9
--model mini --tp 2 --tp-style row --sequence-parallel
--model mini --pp 2 --schedule interleaved --chunks 4
--model mini --dp 32 --batch 16
--model mini --ep 2
--btach 3
--model minni
--model mini --cp 200
--model mini --data nowhere.txt
--layers 2 --steps 3 --epochs 2
$(! is_long || cat <<LONGER
--model mini --batch 0
--model mini --batch 10 --micro-batch 3 --pp 2 --schedule interleaved
--model mini --layers 0
--model mini --channels -4
--model mini --dtype f64
--model mini --tp 5 --experts 2 --ep 3
--model mini --zero 4
--model mini --optimizer adam
--model mini --recompute every
--model mini --recompute -1
--model mini --pp 2 --recompute-stages 1
--model mini --pp 2 --recompute-stages 1,1 --recompute 1
--model mini --offload disk
--model mini --offload-share 2
--model mini --offload activations --recompute 1 --pp 2 --schedule pipedream
--model mini --schedule pipedream --pp 2 --dtype f16
--model mini --schedule zigzag
--model mini --compress topk
--model mini --compress topk:2
--model mini --compress 1bit-adam --dp 1
--model mini --clip -1
--model mini --steps -1
--model mini --sequence 5000
--model mini --context 0
--model mini --kv-heads 5
--model mini --position spiral
--model mini --attention window
--model mini --attention window:0
--model mini --dropout 1.5
--model mini --experts 4 --router none
--model mini --depth-capacity 2
--model mini --eager-update --clip 1
--model mini --pp 2 --eager-update --clip 0
--model mini --threads 0x
--model mini --tokenizer none
--model mini --resume nowhere
--model mini --loss-chunk -1
--model mini --allreduce fastest
--model mini --bucket-mb -1
--model mini --sync server
--model mini --sync push --zero 1
--model mini --sync local --pp 2
--model mini --device cuda:h900
--model mini --pp 2 --stages 3,1
--model mini --vocab 7 --tokenizer char
--model
--model mini --out
LONGER
)
END

# The tuner: its best is what a plan of its line says, and fits; more of anything never makes it slower.
printf 'device = cuda:a100\ntflops-16 = 100\ntflops-32 = 20\nmemory-gbs = 500\nmemory-gib = 1\ndevices = 2\ninside-gbs = 10
links = 1\nbetween-gbs = 1\nbetween-us = 5\ndtype = bf16\nlaunch-us = 2\n' >box.ini
tuned() {
    pgpt plan --model mini --batch 16 --gpus 4 --tune "$@" --json
    tail -n 1 out | grep -o '"best":\[{[^}]*}' | field step_ms
}
best=$(tuned --machine box.ini)
words=$(tail -n 1 out | grep -o '"best":\[{[^}]*}' | field train | sed 's/.*pgpt train//; s/--device cuda//')
(($(grep -Ec '^[0-9]+ layouts in|pgpt train --model mini' out) >= 11)) || fail "$(cat out)"
# shellcheck disable=SC2086 # several words
pgpt plan --machine box.ini $words --json
near 1e-9 "$(tail -n 1 out | field step_ms)" "$best"
for more in tflops-16=200 memory-gbs=1000 memory-gib=4 inside-gbs=20 links=2 between-gbs=2 launch-us=1; do
    sed "s/^${more%=*} = .*/${more%=*} = ${more#*=}/" box.ini >more.ini
    awk "BEGIN { exit !($(tuned --machine more.ini) <= $best) }" || fail "$more makes it slower than $best"
done
# Devices are a resource, too: where all of them are slower than some, some are left out, and it is said.
last=
for n in 1 2 3 4 5 7 8 16; do
    seconds=$(pgpt plan --model mini --batch 16 --gpus $n --tune --machine box.ini --json && tail -n 1 out |
        grep -o '"best":\[{[^}]*}' | field step_ms)
    [[ -z $last ]] || awk "BEGIN { exit !($seconds <= $last * 1.000001) }" || fail "$n devices: $seconds ms, fewer: $last ms"
    last=$seconds
done
grep -Eq '^ +1 .* with [1-8] of 16 devices' out || fail "$(cat out)"
grep -Eq '^ 1  (mpirun -n [2-8] )?pgpt train' out || fail "$(cat out)"
pgpt plan --model mini --batch 16 --gpus 4 --tune --machine box.ini --tp 2 --zero 1 --json
[[ $(tail -n 1 out | grep -o '"best":.*' | grep -o '"tp":[0-9]*' | sort -u) == '"tp":2' ]] || fail "not the --tp that was given"
# What is given of stages is kept, and in the line.
for given in '--stages 4,2' '--recompute-stages 0,2'; do
    # shellcheck disable=SC2086 # several words
    best=$(tuned --machine box.ini --pp 2 $given)
    words=$(tail -n 1 out | grep -o '"best":\[{[^}]*}' | field train | sed 's/.*pgpt train//; s/--device cuda//')
    [[ $words == *"$given"* ]] || fail "$words"
    # shellcheck disable=SC2086
    pgpt plan --machine box.ini $words --json
    near 1e-9 "$(tail -n 1 out | field step_ms)" "$best"
done
# Where memory is short and the vocabulary large, stages are uneven and the ends of a pipeline share a table: all that the best
# plans of it have is known to the search (56.4 ms was its best where it took stages for equal, and a V for a loop).
pgpt plan --model gpt2 --sequence 256 --batch 16 --gpus 4 --machine box.ini --pp 2 --dp 2 --schedule zb-v --zero 1 --micro-batch 1 --json
[[ $(tail -n 1 out | field fits) == true ]] || fail "$(tail -n 1 out)"
by_hand=$(tail -n 1 out | field step_ms)
best=$(tuned --machine box.ini --model gpt2 --sequence 256)
awk "BEGIN { exit !($best <= $by_hand * 1.000001) }" || fail "$best is the best, and $by_hand is better"
sed -i 's/^memory-gib = .*/memory-gib = 0.01/' more.ini
refused '/does not fit on 4 devices .* the least needs .* too much; take about/' plan --model mini --batch 16 --gpus 4 --tune --machine more.ini
# A sample on the way gathers all weights of ZeRO-3 on a rank: where that is what is too much, it is left out, and said.
sed 's/^memory-gib = .*/memory-gib = 0.8/' box.ini >little.ini
whole=(--model gpt2 --sequence 256 --batch 16 --gpus 4 --machine little.ini --zero 3 --pp 1 --tp 1 --cp 1)
pgpt plan "${whole[@]}" --micro-batch 1 --recompute 1
grep -q 'IT DOES NOT FIT: .*, --sample-tokens 0, it does, in ' out || fail "$(cat out)"
pgpt plan "${whole[@]}" --tune
grep -q 'pgpt train .* --zero 3 .*--sample-tokens 0 ' out || fail "$(cat out)"
pgpt plan "${whole[@]}" --tune --sample-tokens 8
! grep -q -e '--sample-tokens 0' out || fail "$(cat out)"
# What is offloaded must fit into the hosts, where their ranks share the memory.
pgpt plan --machine h100 --print-machine
sed 's/^host-memory-gib = .*/host-memory-gib = 16/' out >modest.ini
pgpt plan --model gpt2-large --machine modest.ini --gpus 8 --batch 8 --offload optimizer --json
grep -q 'IT DOES NOT FIT: .* missing in the memory of a host, which has 16.0 GiB; offload less' out || fail "$(cat out)"
[[ $(tail -n 1 out | field fits) == false ]] || fail "$(tail -n 1 out)"
pgpt plan --model gpt2-large --machine modest.ini --gpus 1 --batch 8 --offload optimizer --json
[[ $(tail -n 1 out | field fits) == true ]] || fail "$(cat out)"
# Where nobody says, a batch that micro-batches divide.
pgpt plan --model gpt2-xl --machine h200 --json
(($(tail -n 1 out | field batch) % 128 == 0)) || fail "$(tail -n 1 out)"
refused '/no layout of mini on 4 devices can be/' plan --model mini --batch 16 --gpus 4 --tune --machine box.ini --tp 3

# Tables and budgets.
pgpt plan --table links --model nano --machine ethernet --gpus 4 --batch 8
(($(grep -Ec '^ +[1248] ' out) == 4)) || fail "not a line for 1, 2, 4 and 8 links: $(cat out)"
pgpt plan --table links --model nano --machine ethernet --gpus 2 --batch 8 --json
(($(tail -n 1 out | grep -o '"best_step_ms"' | wc -l) == 4)) || fail "$(tail -n 1 out)"
# More links are never slower; the quick search of --layout auto had 6.5 s for two and 5.9 s for one.
pgpt plan --table links --model gpt2 --machine ethernet --gpus 4 --batch 16 --json
tail -n 1 out | grep -o '"best_step_ms":[0-9.e+]*' | sed 's/.*://' | sort -c -g -r || fail "more links are slower: $(cat out)"
refused '/--table links is about what hosts send each other/' plan --table links --model nano --machine a100 --gpus 8 --batch 8
pgpt plan --budget '2 H200, 5 hours' --sequence 512
grep -Eq '^2 x H200-SXM-141GB for 5h00m: .* parameters on .* tokens' out || fail "$(cat out)"
grep -Eq '^mpirun -n 2 pgpt train --layers [0-9]+ .*--steps [0-9]+$' out || fail "$(cat out)"
refused "/--budget 'much': write devices/" plan --budget much
for text in '8 H200' '8 H200, 3' '0 H200, 3 days' '8 H200, -3 days' '8 H200, nan days' '8 H200, 3 days, 4' '8 H200, 3 dayz' \
    '8 H200, 1e30 days'; do
    refused "/--budget '$text': write devices/" plan --budget "$text"
done
refused '/--budget names the devices .* leave out --gpus/' plan --budget '8 H200, 3 days' --gpus 4
refused '/--budget finds the model; leave out --model/' plan --budget '8 H200, 3 days' --model gpt2
pgpt plan --budget '2 x H200, 5 Hours' --sequence 512 --json
[[ $(tail -n 1 out | field devices) == 2 && $(tail -n 1 out | field seconds) == 18000.0 ]] || fail "$(tail -n 1 out)"
for text in '2 H200s, 300 minutes' '2xH200 for 5h'; do
    pgpt plan --budget "$text" --sequence 512 --json
    [[ $(tail -n 1 out | field devices) == 2 && $(tail -n 1 out | field seconds) == 18000.0 ]] || fail "$text: $(tail -n 1 out)"
done
refused "/--budget '8 H200, 3 moons': write devices/" plan --budget '8 H200, 3 moons'
refused "/no machine 'h900'/" plan --budget '8 H900, 3 days'
if is_long; then
    pgpt plan --table memory --machine h200
    grep -Eq '^bf16, mixed +18.00 +7.50 +4.00 +2.25$' out || fail "$(cat out)"
    pgpt plan --table ladder --machine h100
    grep -Eq '^175B +1024 ' out || fail "$(cat out)"
fi

refused '/--measure runs the best that --tune finds/' plan --measure 2

# What the machine here can do, and what the best layout takes.
pgpt plan --model nano --machine cpu --batch 2 --sequence 32 --tune --measure 1 --plan-out "tuned here"
grep -Eq '^  1 +[0-9.]+ ms +[0-9.]+ ms +[-+]' out || fail "$(cat out)"
pgpt plan --model nano --machine "tuned here/machine.ini"
# Rates that were measured are corrected like all others.
pgpt plan --machine cpu --print-machine
{ cat out; echo 'samples = linear:64,64,64=1e-3 adamw:1000=1e-3'; } > slow.ini
pgpt plan --model nano --machine slow.ini --batch 2 --sequence 32 --tune --measure 1 --plan-out corrected
awk '/^tflops-32 =/ { rate[FILENAME] = $3 } /^samples =/ { split($3, word, "="); sample[FILENAME] = word[2] }
     END { a = rate["corrected/machine.ini"] / rate["slow.ini"]; b = sample["corrected/machine.ini"] / 1e-3
           exit !(a > 10 && a / b < 1.01 && b / a < 1.01) }' slow.ini corrected/machine.ini || fail "$(cat corrected/machine.ini)"
# What is only of several ranks along an axis is asked of the layouts, before there is one.
for words in '--compress int8/--compress int8 .*--dp' '--compress int8 --tp 2/--tp 2 --dp 2' '--schedule zb-v/--pp . .*--schedule zb-v' \
    '--tp-style row/--tp-style row --tp' '--chunks 2/--chunks 2'; do
    # shellcheck disable=SC2086
    pgpt plan --model mini --machine h100 --gpus 4 --batch 16 --tune ${words%%/*}
    grep -q '^ 1  mpirun' out || fail "no layout with $words"
    grep '^ *[0-9]*  mpirun' out | grep -Evq -e "${words#*/}" && fail "a layout without $words: $(cat out)"
done
pgpt plan --model nano --machine cpu --gpus 2 --batch 4 --tune --sync local
grep '^ *[0-9]*  mpirun' out | grep -q -e '--zero' && fail "--sync local with --zero is none: $(cat out)"
# --offload auto: as little as fits on the machine, and activations where the optimizer keeps nothing.
pgpt plan --machine h100 --print-machine
{ grep -v '^memory-gib' out && echo 'memory-gib = 4'; } >tight.ini
automatic() { # PATTERN OPTION...
    pgpt plan --machine tight.ini --no-background-save --micro-batch 8 --offload auto "${@:2}"
    grep -q 'DOES NOT FIT' out && fail "--offload auto ${*:2}: $(cat out)"
    grep -Eq -e "$1" out || fail "--offload auto ${*:2}: $(cat out)"
}
automatic ', offload optimizer to .*, [0-9]+ % of it stays$' --model gpt2 --batch 8
automatic ', offload activations to ' --model gpt2 --batch 64 --optimizer sgd --momentum 0 --dtype f32
automatic ' of up to 8 a rank$' --model mini --batch 8
# And the search takes it for leave to offload, as where nobody says.
for words in '' '--offload auto'; do
    # shellcheck disable=SC2086
    pgpt plan --machine tight.ini --model gpt2 --batch 32 --recompute 0 --micro-batch 8 --no-background-save --tune $words
    grep '^ 1  pgpt train' out | sed 's/ --offload auto//' >"line${words##* }"
done
grep -q -e '--offload optimizer' line || fail "$(cat line)"
cmp line lineauto || fail "$(cat line lineauto)"
# Heads that ranks of tp would share, in blocks with scales: no line has them, and a plan says what a run does.
heads=(--model nano --heads 4 --kv-heads 2 --channels 80 --batch 16)
pgpt plan "${heads[@]}" --machine h100 --gpus 4 --tune --moments 8bit
grep -Eq -e 'mpirun.* --tp 4' out && fail "$(cat out)"
for words in '--moments 8bit --tp 4' '--moments 8bit --tp 4 --tune' '--compress int8 --tp 4 --dp 2' '--compress int8 --tp 4 --dp 2 --tune'; do
    # shellcheck disable=SC2086
    refused '/end within them; choose .*, or --tp 2 at most/' plan "${heads[@]}" --machine h100 --gpus "$([[ $words == *dp* ]] && echo 8 || echo 4)" $words
done
# A text with words of a shell in its name is a name.
cp "$SOURCE_ROOT/README.md" 'a; touch struck'
pgpt plan --model nano --machine cpu --batch 2 --sequence 32 --tokenizer char --data 'a; touch struck' --tune --measure 1
[[ ! -e struck && ! -e machine.ini ]] || fail "written: $(ls)"
grep -q -- "--data 'a; touch struck'" out || fail "$(cat out)"
# One question a call.
refused '/--table and --tune ask for different things/' plan --table memory --tune
refused '/--budget and --draw ask/' plan --budget '8 H200, 3 days' --draw x
refused '/folder .* does not exist/' bench machine --out nowhere/m.ini
if is_long; then
    pgpt bench machine --out here.ini --json
    grep -q '^source = measured' here.ini || fail "$(cat here.ini)"
    pgpt plan --model nano --machine here.ini
fi
