/* Launchers differ in what they refuse: Open MPI does not run as root and starts no more ranks than there are
 * cores unless told to, and binds ranks to a single core each; MPICH and Slurm have no such words and would
 * not understand them. Which one it is says its --version. */
#define _GNU_SOURCE /* asprintf, mkdtemp */

#include "lab/launch/launcher.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "comm/comm_mpi.h"
#include "lab/launch/launch_child.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORDS = 64, MORE_WORDS = 8, ASK_SECONDS = 30 };

/* ---- Its words */

/* The next word, without its quotes; *text is moved behind it. NULL: there is none. */
static Status next_word(const char **text, Arena *arena, const char **word, Error *error) {
    const char *from = *text + strspn(*text, " \t\n");
    char *to = ARENA_ARRAY(arena, char, strlen(from) + 1), quote = '\0';
    *word = *from ? to : NULL;
    for (; *from && (quote || !strchr(" \t\n", *from)); from++) {
        if (quote && *from == quote) quote = '\0';
        else if (!quote && (*from == '\'' || *from == '"')) quote = *from;
        else *to++ = *from;
    }
    *text = from;
    if (quote) return error_user(error, "--launcher: a quote (%c) is opened and not closed", quote);
    return STATUS_OK;
}

static Status split(Launcher *launcher, const char *text, const char **words, Error *error) {
    for (;;) {
        const char *word;
        TRY(next_word(&text, &launcher->arena, &word, error));
        if (!word) break;
        if (launcher->n_words == MAX_WORDS)
            return error_user(error, "--launcher has more than %d words; put them into a script", MAX_WORDS);
        words[launcher->n_words++] = word;
    }
    if (launcher->n_words == 0 || !*words[0])
        return error_user(error, "--launcher is empty; give a program, as in --launcher mpirun");
    return STATUS_OK;
}

/* That of the MPI that this program was built with, where several are installed side by side. */
static const char *usual_launcher(void) {
    const char *library = comm_mpi_library();
    bool is_mpich = strstr(library, "MPICH") != NULL, is_open_mpi = strstr(library, "Open MPI") != NULL;
    if (is_mpich) return child_exists("mpiexec.mpich") ? "mpiexec.mpich" : "mpiexec";
    return is_open_mpi && child_exists("mpirun.openmpi") ? "mpirun.openmpi" : "mpirun";
}

/* ---- What it needs */

static bool says(const Launcher *launcher, const char *const *options) {
    for (int i = 1; i < launcher->n_words; i++) {
        for (const char *const *option = options; *option; option++)
            if (strcmp(launcher->words[i], *option) == 0) return true;
    }
    return false;
}

static Status is_open_mpi(const Launcher *launcher, bool *result, Error *error) {
    const char *words[] = {launcher->words[0], "--version", NULL};
    ChildResult answer;
    TRY(child_run(&(ChildSetup){.words = words, .timeout_s = ASK_SECONDS}, &answer, error));
    *result = strstr(answer.output, "Open MPI") || strstr(answer.output, "open-mpi") ||
              strstr(answer.output, "OpenRTE");
    child_free(&answer);
    return STATUS_OK;
}

static void add_needed(Launcher *launcher, const char **words) {
    static const char *const root[] = {"--allow-run-as-root", NULL}, *const placing[] = {"--map-by",
                                                                                         "--bind-to",
                                                                                         "--oversubscribe",
                                                                                         "--nooversubscribe",
                                                                                         "--rankfile",
                                                                                         NULL};
    bool is_placed = says(launcher, placing);
    if (geteuid() == 0 && !says(launcher, root)) words[launcher->n_words++] = "--allow-run-as-root";
    if (is_placed) return;
    words[launcher->n_words++] = "--oversubscribe";
    words[launcher->n_words++] = "--bind-to";
    words[launcher->n_words++] = "none";
}

static Status find_program(Launcher *launcher, Error *error) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return error_failed(error, "cannot tell where this program lies: %s", strerror(errno));
    path[n] = '\0';
    launcher->program = arena_strdup(&launcher->arena, path);
    return STATUS_OK;
}

