#!/bin/bash
# Sparse attention and document masks from outside: patterns are part of the model, mistakes are named, generation knows.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

refused "/--attention: attention pattern 'windw:3' is not known; choose one of dense, window:W/" train --attention windw:3
refused "/is not of the form fixed:L:C/" train --attention fixed:16
refused "/blocks of 8 are too small/" train --attention bigbird:8:1:1:1
refused "/--attention takes one pattern; give several by --attention-pattern/" train --attention dense,window:4
refused "/give one of them/" train --attention window:4 --attention-pattern dense,window:4
refused "/--attention-pattern: attention pattern '' is not known/" train --attention-pattern window:4,
refused "/--document-end is for --document-mask/" train --document-end 5
refused "/--document-end 99999999 is not one of the/" train --document-mask --document-end 99999999
printf 'a text of letters, none of which ends it. %.0s' {1..80} >letters.txt
refused "/the tokenizer has none.*--document-end/" train --data letters.txt --tokenizer char --document-mask

# A text without a token that ends documents is one: said, since nothing else shows it.
few=(--layers 1 --heads 1 --channels 8 --context 16 --batch 2 --steps 1 --sample-tokens 0 --no-save)
pgpt train "${few[@]}" --data letters.txt --tokenizer word --document-mask
grep -q 'warning: --document-mask: token .* is not among the .* tokens of the text' err || fail "no word of it: $(cat err)"
for i in {1..60}; do echo "{\"text\": \"text number $i\"}"; done >many.jsonl
pgpt train "${few[@]}" --data many.jsonl --tokenizer word --document-mask
! grep -q warning err || fail "a warning where there are documents: $(cat err)"

options=(--model nano --layers 3 --heads 2 --channels 16 --context 32 --batch 4 --eval-every 0 --eval-batches 2
    --sample-tokens 0 --seed 3 --attention-pattern 'window:5,dense' --document-mask)
pgpt train "${options[@]}" --steps 12 --out whole
grep -q '"attention-pattern": *"window:5,dense"' whole/checkpoints/*/manifest.json || fail "the checkpoint does not have the pattern"
pgpt train "${options[@]}" --steps 12 --save-every 6 --keep 9 --out parts
rm -r parts/checkpoints/step-00000012
pgpt train --resume parts
same_losses whole parts
refused "/another model|cannot be changed|attention/" train --resume whole --steps 20 --attention-pattern dense
pgpt generate whole --prompt 'Once upon' --tokens 60 --temperature 0
cp out cached
pgpt generate whole --prompt 'Once upon' --tokens 60 --temperature 0 --no-cache
cmp out cached || fail "with the cache: $(cat cached); without: $(cat out)"

# The program says what it computes.
pgpt train "${options[@]}" --steps 2 --print-program
grep -q 'attention_blocks.*window:5 in documents' out || fail "no lists in the program"
grep -q 'sparse_attention.*window:5 in documents, 2 heads of 8' out || fail "no sparse attention in the program"
grep -q 'document_starts' out || fail "no documents in the program"
pgpt train "${options[@]}" --no-document-mask --attention-pattern dense --steps 2 --print-program
! grep -q 'sparse_attention\|attention_blocks\|document_starts' out || fail "a dense program has sparse attention in it"
