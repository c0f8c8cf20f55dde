#!/bin/bash
# Ranks that go by their own gradients for some steps (--compress 0/1-adam:N), and Adam's largest momenta
# (topk-adam:X): both train as a simulation of all ranks does, and a run goes on where it was, whatever ended it.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

for i in {1..500}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 2 --channels 24 --batch 8 --data book.txt --lr 0.003 --dropout 0.1 --eval-every 0
    --threads 1 --keep 20)

# Against the simulation: steps apart, an exact one between them (step 12 of 14), and what follows it.
few=(--threads 1 --steps 14 --layers 2 --channels 24 --context 9)
only='dp 4, zero 0, ring, 1 micro-batch|dp 4, zero 2, ring, 2 micro-batches|dp 2, tp 2, zero 1, ring, 1 micro-batch'
for way in 0/1-adam:4 topk-adam:0.1 $(is_long && echo 0/1-adam:2 0/1-adam:16); do
    ranks 4 verify "${few[@]}" --compress "$way" --sample 6 --only "$only|pp 2, dp 2, zero 1, ring, 1f1b"
    grep -q ' 0 differ' out || fail "$way: $(cat out)"
done
ranks 3 verify "${few[@]}" --compress 0/1-adam:4 --sample 4
grep -q ' 0 differ' out || fail "0/1-adam:4 of 3 ranks: $(cat out)"
# In 16 bits, where one process computes what each rank does.
for way in 1bit-adam 0/1-adam:4 $(is_long && echo topk-adam:0.1 int8 powersgd:2); do
    ranks 4 verify "${few[@]}" --compress "$way" --dtype bf16 --sample 6
    grep -q ' 0 differ' out || fail "$way in bf16: $(cat out)"
    grep -q 'dp 4' out || fail "$way in bf16: no layout of dp 4: $(cat out)"
    grep -q 'tp 2' out && fail "$way in bf16: with tp: $(cat out)"
done
ranks_refused "/--compress 0/1-adam:4 keeps each rank's own weights.*choose 0/1-adam/" 2 "${small[@]}" --compress 0/1-adam:4 \
    --offload weights:file=.
ranks_refused '/--compress 0/1-adam:4 is compared in f32, tf32 and bf16/' 2 verify --compress 0/1-adam:4 --dtype f16
ranks_refused '/--compress 0/1-adam:4 is between all ranks/' 2 verify --compress 0/1-adam:4 --compress-across hosts --ranks-per-host 1

# Of 40 steps 4 are exact, and one is behind them; saves are every 7, so that some come where ranks would be apart.
way=(--compress 0/1-adam:16 --compress-warmup 4 --steps 40 --save-every 7)
whole=("${small[@]}" "${way[@]}" --zero 2)
ranks 4 "${whole[@]}" --out whole
ranks 4 "${small[@]}" "${way[@]}" --compress 0/1-adam --out near
[[ $(column whole loss) != "$(column near loss)" ]] || fail "ranks are never apart"
close_numbers 0.1 "$(column whole loss)" "$(column near loss)"

# begin NAME STEP...: a run that was ended before these checkpoints.
begin() {
    local name=$1 step
    cp -r whole "$name"
    shift
    for step; do rm -r "$name/checkpoints/step-$(printf %08d "$step")"; done
}
begin same 28 35 40
ranks 4 train --resume same
same_losses whole same
diff -r whole/checkpoints same/checkpoints || fail "resumed in the same layout, it has other checkpoints"
for n in $(is_long && echo 3) 2; do
    begin "ranks$n" 21 28 35 40
    ranks "$n" train --resume "ranks$n" --zero $((n - 2))
    close_numbers 0.05 "$(column whole loss)" "$(column "ranks$n" loss)"
done
begin alone 21 28 35 40
pgpt train --resume alone
grep -q 'goes on as exact' err || fail "one process says nothing: $(cat err)"
close_numbers 0.15 "$(column whole loss)" "$(column alone loss)"

# A rank that is killed while they are apart; and a run that is told to stop, which it does where they agree.
for step in 24 33; do
    rm -rf killed
    ranks_apart 4 "${whole[@]}" --out killed --fault "kill:1:$step" && fail "it was not killed"
    [[ ! -e killed/checkpoints/step-00000040 ]] || fail "it went on"
    ranks 4 train --resume killed
    same_losses whole killed
    diff -r whole/checkpoints killed/checkpoints || fail "killed before step $step, it has other checkpoints"
