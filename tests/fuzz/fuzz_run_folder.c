/* A run's folder as somebody else may have left it: files, folders and links of any name, half written, in each other's
 * place. Whatever is in it, those who look for a run to go on with, for a model or for the notices of ranks come back
 * with an answer, and nothing outside of the folder changes.
 *
 * The input is a list of entries: a byte says what it is, one how long its name or content is, and so on; names are
 * taken from those that mean something there, or from the input. */
#include "fuzz.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "checkpoint/checkpoint.h"
#include "run/notice.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/metrics.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static char top[256];

static void remove_top(void) {
    Folder root;
    Error error = {0};
    if (folder_open(&root, "/", &error) != STATUS_OK) return;
    folder_remove_all(&root, top + 1);
    folder_close(&root);
}

static void put(int folder, const char *name, const void *bytes, size_t n_bytes) {
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (file < 0) return;
    FUZZ_CHECK(write(file, bytes, n_bytes) == (ssize_t)n_bytes);
    close(file);
}

/* Somebody's files, with names that a prune or a notice would take for its own. */
static const char *const precious[] = {"a.txt", "0", "metrics.jsonl", "manifest.json", "model.safetensors"};
enum { N_PRECIOUS = sizeof precious / sizeof precious[0] };

static void make_precious(int folder) {
    mkdirat(folder, "v", 0777);
    int inner = openat(folder, "v", O_RDONLY | O_DIRECTORY);
    FUZZ_CHECK(inner >= 0);
    for (int i = 0; i < N_PRECIOUS; i++) put(inner, precious[i], "precious", 8);
    close(inner);
}

