#!/bin/bash
# Generation on several ranks: the text of one process in every layout, from any checkpoint; samples of a pipeline's
# training; mistakes and failures end all ranks. LONG=1 makes every text in every layout.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

# Sizes that do not divide: five blocks and heads, and a context that the texts outgrow.
for i in {1..400}; do echo "the $((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not the $((i % 11))"; done >book.txt
small=(train "${TINY[@]}" --layers 5 --heads 5 --channels 40 --context 24 --batch 6 --steps 60 --lr 0.003 --data book.txt)
pgpt "${small[@]}" --out one

# same_text N WORDS...: what one process says, N ranks say.
same_text() {
    local n=$1
    shift
    ranks "$n" generate "$@"
    cmp -s out text || depth=1 fail "$n ranks: pgpt generate $* says something else: $(diff out text | head -n 5) $(cat err)"
}

# 500 tokens, twenty times the context, always the likeliest; and drawn. The two share the layouts.
# shellcheck disable=SC2034 # by their names
greedy=(one --prompt 'the 3 of' --tokens 500 --temperature 0 --threads 1)
drawn=(one --prompt 'the 3 of' --tokens 120 --threads 1)
for call in greedy drawn; do
    declare -n words=$call
    pgpt generate "${words[@]}"
    cp out text
    (($(wc -c <text) > 120)) || fail "one process says only: $(cat text)"
    same_text 4 "${words[@]}" --tp 2 --pp 2
    if is_long || [[ $call == greedy ]]; then
        same_text 2 "${words[@]}" --tp 2
        same_text 3 "${words[@]}" --pp 3 --no-pin
    fi
    if is_long || [[ $call == drawn ]]; then
        same_text 2 "${words[@]}" --pp 2
        same_text 2 "${words[@]}" --dp 2
    fi
done
same_text 5 "${drawn[@]}" --pp 5
same_text 4 "${drawn[@]}" --tp 4

# Several prompts and samples are shared out, and come back in their order, with stop strings and probabilities.
printf 'the 1\nthe 12 of 3 and 4 is\n\nand\nis not the 7\nof 2\n' >prompts.txt
many=(one --prompts prompts.txt --samples 3 --rows 2 --tokens 40 --stop 'not|9' --threads 1)
pgpt generate "${many[@]}"
cp out text
(($(grep -c '^--- prompt . of 5, sample . of 3 ---$' text) == 15)) || fail "one process makes: $(cat text)"
same_text 2 "${many[@]}"
same_text 3 "${many[@]}"
same_text 4 "${many[@]}" --dp 2 --pp 2
same_text 4 "${many[@]}" --dp 2 --tp 2
pgpt generate "${many[@]}" --output lines --log-probs --repetition-penalty 1.3
ranks 4 generate "${many[@]}" --output ranks-lines --log-probs --repetition-penalty 1.3 --dp 2 --pp 2
words() { sed -E 's/(probability":)-?[0-9.e-]+/\1/g' "$1"; }
numbers() { grep -oE 'probability":-?[0-9.e-]+' "$1" | cut -d : -f 2; }
[[ $(words lines) == "$(words ranks-lines)" ]] || fail "--output: $(diff <(words lines) <(words ranks-lines) | head -c 1000)"
close_numbers 1e-3 "$(numbers lines)" "$(numbers ranks-lines)"
pgpt generate "${many[@]}" --json
tail -n 1 out >json
ranks 3 generate "${many[@]}" --json
check_json <<<"$(tail -n 1 out)"
for key in prompts prompt_tokens tokens tokens_read step interrupted; do
    [[ $(tail -n 1 out | field $key) == "$(field $key <json)" ]] || fail "$key: $(tail -n 1 out), not $(cat json)"
done

# Without the cache; the only sample of four groups; a prompt on standard input, which the first rank reads.
pgpt generate "${drawn[@]}" --tokens 40
cp out text
same_text 2 "${drawn[@]}" --tokens 40 --pp 2 --no-cache
same_text 4 "${drawn[@]}" --tokens 40
grep -q 'there are fewer samples (1) than groups of ranks that share them out (--dp 4), and some have nothing to do' err || fail "no warning: $(cat err)"
printf 'the 3 of\n' | timeout 60 "$MPIEXEC" "$MPIEXEC_N" 2 "$PGPT" generate one --prompt - --tokens 40 --threads 1 --pp 2 >out 2>err ||
    fail "a prompt on standard input: $(cat err)"
cmp -s out text || fail "the prompt on standard input gives $(cat out)"

