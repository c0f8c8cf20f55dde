#!/bin/bash
# pgpt verify: every layout that so many ranks allow trains as one process does; a sum that is left out is noticed, and
# said where. VERIFY_SAMPLE=24 is for builds that are slow, or tested for something else: so many layouts, and a few with a sum left
# out.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

if [[ -n ${VERIFY_SAMPLE:-} ]]; then
    limit=300 ranks 4 verify --all --sample "$VERIFY_SAMPLE" --steps 2 --threads 1 --json
    [[ $(tail -n 1 out | field layouts) == "$VERIFY_SAMPLE" && $(tail -n 1 out | field differ) == 0 ]] || fail "of a sample: $(cat out)"
    code=0
    limit=300 ranks_apart 4 verify --all --sample 8 --steps 1 --threads 1 --break 1 || code=$?
    ((code == 1 && $(grep -c ' DIFFERS$' "$SCRATCH/out.0") == 8)) || fail "exit $code, not noticed: $(cat "$SCRATCH"/{out,err}.0)"
    exit
fi

# Fewer steps than by hand, of a smaller model; odd sizes, so that slices and shares are unequal.
small=(verify --layers 2 --channels 20 --heads 5 --context 9 --vocab 37 --threads 1)

# check N WORDS...: what a verification of N ranks printed, line by line.
check() {
    local n=$1
    shift
    ranks "$n" "${small[@]}" "$@" --json
    tail -n 1 out | check_json
    local layouts differ same
    layouts=$(tail -n 1 out | field layouts) differ=$(tail -n 1 out | field differ)
    same=$(grep -c ' same$' out)
    [[ $(tail -n 1 out | field ranks) == "$n" ]] || depth=1 fail "ranks: $(tail -n 1 out)"
    ((differ == 0 && same == layouts)) || depth=1 fail "$same of $layouts layouts are the same: $(cat out)"
    ! grep -q DIFFERS out || depth=1 fail "a layout differs: $(cat out)"
    while read -r number most; do
        awk "BEGIN { exit !($(tail -n 1 out | field "$number") <= $most) }" || depth=1 fail "$number: $(tail -n 1 out)"
    done <<<"loss_deviation 1e-5
weight_deviation 1e-4"
}

check 1 --steps 5
check 4 --steps 3 --experts 3 --expert-capacity 1.25 --shared-experts 1 --sample 40
check 2 --steps 3 --experts 5 --router balance-free --mlp swiglu --no-bias --expert-every 2 --sample 20
for n in 2 3 5; do
    check $n --steps $((22 / n))
    # Every stage, every algorithm, with and without everything else.
    for words in "dp $n" "tp $n" sequence 'zero 0' 'zero 1' 'zero 2' 'zero 3' naive server tree ring halving library '1 micro-batch' \
        '2 micro-batches' recompute 'no overlap'; do
        grep -q "$words.* same\$" out || fail "no layout with '$words' on $n ranks: $(cat out)"
    done
done

# An option that does nothing in such a model is refused, rather than another model compared. --all has experts, with what
# is said of them.
ranks_refused '/--router means something only with --experts/' 2 verify --router switch
ranks_refused '/--depth-every means something only with --depth-capacity/' 2 verify --depth-every 1
ranks 2 verify --all --router switch --only 'ep 2' --sample 4 --steps 1 --threads 1
grep -q ' 0 differ ' out || fail "--all --router switch: $(cat out)"

# One sum left out: found in the first step, in a tensor of that bucket, in every layout.
for bucket in 1 2; do
    code=0
    ranks_apart 2 "${small[@]}" --steps 2 --break $bucket --json || code=$?
    ((code == 1)) || fail "exit $code with a sum left out: $(cat "$SCRATCH/launcher")"
    layouts=$(tail -n 1 "$SCRATCH/out.0" | field layouts)
    (($(tail -n 1 "$SCRATCH/out.0" | field differ) == layouts)) || fail "not noticed everywhere: $(cat "$SCRATCH/out.0")"
    (($(grep -c DIFFERS "$SCRATCH/out.0") == layouts)) || fail "not said everywhere: $(cat "$SCRATCH/out.0")"
    # Without a flush weights are compared at the end, losses and norms in every step.
    where='^    first difference in step 1: ([a-z0-9_.]+(weight|bias), element [0-9]+, is [-0-9.e]+ instead of [-0-9.e]+ \(rank [01]\)'
    where+='|the (loss|gradient norm) is [-0-9.e]+ instead of [-0-9.e]+)$'
    (($(grep -Ec "$where" "$SCRATCH/out.0") == layouts)) || fail "not located: $(cat "$SCRATCH/out.0")"
    (($(cat "$SCRATCH"/err.* | wc -l) == 1)) || fail "not one message: $(cat "$SCRATCH"/err.*)"
    grep -q "^pgpt: $layouts of $layouts layouts do not train as one process does" "$SCRATCH/err.0" ||
        fail "what is said: $(cat "$SCRATCH/err.0")"
    [[ ! -s $SCRATCH/out.1 ]] || fail "the other rank writes: $(cat "$SCRATCH/out.1")"
done

