#!/bin/bash
# pgpt convert, and what can be done with the folders it makes.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --tokenizer char --out run

# There and back: the same weights, and both folders write the same text.
pgpt convert run theirs --json
tail -n 1 out | check_json
[[ $(tail -n 1 out | field to) == hf && $(tail -n 1 out | field dtype) == F32 ]] || fail "$(cat out)"
[[ $(ls theirs) == $'config.json\nmodel.safetensors\npgpt_tokenizer.json' ]] || fail "files: $(ls theirs)"
check_json <theirs/config.json
pgpt convert theirs ours --json
[[ $(tail -n 1 out | field to) == pgpt ]] || fail "$(cat out)"
same_model run ours
pgpt generate run --prompt 'The cat' --tokens 30
cp out text
for folder in theirs ours ours/checkpoints/step-00000000; do
    pgpt generate $folder --prompt 'The cat' --tokens 30
    cmp -s out text || fail "$folder writes another text: $(cat out)"
done
pgpt convert ours again
diff -r theirs again || fail "what goes there and back changes"

# Types and shards.
for type in f32 bf16 f16; do
    pgpt convert run $type --dtype $type
    pgpt convert $type $type-ours
    pgpt convert $type-ours $type-again
    diff -r $type $type-again || fail "$type changes on the way"
    pgpt generate $type --tokens 5
done
(($(stat -c %s bf16/model.safetensors) < $(stat -c %s f32/model.safetensors) * 2 / 3)) || fail "bf16 is not smaller"
grep -q '"torch_dtype": "float16"' f16/config.json || fail "f16 is not stated"
pgpt convert run shards --max-shard-size 4KB
[[ -s shards/model.safetensors.index.json && ! -e shards/model.safetensors ]] || fail "no shards: $(ls shards)"
(($(find shards -name 'model-*-of-*.safetensors' | wc -l) > 2)) || fail "shards: $(ls shards)"
pgpt convert shards whole --to hf
cmp -s whole/model.safetensors theirs/model.safetensors || fail "shards put together are another model"
pgpt convert run copy --to pgpt
same_model run copy
mkdir empty
pgpt convert run empty

# Sizes that follow from others are not recorded as given, so that one can train a model like it but for some of them.
pgpt train ours/config.ini --channels 32 --tokenizer char --steps 1 --batch 4 --threads 1 --sample-tokens 0 --out like
grep -qx 'hidden = 0' ours/config.ini || fail "hidden: $(grep hidden ours/config.ini)"
grep -q '"hidden": 128' like/checkpoints/*/manifest.json || fail "not four times the channels: $(cat like/checkpoints/*/manifest.json)"

# Training begins with another model, and can be repeated, resumed and exported.
few=(--batch 4 --steps 5 --threads 1 --sample-tokens 0)
for from in run theirs ours; do
    pgpt train --init $from "${few[@]}" --out begun-$from
    same_model begun-run begun-$from
done
! cmp -s "$(model run)" "$(model begun-run)" || fail "nothing was learned"
grep -q '^#lr = 5e-05$' begun-run/config.ini || fail "lr: $(grep 'lr' begun-run/config.ini)"
pgpt train begun-theirs/config.ini --out repeated
same_model begun-run repeated
pgpt train --resume begun-theirs --steps 8
pgpt train --init run "${few[@]}" --steps 8 --out longer --dropout 0.1
pgpt convert begun-theirs begun-export
cmp -s begun-export/config.json theirs/config.json || fail "config.json was not kept"
pgpt train --init theirs "${few[@]}" --resume auto --out automatic
pgpt train --init theirs "${few[@]}" --steps 7 --resume auto --out automatic
[[ $(column automatic step | tail -n 1) == 7 ]] || fail "auto did not resume"
grep -q '^#lr = 5e-05$' automatic/config.ini || fail "another lr after a resume: $(grep 'lr' automatic/config.ini)"
pgpt train --init ./theirs/ "${few[@]}" --steps 8 --resume auto --out automatic
refused '/--init run cannot be: the run has --init ./theirs//' train --init run "${few[@]}" --steps 9 --resume auto --out automatic

# Bad input: a message, and nothing written.
refused '/SOURCE/' convert
refused '/DEST/' convert run
refused '/missing/' convert missing new
refused '/ours is there already and not empty/' convert run ours
refused '/out is a file/' convert run out
refused '/--to/' convert run new --to onnx
refused '/--dtype/' convert run new --dtype f8
refused '/--dtype bf16 is for/' convert theirs new --dtype bf16
for size in 0 -1 GB 5XB 1e30GB ''; do
    refused '/--max-shard-size/' convert run new --max-shard-size "$size"