# Saved in one layout, read in others: a checkpoint of tp and pp, and a folder of Hugging Face made from it.
ranks 4 "${small[@]}" --steps 20 --tp 2 --pp 2 --out parts
pgpt convert parts hf
for model in parts hf; do
    pgpt generate $model --prompt 'the 3 of' --tokens 60 --temperature 0 --threads 1
    cp out text
    layouts=('2 --tp 2' '2 --pp 2' '3 --pp 3' '4 --tp 2 --pp 2' '3 --tp 3')
    is_long || if [[ $model == parts ]]; then layouts=('3 --pp 3' '2 --tp 2'); else layouts=('4 --tp 2 --pp 2' '3 --tp 3'); fi
    for layout in "${layouts[@]}"; do
        # shellcheck disable=SC2086 # several words
        same_text ${layout%% *} $model --prompt 'the 3 of' --tokens 60 --temperature 0 --threads 1 ${layout#* }
    done
done

# Llama-like, with a head of its own: rotary positions, SwiGLU, fewer key/value heads than ranks.
pgpt "${small[@]}" --heads 4 --kv-heads 1 --position rotary --mlp swiglu --norm rmsnorm --no-bias --no-tied --out llama
pgpt generate llama --tokens 100 --threads 1 --prompt 'the 3'
cp out text
same_text 4 llama --tokens 100 --threads 1 --prompt 'the 3' --tp 2 --pp 2
same_text 2 llama --tokens 100 --threads 1 --prompt 'the 3' --tp 2
same_text 2 llama --tokens 100 --threads 1 --prompt 'the 3' --pp 2

# A run begins with that folder in parts.
pgpt "${small[@]:0:1}" --init hf --data book.txt --steps 2 --threads 1 --sample-tokens 0 --out on-one
ranks 4 "${small[@]:0:1}" --init hf --data book.txt --steps 2 --threads 1 --sample-tokens 0 --tp 2 --pp 2 --out on-four
close_numbers 1e-4 "$(column on-one loss)" "$(column on-four loss)"

# Mistakes: said once, by one rank.
at_once ranks_refused '/--tp 3 does not divide the 4 ranks of this run; start 3 or 6 ranks/' 4 generate one --tp 3
at_once ranks_refused '/--dp 3 does not multiply to the 4 ranks of this run/' 4 generate one --dp 3
at_once ranks_refused "/--pp 6 makes more stages than the model's 5 blocks; choose --pp 3, and let --tp or --dp take the other ranks/" 6 generate one --pp 6
at_once ranks_refused "/unknown option '?--zero/" 2 generate one --zero 1
at_once ranks_refused "/unknown option '?--schedule/" 2 generate one --schedule gpipe
at_once ranks_refused '/.*none/' 2 generate none --tp 2
at_once ranks_refused "/cannot (find|open|read) '?none.txt/" 2 generate one --prompts none.txt
at_once ranks_refused '/--prompt and --prompts exclude each other/' 2 generate one --prompts prompts.txt --prompt a
all_done
refused '/--pp 2 does not divide the 1 rank of this run/' generate one --pp 2
export VIEW
# shellcheck disable=SC2016 # the ranks find out
VIEW='if ((rank == 1)); then set -- "$@" --seed 9; fi'
at_once ranks_refused '/rank 1 on [^ ]+ has seed = 9 where rank 0 has seed = 1/' 2 generate one
# shellcheck disable=SC2016
VIEW='if ((rank == 1)); then cd "$SCRATCH"; fi'
at_once ranks_refused "/rank 1 on [^ ]+: /" 2 generate one --pp 2
VIEW=
all_done

# A rank that is killed on the way ends all, long before the text would.
code=0 start=$SECONDS
# shellcheck disable=SC2016
VIEW='if ((rank == 1)); then (sleep 2; kill -9 $$) & fi' limit=60 ranks_apart 2 generate one --tokens 100000000 --pp 2 || code=$?
((code != 0 && SECONDS - start < 50)) || fail "a killed rank: exit $code after $((SECONDS - start)) seconds"
readlink "/proc/$(cat "$SCRATCH/pid.0")/exe" >/dev/null && fail "rank 0 still runs"

# Samples while a pipeline is trained: those of one process; of asynchronous schedules, what the checkpoint says.
sampled=(train "${TINY[@]}" --layers 4 --heads 2 --channels 24 --batch 8 --micro-batch 1 --steps 6 --sample-tokens 40
    --sample-every 3 --lr 0.003 --data book.txt --quiet)
pgpt "${sampled[@]}" --out samples-one
cp out text
cp err text-err
while read -r n words; do
    # shellcheck disable=SC2086 # several words
    ranks "$n" "${sampled[@]}" --out "samples-$n-${words//[^a-z0-9]/}" $words
    cmp -s out text || fail "$n ranks, $words: $(diff out text)"
    cmp -s err text-err || fail "$n ranks, $words, on the way: $(diff err text-err)"
done <<END
2 --pp 2
2 --pp 2 --schedule interleaved
2 --pp 2 --schedule zb-v
4 --pp 2 --tp 2 --schedule zb-v
4 --pp 2 --dp 2 --zero 3
4 --pp 4 --schedule zb-h2
END
for schedule in pipedream pipedream-2bw; do
    ranks 2 "${sampled[@]}" --pp 2 --schedule $schedule --out $schedule
    cp out text
    pgpt generate $schedule --tokens 40 --threads 1
    cmp -s out text || fail "$schedule: the sample is not what its checkpoint says: $(diff out text)"
done