# Sums are counted round, so that a stage that has only a few has one of them left out too; those of experts that no other rank has
# are none.
for words in '4 --break 5 --sample 30' '6 --break 3 --sample 20' '2 --experts 5 --shared-experts 1 --break 4 --sample 20' \
    '4 --heads 10 --kv-heads 5 --only tp --break 3 --sample 20'; do
    code=0
    # shellcheck disable=SC2086 # several words
    limit=60 ranks_apart ${words%% *} "${small[@]}" --steps 2 ${words#* } || code=$?
    ((code == 1)) || fail "$words: exit $code: $(cat "$SCRATCH/launcher")"
    { grep -q ' DIFFERS$' "$SCRATCH/out.0" && ! grep -q ' same$' "$SCRATCH/out.0"; } || fail "$words: not noticed everywhere: $(cat "$SCRATCH/out.0")"
done

# Every choice of everything, on subgroups of eight ranks: a sample in which any two choices meet.
limit=330 ranks 8 verify --all --sample 64 --threads 1 --json
tail -n 1 out | check_json
[[ $(tail -n 1 out | field layouts) == 64 && $(tail -n 1 out | field differ) == 0 ]] || fail "of a sample: $(cat out)"
(($(grep -c ' same$' out) == 64)) || fail "not one line a layout: $(cat out)"
for words in 'gpt-2, tied' 'gpt-2, untied' 'llama, tied' 'llama, untied' 'sparse, tied' 'zero 1' 'zero 2' 'zero 3' 'pp 2' 'pp 3' 'pp 4' 'pp 6' 'pp 8' \
    'dp 2, tp 2' naive gpipe 1f1b interleaved zb-h1 zb-h2 zb-v pipedream pipedream-2bw '2 chunks' '3 chunks' '1 micro-batch' recompute 'recompute selective' sequence 'clip check'; do
    grep -q "${words}[, ].* same\$" out || fail "no layout with '$words' in the sample: $(cat out)"
done
for again in 1 2; do # the same sample each time
    ranks 2 verify --all --sample 30 --steps 1 --threads 1
    grep ' same$' out | cut -c 1-87 >sample.$again
done
(($(wc -l <sample.1) == 30)) || fail "not 30: $(cat out)"
cmp sample.1 sample.2 || fail "another sample: $(cat out)"

# All of it, on as many ranks as there are; one line a mesh.
limit=200 ranks 2 verify --all --threads 1 --steps 2 --json
(($(tail -n 1 out | field layouts) >= 300 && $(tail -n 1 out | field differ) == 0)) || fail "all layouts of 2 ranks: $(cat out)"
for mesh in 'one rank' 'dp 2' 'tp 2' 'pp 2'; do
    grep -Eq "^$mesh: [0-9]+ layouts .* 0 differ +[0-9]+ %\$" out || fail "no line for $mesh: $(cat out)"
done

# Those that are named, and no others.
ranks 2 verify --only 'pp 2, zero 0, zb-v|cp 2' --steps 1 --threads 1
(($(grep -c ' same$' out) > 5 && $(grep ' same$' out | grep -Evc '^(pp 2, zero 0, zb-v|cp 2)') == 0)) || fail "not what --only names: $(cat out)"
ranks_refused "/--only 'tp 7' stands in no layout of 2 ranks; leave it out to see their names/" 2 verify --only 'tp 7'

# Sizes that leave ranks without anything: no more parts than there are tokens; blocks of which none could be passed over.
ranks 3 verify --vocab 2 --sample 20 --steps 1 --threads 1
grep -q 'dp 3.* same$' out || fail "a vocabulary of two: $(cat out)"
! grep -q 'tp 3' out || fail "two tokens on three ranks: $(cat out)"
ranks 2 verify --all --layers 1 --sample 10 --steps 1 --threads 1
grep -q '^experts' out || fail "one block: $(cat out)"

# Whatever is left out is noticed: a sum along dp or tp, a gradient at a border of stages, with and without a flush.
code=0
limit=200 ranks_apart 8 verify --all --sample 40 --steps 2 --threads 1 --break 1 || code=$?
((code == 1)) || fail "exit $code with a sum left out of a sample: $(cat "$SCRATCH/launcher")"
(($(grep -c ' DIFFERS$' "$SCRATCH/out.0") == 40)) || fail "not noticed everywhere: $(cat "$SCRATCH/out.0")"

ranks_refused '/--norm says what kind of model it is, and --all tries a model like GPT-2, one like Llama, one with experts, one of several depths and one with sparse attention; leave one of them out/' \
    2 verify --all --norm rmsnorm

# In 16 bits, where layouts differ by roundings, and by more with a sum left out.
for dtype in f16 pure-bf16; do
    ranks 2 "${small[@]}" --steps 2 --dtype $dtype
    grep -q ', 0 differ' out || fail "$dtype: $(tail -n 1 out)"
    code=0
    ranks_apart 2 "${small[@]}" --steps 2 --dtype $dtype --break 1 || code=$?
    ((code == 1)) || fail "exit $code with a sum left out in $dtype: $(cat "$SCRATCH/launcher")"
    grep -q DIFFERS "$SCRATCH/out.0" || fail "not noticed in $dtype: $(cat "$SCRATCH/out.0")"
    ! grep -q ' same$' "$SCRATCH/out.0" || fail "not noticed everywhere in $dtype: $(cat "$SCRATCH/out.0")"
done

# Experts in 16 bits: a difference may be a token that rounding has sent elsewhere, which is said. In f32 it is not.
for dtype in bf16 f32; do
    code=0
    ranks_apart 2 "${small[@]}" --steps 1 --experts 3 --dtype $dtype --tolerance 1e-12 || code=$?
    ((code == 1)) || fail "exit $code with experts and no tolerance in $dtype: $(cat "$SCRATCH/launcher")"
    says=$(grep -c 'may go to another expert.*--dtype f32' "$SCRATCH/err.0" || true)
    [[ $says == "$([[ $dtype == f32 ]] && echo 0 || echo 1)" ]] || fail "$dtype: $(cat "$SCRATCH/launcher")"
done

# As a user calls it.
ranks 2 verify
tail -n 1 out | grep -Eq '^[0-9]+ layouts in [0-9a-z.]+, 0 differ \(tolerance 1e-05 of the loss, 0.0001 of a tensor.s largest weight\)$' || fail "the last line: $(tail -n 1 out)"