static void check_precious(int folder) {
    int inner = openat(folder, "v", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    FUZZ_CHECK(inner >= 0);
    for (int i = 0; i < N_PRECIOUS; i++) {
        char text[16] = "";
        int file = openat(inner, precious[i], O_RDONLY | O_NOFOLLOW);
        FUZZ_CHECK(file >= 0 && read(file, text, sizeof text) == 8 && memcmp(text, "precious", 8) == 0);
        close(file);
    }
    close(inner);
}

static const char *const names[] = {
    "config.ini",
    "tokenizer.json",
    "metrics.jsonl",
    "checkpoints",
    "ranks",
    "lock",
    "supervise.lock",
    "0",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "step-00000001",
    "step-00000002",
    "step-00000001.tmp.7",
    "step-00000002.old.tmp.7",
    "model-00001-of-00002.safetensors",
    "manifest.json.tmp.3",
    "step-00000001.tmp.x",
    "config.ini.tmp.9",
};
enum { N_NAMES = sizeof names / sizeof names[0] };

typedef struct {
    const uint8_t *next;
    size_t n;
} Input;

static int take(Input *input) {
    return input->n ? (input->n--, *input->next++) : -1;
}

/* A name that means something, or any other that a folder can hold. */
static const char *take_name(Input *input, char own[16]) {
    int which = take(input);
    if (which < 0) return NULL;
    if (which % 4) return names[which % N_NAMES];
    size_t n = input->n < 15 ? input->n : 15;
    memcpy(own, input->next, n);
    input->next += n;
    input->n -= n;
    own[n] = '\0';
    for (char *byte = own; *byte; byte++) *byte = *byte == '/' ? '_' : *byte;
    return *own && strcmp(own, ".") != 0 && strcmp(own, "..") != 0 ? own : "x";
}

static void fill(int folder, Input *input, int depth) {
    static const char *const targets[] = {"../v",      "../../v", "../../../v", "../v/metrics.jsonl",
                                          "../../v/0", ".",       "..",         "nowhere"};
    for (int kind; (kind = take(input)) >= 0;) {
        char own[16];
        if (kind % 8 == 7 && depth > 0) return;
        const char *name = take_name(input, own);
        if (!name) return;
        if (kind % 8 < 3) {
            size_t n = (size_t)take(input);
            if (n > input->n) n = input->n;
            put(folder, name, input->next, n);
            input->next += n;
            input->n -= n;
        } else if (kind % 8 == 3) {
            int target = take(input);
            if (target >= 0 && symlinkat(targets[target % 8], folder, name) != 0) continue;
        } else if (kind % 8 == 4) {
            if (mkfifoat(folder, name, 0666) != 0) continue;
        } else if (depth < 3 && mkdirat(folder, name, 0777) == 0) {
            int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            fill(inner, input, depth + 1);
            close(inner);
        }
    }
}

/* Which run is meant by this path, and what its manifest says it is. */
static void find_run(const char *path, Arena *arena) {
    const char *run;
    Manifest manifest;
    bool found;
    Error error = {0};
    if (resume_named(path, arena, &run, &error) != STATUS_OK) return;
    FUZZ_CHECK(run && *run);
    resume_manifest(run, arena, &manifest, &found, &error);
}

/* What --resume, generate and supervise do with a folder before and after they train. */
static void use(const char *run) {
    Arena arena = {0};
    Error error = {0};
    RunClaim claim;
    Checkpoint checkpoint;
    RankNotice *notices;
    LineWriter metrics;
    const char *found;
    if (run_claim_supervise(&claim, run, &error) == STATUS_OK) run_claim_release(&claim);
    error = (Error){0};
    if (run_claim_new(&claim, run, "nano", true, &error) == STATUS_OK) run_claim_release(&claim);
    error = (Error){0};
    if (!file_exists(run)) goto done;
    if (resume_find(run, &arena, &found, &error) == STATUS_OK) FUZZ_CHECK(!found || *found);
    find_run(run, &arena);
    find_run(arena_printf(&arena, "%s/checkpoints", run), &arena);
    find_run(arena_printf(&arena, "%s/checkpoints/step-00000001", run), &arena);
    error = (Error){0};
    if (run_claim_again(&claim, run, &error) == STATUS_OK) {
        FUZZ_CHECK(checkpoint_open(&checkpoint, run, CHECKPOINT_BEST, true, &error) != STATUS_OK);
        free((notices_read(run, &notices), notices));
        error = (Error){0};
        if (notices_begin(run, &error) == STATUS_OK) {
            RankNotice notice = {.rank = 0, .process = 1, .host = "h", .where = "w"};
            error = (Error){0};
            notice_write(run, &notice, &error);
        }
        error = (Error){0};
        checkpoint_prune(run, 9, 1, true, &error);
        error = (Error){0};
        if (metrics_open(&metrics, run, json_object(), 1, &error) == STATUS_OK)
            line_writer_close(&metrics, &error);
        error = (Error){0};
        resume_restart(run, &error);
        notices_clear(run);
    }
    run_claim_release(&claim);
done:
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (!top[0]) {
        const char *parent = getenv("TMPDIR"); /* in memory, where there is: files are synced */
        if (!parent && access("/dev/shm", W_OK) == 0) parent = "/dev/shm";
        snprintf(top, sizeof top, "%.200s/pgpt-fuzz-XXXXXX", parent ? parent : "/tmp");
        FUZZ_CHECK(mkdtemp(top));
        atexit(remove_top);
    }
    Folder folder;
    Error error = {0};
    FUZZ_CHECK(folder_open(&folder, top, &error) == STATUS_OK);
    folder_remove_all(&folder, "v");
    folder_remove_all(&folder, "run");
    make_precious(folder.descriptor);
    FUZZ_CHECK(mkdirat(folder.descriptor, "run", 0777) == 0);
    int run = openat(folder.descriptor, "run", O_RDONLY | O_DIRECTORY);
    Input input = {bytes, n_bytes};
    fill(run, &input, 0);
    close(run);
    char path[300];
    snprintf(path, sizeof path, "%s/run", top);
    use(path);
    check_precious(folder.descriptor);
    folder_close(&folder);
    return 0;
}