done
refused '/config.ini/' convert run new run/config.ini
cp -r theirs broken
truncate -s -8 broken/model.safetensors
refused '/broken\/model.safetensors.*; copy or download the model again$/' convert broken new/below
refused '/broken\/model.safetensors/' generate broken
refused '/broken\/model.safetensors/' train --init broken "${few[@]}" --out new
cp theirs/model.safetensors broken/
sed -i 's/"gpt2"/"bloom"/' broken/config.json
refused '/broken\/config.json.*bloom is not supported yet; supported: gpt2, llama/' convert broken new
sed 's/"n_layer": 1/"n_layer": 2/' theirs/config.json >broken/config.json
refused "/h\\.1\\.ln_1\\.weight/" convert broken new
rm broken/config.json
refused '/broken/' convert broken new
pgpt train "${TINY[@]}" --out turning --position rotary
refused '/--position rotary/' convert turning new
refused '/--layers 1, not 3; leave out --layers/' train --init run --layers 3
refused '/leave out --(heads|layers|channels).* and --model/' train --init run --model mini
refused '/--init and --resume/' train --init run --resume run
refused '/--init instead of --resume/' train --resume ours --steps 9
refused '/tokenizer/' train --init run --tokenizer word
if ((EUID != 0)); then
    mkdir locked && chmod 500 locked
    refused '/locked.*permission/' convert run locked/new
fi

# Llama's layout: queries, keys and values apart, SwiGLU's matrices apart.
pgpt train "${TINY[@]}" --out rotating --steps 3 --heads 4 --kv-heads 2 --channels 24 --norm rmsnorm --position rotary --mlp swiglu --no-bias --no-tied
pgpt convert rotating rotating-hf
grep -q '"LlamaForCausalLM"' rotating-hf/config.json || fail 'config.json of a Llama'
grep -aq '"model.layers.0.self_attn.k_proj.weight"' rotating-hf/model.safetensors || fail 'names of a Llama'
pgpt convert rotating-hf rotating-again
pgpt convert rotating-again rotating-hf2
cmp rotating-hf/model.safetensors rotating-hf2/model.safetensors || fail 'a Llama changed on its way'
pgpt generate rotating --temperature 0 --tokens 20 --prompt a
cp out text
pgpt generate rotating-hf --temperature 0 --tokens 20 --prompt a
cmp -s out text || fail "a Llama says something else: $(diff out text)"

# Mixtral's: the same with experts, each of which has three matrices.
pgpt train "${TINY[@]}" --out mixed --steps 3 --heads 4 --kv-heads 2 --channels 24 --norm rmsnorm --position rotary --mlp swiglu --no-bias --no-tied --experts 5 --expert-hidden 20
pgpt convert mixed mixed-hf
grep -q '"MixtralForCausalLM"' mixed-hf/config.json || fail 'config.json of a Mixtral'
grep -aq '"model.layers.0.block_sparse_moe.experts.4.w3.weight"' mixed-hf/model.safetensors || fail 'names of a Mixtral'
pgpt convert mixed-hf mixed-again
pgpt convert mixed-again mixed-hf2
cmp mixed-hf/model.safetensors mixed-hf2/model.safetensors || fail 'a Mixtral changed on its way'
pgpt generate mixed --temperature 0 --tokens 20 --prompt a
cp out text
pgpt generate mixed-hf --temperature 0 --tokens 20 --prompt a
cmp -s out text || fail "a Mixtral says something else: $(diff out text)"
pgpt train "${TINY[@]}" --out switched --steps 1 --norm rmsnorm --position rotary --mlp swiglu --no-bias --experts 4 --router switch
refused '/--router/' convert switched new

# Mistral's and Mixtral's window of attention, there and back. Text goes on beyond it.
for with in '' '--experts 5 --expert-hidden 20'; do
    # shellcheck disable=SC2086 # several words
    pgpt train "${TINY[@]}" --out narrow --steps 3 --heads 4 --kv-heads 2 --channels 24 --norm rmsnorm --position rotary --mlp swiglu --no-bias --no-tied \
        --attention window:5 $with
    pgpt convert narrow narrow-hf
    grep -q '"sliding_window": 5' narrow-hf/config.json || fail 'no window in config.json'
    name=Mistral && [[ -z $with ]] || name=Mixtral
    grep -q "\"${name}ForCausalLM\"" narrow-hf/config.json || fail "config.json of a $name"
    pgpt convert narrow-hf narrow-again
    grep -q '^attention = window:5$' narrow-again/config.ini || fail 'the window is gone'
    pgpt convert narrow-again narrow-hf2
    cmp narrow-hf/model.safetensors narrow-hf2/model.safetensors || fail 'a Mistral changed on its way'
    cmp narrow-hf/config.json narrow-hf2/config.json || fail "a Mistral's config.json changed on its way"
    pgpt generate narrow --temperature 0 --tokens 40 --prompt a
    cp out text
    pgpt generate narrow-hf --temperature 0 --tokens 40 --prompt a
    cmp -s out text || fail "a Mistral says something else: $(diff out text)"
    rm -r narrow narrow-*
done
pgpt train "${TINY[@]}" --layers 2 --out turns --steps 1 --norm rmsnorm --position rotary --mlp swiglu --no-bias --attention-pattern dense,window:5
refused '/neither dense nor one window:W/' convert turns new
