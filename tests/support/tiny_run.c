#include "tiny_run.h"

#include "backend/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void tiny_run_open(TinyRun *run) {
    static char bytes[4000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)('a' + i % 23);
    Error error = {0};
    Text text;
    *run = (TinyRun){.config = {.preset = "none",
                                .n_layers = 1,
                                .n_heads = 2,
                                .n_channels = 16,
                                .context = 16,
                                .tied = true,
                                .bias = true,
                                .rotary_theta = 1e4},
                     .optimizer = {.rate = 1e-3, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0},
                     .options = {.saves = true,
                                 .batch = 2,
                                 .micro_batch = 2,
                                 .sequence = 16,
                                 .n_steps = 6,
                                 .keep = 100,
                                 .background_save = true,
                                 .log_every = 10,
                                 .prompt = ""},
                     .log = {.quiet = true}};
    assert_int_equal(backend_cpu_open(&run->backend, 1, &error), STATUS_OK);
    assert_int_equal(config_complete(&run->config, 256, &error), STATUS_OK);
    assert_int_equal(tokenizer_build("byte", bytes, sizeof bytes, 0, &run->tokenizer, &error), STATUS_OK);
    assert_int_equal(text_from_bytes("letters", bytes, sizeof bytes, &text, &error), STATUS_OK);
    DatasetOptions options = {.validation_fraction = 0.1, .T = 16};
    assert_int_equal(dataset_from_text(&text, run->tokenizer, &options, &run->dataset, &error), STATUS_OK);
    text_free(&text);
    run->setup = (TrainerSetup){.config = &run->config,
                                .optimizer = &run->optimizer,
                                .options = &run->options,
                                .dataset = run->dataset,
                                .tokenizer = run->tokenizer,
                                .backend = &run->backend,
                                .log = &run->log};
}

void tiny_run_close(TinyRun *run) {
    dataset_free(run->dataset);
    tokenizer_free(run->tokenizer);
    run->backend.close(run->backend.context);
}