/* A launcher inside a launcher finds the outer one's environment, and gets lost in it. */
static Status check_alone(Error *error) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", NULL};
    for (const char *const *name = names; *name; name++)
        if (getenv(*name))
            return error_user(
                error, "this study starts its own ranks, but was itself started by mpirun; run it without");
    return STATUS_OK;
}

Status launcher_open(Launcher *launcher, const char *text, Error *error) {
    *launcher = (Launcher){0};
    const char **words = ARENA_ARRAY(&launcher->arena, const char *, MAX_WORDS + MORE_WORDS);
    bool is_ompi = false, is_chosen = *text != '\0';
    launcher->words = words;
    TRY_GOTO(check_alone(error), failed);
    TRY_GOTO(find_program(launcher, error), failed);
    TRY_GOTO(split(launcher, is_chosen ? text : usual_launcher(), words, error), failed);
    if (!child_exists(words[0])) {
        error_user(error, "there is no launcher '%s'; %s", words[0],
                   is_chosen
                       ? "check the name, or give its path"
                       : "install an MPI (Debian and Ubuntu: openmpi-bin), or name one with --launcher");
        goto failed;
    }
    TRY_GOTO(is_open_mpi(launcher, &is_ompi, error), failed);
    if (is_ompi) add_needed(launcher, words);
    return STATUS_OK;
failed:
    launcher_close(launcher);
    return error->status;
}

Status launcher_open_alone(Launcher *launcher, Error *error) {
    *launcher = (Launcher){0};
    if (find_program(launcher, error) != STATUS_OK) launcher_close(launcher);
    return error->status;
}

void launcher_close(Launcher *launcher) {
    arena_free(&launcher->arena);
    *launcher = (Launcher){0};
}

const char *launcher_no_save(const char *const *arguments) {
    static const char *const names[] = {"--save", "--background-save", "--no-background-save", "--keep"};
    for (; *arguments; arguments++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strncmp(*arguments, names[i], strlen(names[i])) == 0) return NULL;
        }
    }
    return "--no-save";
}

const char *const *launcher_words(Launcher *launcher, int n_ranks, const char *const *arguments) {
    int n = 0, n_arguments = 0;
    while (arguments[n_arguments]) n_arguments++;
    const char **words = ARENA_ARRAY(&launcher->arena, const char *, launcher->n_words + n_arguments + 4);
    if (n_ranks > 1) {
        for (; n < launcher->n_words; n++) words[n] = launcher->words[n];
        words[n++] = "-n";
        words[n++] = arena_printf(&launcher->arena, "%d", n_ranks);
    }
    words[n++] = launcher->program;
    for (int i = 0; i < n_arguments; i++) words[n++] = arguments[i];
    return words;
}

/* ---- Folders */

Status run_folder_make(RunFolder *folder, const char *parent, Error *error) {
    Arena arena = {0};
    *folder = (RunFolder){.n_existing = path_n_existing(parent, &arena)};
    arena_free(&arena);
    TRY(file_make_folders(parent, error));
    folder->parent = strdup(parent);
    if (!folder->parent || asprintf(&folder->path, "%s/.runs-XXXXXX", parent) < 0) {
        folder->path = NULL;
        error_failed(error, "no memory for a name");
    } else if (!mkdtemp(folder->path)) {
        error_user(error, "cannot make a folder in %s: %s; choose another with --out", parent,
                   strerror(errno));
        free(folder->path);
        folder->path = NULL;
    }
    if (error->status != STATUS_OK) run_folder_remove(folder);
    return error->status;
}

void run_folder_remove(RunFolder *folder) {
    Folder parent;
    Error ignored = {0};
    if (folder->path && folder_open(&parent, folder->parent, &ignored) == STATUS_OK) {
        folder_remove_all(&parent, strrchr(folder->path, '/') + 1);
        folder_close(&parent);
    }
    Arena arena = {0};
    if (folder->parent) path_remove_made(folder->parent, folder->n_existing, &arena);
    arena_free(&arena);
    free(folder->path);
    free(folder->parent);
    *folder = (RunFolder){0};
}
