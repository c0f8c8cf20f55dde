#!/bin/bash
# What a run leaves behind, what it says as JSON, and that its config.ini repeats it.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --out first --json --eval-every 2 --dropout 0.1 --lr 0.01
for file in config.ini metrics.jsonl tokenizer.json \
    checkpoints/step-00000005/{model.safetensors,optimizer.safetensors,manifest.json}; do
    [[ -s first/$file ]] || fail "no $file"
done
(($(find first -type f | wc -l) == 6)) || fail "unexpected files: $(find first -type f)"

# A header, then a line a step.
(($(wc -l <first/metrics.jsonl) == 6)) || fail "$(wc -l <first/metrics.jsonl) lines of metrics"
while read -r line; do check_json <<<"$line"; done <first/metrics.jsonl
head -n 1 first/metrics.jsonl >header
for key in version started machine model parameters batch sequence steps threads flops_per_step standard_flops_per_step peak_bytes; do
    [[ -n $(field $key <header) ]] || fail "no $key in the header"
done
for key in step loss lr grad_norm tokens tokens_per_s step_ms flops_per_s forward_ms backward_ms update_ms; do
    (($(column first $key | wc -l) == 5)) || fail "not every step has its $key"
done
[[ $(column first step | tr '\n' ' ') == "1 2 3 4 5 " ]] || fail "steps are not 1 to 5"
[[ $(column first tokens | tail -n 1) == 320 ]] || fail "tokens: $(column first tokens)"
(($(column first val_loss | wc -l) == 3)) || fail "evaluations are not after steps 2, 4 and 5"

# The last line of the output.
tail -n 1 out >summary
check_json <summary
for key in step loss val_loss lr grad_norm tokens tokens_per_s step_ms flops_per_s peak_bytes seconds run; do
    [[ -n $(field $key <summary) ]] || fail "no $key in the summary"
done
! grep -q ':null' summary || fail "something that was not measured is in the summary: $(cat summary)"
[[ $(field step <summary) == 5 && $(field tokens <summary) == 320 && $(field run <summary) == first ]] ||
    fail "summary: $(cat summary)"
[[ $(field loss <summary) == "$(column first loss | tail -n 1)" ]] || fail "the summary's loss is another"
[[ $(field val_loss <summary) == "$(column first val_loss | tail -n 1)" ]] || fail "the summary's val_loss is another"
[[ $(field peak_bytes <summary) == "$(field peak_bytes <header)" ]] || fail "two peaks"

# Every option is in config.ini, and passing it back repeats the run bit by bit, wherever it goes.
for key in model layers heads data tokenizer lr lr-schedule beta2 clip batch steps seed dropout; do
    grep -q "^#\?$key = " first/config.ini || fail "no $key in config.ini"
done
pgpt train first/config.ini --out second
same_losses first second
same_model first second
pgpt train first/config.ini
[[ -L runs/latest && -s runs/latest/config.ini ]] || fail "no runs/latest"
same_model first runs/latest/
pgpt generate --tokens 3

# What the command line says wins over the file.
pgpt train first/config.ini --steps 3 --out third
[[ $(column third step | tail -n 1) == 3 ]] || fail "--steps did not win over the file"