done
# Old checkpoints go, and what a killed save has left.
mkdir whole/checkpoints/step-00000014.tmp.99
for file in errors-00001-of-00004 owner_errors-00002-of-00004 basis; do touch "whole/checkpoints/step-00000014.tmp.99/$file.safetensors"; done
ranks 4 train --resume whole --steps 50 --keep 1
[[ -e whole/checkpoints/step-00000050 && ! -e whole/checkpoints/step-00000014.tmp.99 ]] || fail "left: $(ls whole/checkpoints)"
(($(find whole/checkpoints -name 'step-*' | wc -l) <= 2)) || fail "--keep 1 keeps $(ls whole/checkpoints)"
long=("${small[@]}" --compress 0/1-adam:16 --compress-warmup 4 --steps 1500)
limit=120 ranks_apart 4 "${long[@]}" --out long || fail "exit $? -- $(cat "$SCRATCH"/err.0)"
export VIEW='((rank)) || (until grep -q "\"step\":1200," stopped/metrics.jsonl 2>/dev/null; do sleep 0.05; done; kill -TERM $$) &'
limit=120 ranks_apart 4 "${long[@]}" --out stopped || true
unset VIEW
(($(find stopped/checkpoints -name manifest.json | wc -l) == 1)) || fail "it was not stopped: $(ls stopped/checkpoints)"
[[ ! -e stopped/checkpoints/step-00001500 ]] || fail "it went on to the end"
ranks 4 train --resume stopped
same_losses long stopped
diff -r long/checkpoints/step-00001500 stopped/checkpoints/step-00001500 || fail "stopped and resumed, it has other weights"

# Other numbers, parts of a model, accumulation, clipping.
runs=('--compress 0/1-adam:8 --dtype bf16 --zero 1' '--compress 0/1-adam:8 --tp 2 --micro-batch 2' '--compress topk-adam:0.1 --zero 2')
is_long && runs+=('--compress 0/1-adam:4 --pp 2 --micro-batch 1' '--compress 0/1-adam:4 --dtype bf16' '--compress topk-adam:0.1 --dtype f16 --tp 2' '--compress 0/1-adam:8 --compress-warmup auto --beta2 0.5 --warmup 3')
for more in "${runs[@]}"; do
    name=$(tr -c 'a-z0-9\n' _ <<<"$more")
    read -ra words <<<"$more"
    ranks 4 "${small[@]}" --compress-warmup 3 --clip 0.5 --steps 30 --save-every 10 "${words[@]}" --out "$name"
    cp -r "$name" "$name-same"
    rm -r "$name-same"/checkpoints/step-000000{20,30}
    ranks 4 train --resume "$name-same"
    diff -r "$name"/checkpoints "$name-same"/checkpoints || fail "$more: resumed, it has other checkpoints"
done

# What is sent: a step with words as much as one of 0/1 Adam, the others scalars alone; and how many are which.
mesh=(train --model nano --dp 4 --steps 600 --print-mesh --json)
pgpt "${mesh[@]}" --compress 0/1-adam
plain=$(grep -o '"all":{[^}]*' out) steps=$(field compressed_steps <out)
[[ $(field local_steps <out) == 0 ]] || fail "0/1-adam has local steps"
pgpt "${mesh[@]}" --compress 0/1-adam:16
[[ $(grep -o '"all":{[^}]*' out) == "$plain" ]] || fail "a step with words sends $(cat out), not $plain"
sent=$(field compressed_steps <out) apart=$(field local_steps <out) exact=$(field exact_steps <out)
((sent + apart == steps && sent + apart + exact == 600 && apart > 150)) || fail "$exact, $sent and $apart steps"
[[ $(grep -o '"local_all":{[^}]*' out | grep -o '"bytes":[0-9]*') == '"bytes":72' ]] || fail "a local step sends $(cat out)"

ranks_refused '/--compress 0/1-adam:3: the most steps/' 2 "${small[@]}" --compress 0/1-adam:3
ranks_refused '/--compress 0/1-adam:32: the most steps/' 2 "${small[@]}" --compress 0/1-adam:32
ranks_refused '/--compress 0/1-adam:4 gives ranks weights of their own/' 2 "${small[@]}" --compress 0/1-adam:4 --cp 2
ranks_refused '/--compress 0/1-adam:4 with --dtype f16/' 2 "${small[@]}" --compress 0/1-adam:4 --dtype f16
ranks_refused '/--compress 0/1-adam:4: intervals grow/' 2 "${small[@]}" --compress 0/1-adam:4 --lr-schedule constant
ranks_refused '/--compress 0/1-adam:4 has every rank go by its own/' 2 "${small[@]}" --compress 0/1-adam:4 --compress-across hosts --ranks-per-host 1
ranks_refused '/--compress 0/1-adam:4 is a form of Adam/' 2 "${small[@]}" --compress 0/1-adam:4 --optimizer sgd
ranks_refused '/--compress topk-adam:0.1 is a form of Adam/' 2 "${small[@]}" --compress topk-adam:0.1 --optimizer lamb
ranks_refused '/--compress topk-adam:0.7: the share/' 2 "${small[@]}" --compress topk-adam:0.7
