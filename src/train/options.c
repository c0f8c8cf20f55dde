#include "train/options.h"

#include "device/device.h"
#include "graph/passes/recompute.h"
#include "graph/precision.h"

#include <stdio.h>

enum { MANY = 1 << 30 };

const OptionWord recompute_words[] = {
    {"none", RECOMPUTE_NONE}, {"selective", RECOMPUTE_SELECTIVE}, {"full", 1}, {NULL, 0}};

const char *recompute_text(int64_t recompute, char *text, size_t n_bytes) {
    if (recompute == RECOMPUTE_SELECTIVE) snprintf(text, n_bytes, "selective");
    else snprintf(text, n_bytes, "%lld", (long long)recompute);
    return text;
}

const OptionSpec train_option_specs[] = {
    OPTION_INT("batch", TrainOptions, batch, 16, 1, MANY, "sequences a step"),
    OPTION_INT(
        "micro-batch", TrainOptions, micro_batch, 0, 0, MANY,
        "sequences at a time; gradient accumulation sums their gradients until the batch is full; must divide it; "
        "0: all"),
    OPTION_INT("sequence", TrainOptions, sequence, 0, 0, MANY,
               "tokens of a training sequence; 0: the model's context"),
    OPTION_INT("steps", TrainOptions, n_steps, 600, 1, INT64_MAX / 2, "optimizer steps to take"),
    OPTION_FLOAT("epochs", TrainOptions, n_epochs, 0.0, 0.0, 1e9, "passes over the text, instead of --steps"),
    OPTION_INT("seed", TrainOptions, seed, 1, 0, INT64_MAX,
               "fixes initial weights, order of the data and dropout", .flags = OPTION_FIXED),
    OPTION_INT(
        "recompute", TrainOptions, recompute, RECOMPUTE_NONE, 0, 1000,
        "activation checkpointing. N: keep only every Nth block's input and recompute the rest in the backward, except "
        "for the last N blocks; full: 1. selective: keep what GEMMs and attention make and recompute what is cheap, "
        "norms and activations; a third less memory for a few percent of time. 0, none: keep everything",
        .words = recompute_words),
    OPTION_INT(
        "recompute-blocks", TrainOptions, recompute_blocks, 0, 0, MANY,
        "recompute the first so many blocks of each stage (of each of its chunks) whole, one by one; the others are as --recompute says: "
        "none or selective"),
    OPTION_INT("loss-chunk", TrainOptions, loss_chunk, 0, 0, MANY,
               "tokens whose logits are in memory at a time; 0: chosen by size"),
    OPTION_CHOICE(
        "device", TrainOptions, device, DEVICE_AUTO, device_plan_names,
        "where to compute; auto: on a GPU if there is one; a kind of GPU (cuda:h200) is one that --print-program "
        "plans for, without one here"),
    OPTION_CHOICE(
        "dtype", TrainOptions, precision, PRECISION_F32, precision_names,
        "precision to train in; bf16 and f16 (mixed precision) keep f32 master weights; pure-bf16 and pure-f16 are "
        "16-bit throughout, with stochastic rounding of the weights"),
    OPTION_BOOL("any-order", TrainOptions, any_order, false, DEVICE_ANY_ORDER_HELP),
    OPTION_INT("streams", TrainOptions, n_streams, DEVICE_STREAMS, 1, 2, DEVICE_STREAMS_HELP),
    OPTION_INT("threads", TrainOptions, n_threads, 0, 0, 4096,
               "CPU threads; 0: all cores, or a rank's share of them"),
    OPTION_INT("eval-every", TrainOptions, eval_every, 100, 0, INT64_MAX / 2,
               "steps between evaluations on the held-out text; 0: only at the end"),
    OPTION_INT("eval-batches", TrainOptions, eval_batches, 50, 0, MANY,
               "batches of an evaluation; 0: all of the held-out text"),
    OPTION_INT("sample-every", TrainOptions, sample_every, 0, 0, INT64_MAX / 2,
               "steps between samples of the model's text; 0: only at the end"),
    OPTION_INT("sample-tokens", TrainOptions, sample_tokens, 300, 0, MANY, "length of a sample; 0: none"),
    OPTION_STRING("prompt", TrainOptions, prompt, "", "TEXT", "how samples begin",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_BOOL(
        "save", TrainOptions, saves, true,
        "write checkpoints; without it nothing is left of the run but its metrics, and it needs no room for the "
        "model on the disk: for a run that is only to be watched or measured",
        .flags = OPTION_TRANSIENT),
    OPTION_INT("save-every", TrainOptions, save_every, 0, 0, INT64_MAX / 2,
               "steps between checkpoints; 0: only by --save-minutes and at the end"),
    OPTION_FLOAT(
        "save-minutes", TrainOptions, save_minutes, TRAIN_SAVE_MINUTES, 0.0, 1e6,
        "minutes between checkpoints; 0: only by --save-every and at the end. The default is for runs without --save-every, and "
        "--sync push and groups do without it; training waits for these saves, and passes over one that fails"),
    OPTION_BOOL(
        "background-save", TrainOptions, background_save, true,
        "write the checkpoints of --save-every and --save-minutes while training goes on, from a copy in memory; "
        "without it training waits, and the memory is saved"),
    OPTION_INT("keep", TrainOptions, keep, 3, 1, MANY,
               "newest checkpoints to keep; the one with the lowest loss on the held-out text stays too"),
    OPTION_FLOAT(
        "hang-timeout", TrainOptions, hang_timeout, TRAIN_HANG_SECONDS, 0.0, 1e9,
        "seconds in which nothing moves on a rank before the job is ended, with a report of where each rank is; 0: never"),
    OPTION_INT("log-every", TrainOptions, log_every, 10, 1, INT64_MAX / 2,
               "steps between lines where there is no terminal"),
    OPTION_STRING("out", TrainOptions, out, "", "DIR", "run folder; default: runs/DATE-TIME-MODEL",
                  .flags = OPTION_TRANSIENT),
    OPTION_STRING(
        "resume", TrainOptions, resume, "", "DIR|auto",
        "go on from the newest checkpoint of this run folder; auto: of --out or else runs/latest, or "
        "begin anew if there is none. Model, tokenizer, seed and optimizer stay; other options may change, and are "
        "recorded",
        .flags = OPTION_TRANSIENT),
    OPTION_STRING(
        "init", TrainOptions, init, "", "DIR",
        "begin with the weights of another model instead of random ones: a run's folder, a checkpoint's, or one of "
        "Hugging Face (GPT-2, Llama, Mistral, Mixtral). Sizes and tokenizer are that model's, and --lr is 5e-5 unless given",
        .flags = OPTION_FIXED),
    OPTION_END,
};
