/* Folders by handle, locks by file, folders that appear whole, and what killed ranks leave in shared memory: what is
 * somebody else's stays, whatever it is called and wherever a link leads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file/file.h"
#include "base/file/file_lock.h"
#include "base/file/folder.h"
#include "base/file/staged_folder.h"
#include "parallel/launch/segments.h"
#include "run/run_folder.h"

/* ---- Help for the tests: they run in a temporary folder of their own */

static char top[64];

static void run(const char *command) {
    if (system(command) != 0) fail_msg("failed: %s", command); /* NOLINT(cert-env33-c) */
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static bool is_there(const char *path) {
    struct stat facts;
    return lstat(path, &facts) == 0;
}

static int enter_folder(void **state) {
    (void)state;
    strcpy(top, "/tmp/pgpt-test-folder-XXXXXX");
    return mkdtemp(top) && chdir(top) == 0 ? 0 : -1;
}

static int leave_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    return chdir("/") == 0 ? system(command) : -1; /* NOLINT(cert-env33-c) */
}

static bool is_known(const char *name) {
    return strncmp(name, "known", 5) == 0;
}

static void assert_error(const Error *error, const char *part) {
    if (error->status != STATUS_USER || !strstr(error->text, part))
        fail_msg("wanted '...%s...', got %d '%s'", part, error->status, error->text);
}

/* ---- Folders */

static void test_links_are_not_followed(void **state) {
    (void)state;
    Folder folder, inner;
    Error error = {0};
    run("mkdir -p links/f/in other && echo precious >other/known.txt");
    run("ln -s ../../other links/f/known-link && ln -s ../other links/g");
    put("links/f/in/known", "x");
    assert_int_equal(folder_open(&folder, "links", &error), STATUS_OK);
    assert_int_equal(folder_look(&folder, "g"), ENTRY_LINK);
    assert_int_equal(folder_open_inside(&inner, &folder, "g", &error), STATUS_USER);
    error = (Error){0};
    /* The link goes, what it leads to stays. */
    assert_int_equal(folder_remove(&folder, "g", is_known, &error), STATUS_OK);
    assert_false(is_there("links/g"));
    /* A folder within is not expected: nothing is removed. */
    assert_int_equal(folder_remove(&folder, "f", is_known, &error), STATUS_USER);
    assert_error(&error, "links/f holds 'in'");
    assert_true(is_there("links/f/known-link") && is_there("links/f/in/known"));
    error = (Error){0};
    assert_int_equal(folder_check(&folder, "f", is_known, &error), STATUS_USER);
    error = (Error){0};
    run("rm -r links/f/in");
    assert_int_equal(folder_remove(&folder, "f", is_known, &error), STATUS_OK);
    assert_false(is_there("links/f"));
    assert_int_equal(folder_remove(&folder, "f", is_known, &error), STATUS_OK);
    /* All of it, links as links. */
    run("mkdir -p links/t/a/b && ln -s ../../../other links/t/a/l && touch links/t/a/b/c");
    folder_remove_all(&folder, "t");
    assert_false(is_there("links/t"));
    assert_true(is_there("other/known.txt"));
    folder_close(&folder);
    folder_close(&folder);
}

static void test_unknown_files_stay(void **state) {
    (void)state;
    Folder folder;
    Error error = {0};
    run("mkdir -p keep/f && touch keep/f/known1 keep/f/known2 keep/f/mine.txt");
    assert_int_equal(folder_open(&folder, "keep", &error), STATUS_OK);
    assert_int_equal(folder_remove(&folder, "f", is_known, &error), STATUS_USER);
    assert_error(&error, "'mine.txt'");
    assert_true(is_there("keep/f/known1") && is_there("keep/f/known2"));
    folder_close(&folder);
}

static void test_names(void **state) {
    (void)state;
    Arena arena = {0};
    const char *folder, *name;
    static const struct {
        const char *path, *folder, *name;
    } cases[] = {
        {"a/b/c//", "a/b", "c"}, {"c", ".", "c"}, {"/c", "/", "c"}, {"/a/c", "/a", "c"}, {"/", "/", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        path_split(cases[i].path, &arena, &folder, &name);
        assert_string_equal(folder, cases[i].folder);
        assert_string_equal(name, cases[i].name);
    }
    arena_free(&arena);
    assert_true(path_is_temporary("x.tmp.12", "x"));
    assert_false(path_is_temporary("x.tmp.", "x"));
    assert_false(path_is_temporary("x.tmp.1a", "x"));
    assert_false(path_is_temporary("xy.tmp.1", "x"));
}

/* ---- Locks */

static void test_lock(void **state) {
    (void)state;
    FileLock lock, second;
    Error error = {0};
    assert_int_equal(file_lock_take(&lock, "lock", 0.0, &error), STATUS_OK);
    assert_int_equal(lock.state, FILE_LOCK_TAKEN);
    /* Another open of the same file, by this process as by any other. */
    assert_int_equal(file_lock_take(&second, "lock", 0.1, &error), STATUS_OK);
    assert_int_equal(second.state, FILE_LOCK_HELD);
    char process[32];
    snprintf(process, sizeof process, "process %ld on ", (long)getpid());
    assert_non_null(strstr(second.holder, process));
    file_lock_release(&second);
    file_lock_release(&lock);
    assert_false(is_there("lock"));
    file_lock_release(&lock);
    /* Held by one that was killed: free again, the file still there. */
    pid_t child = fork();
    if (child == 0) {
        file_lock_take(&lock, "lock", 0.0, &error);
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    assert_true(is_there("lock"));
    assert_int_equal(file_lock_take(&lock, "lock", 0.0, &error), STATUS_OK);
    assert_int_equal(lock.state, FILE_LOCK_TAKEN);
    file_lock_release(&lock);
}

static void test_lock_in_the_way(void **state) {
    (void)state;
    FileLock lock;
    Error error = {0};
    run("echo mine >text && ln -s text lock-link && mkfifo pipe && mkdir lock-folder");
    assert_int_equal(file_lock_take(&lock, "lock-link", 0.0, &error), STATUS_USER);
    file_lock_release(&lock);
    error = (Error){0};
    assert_int_equal(file_lock_take(&lock, "pipe", 0.0, &error), STATUS_USER);
    file_lock_release(&lock);
    error = (Error){0};
    assert_int_equal(file_lock_take(&lock, "lock-folder", 0.0, &error), STATUS_USER);
    file_lock_release(&lock);
    error = (Error){0};
    assert_int_equal(file_lock_take(&lock, "no/such/folder", 0.0, &error), STATUS_USER);
    file_lock_release(&lock);
    run("test \"$(cat text)\" = mine");
}

/* Only one of many has it at any time, though each removes the file when it is done. */
static void test_lock_race(void **state) {
    (void)state;
    enum { N_PROCESSES = 6, N_TURNS = 60 };
    int *shared = mmap(NULL, sizeof(int) * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int i = 0; i < N_PROCESSES; i++) {
        if (fork() != 0) continue;
        for (int turn = 0; turn < N_TURNS; turn++) {
            FileLock lock;
            Error error = {0};
            if (file_lock_take(&lock, "race", 60.0, &error) != STATUS_OK || lock.state != FILE_LOCK_TAKEN)
                _exit(1);
            if (__atomic_add_fetch(&shared[0], 1, __ATOMIC_SEQ_CST) != 1) _exit(2);
            __atomic_add_fetch(&shared[1], 1, __ATOMIC_SEQ_CST);
            __atomic_sub_fetch(&shared[0], 1, __ATOMIC_SEQ_CST);
            file_lock_release(&lock);
        }
        _exit(0);
    }
    for (int i = 0; i < N_PROCESSES; i++) {
        int status = -1;
        wait(&status);
        assert_int_equal(status, 0);
    }
    assert_int_equal(shared[1], N_PROCESSES * N_TURNS);
    munmap(shared, sizeof(int) * 2);
}

/* ---- Folders that appear whole */

static void test_staged(void **state) {
    (void)state;
    StagedFolder first, second;
    Error error = {0};
    run("mkdir -p staged/made.tmp.4242 && touch staged/made.tmp.4242/left staged/made.tmp.notes");
    assert_int_equal(staged_folder_open(&first, "staged/made", &error), STATUS_OK);
    assert_false(is_there("staged/made.tmp.4242")); /* nobody writes there any more */
    assert_true(is_there("staged/made.tmp.notes"));
    /* Two at once: neither takes the other for abandoned; the first to finish has the name. */
    assert_int_equal(staged_folder_open(&second, "staged/made", &error), STATUS_OK);
    assert_true(is_there(first.temporary) && is_there(second.temporary));
    char path[256];
    snprintf(path, sizeof path, "%s/file", first.temporary);
    put(path, "first");
    snprintf(path, sizeof path, "%s/file", second.temporary);
    put(path, "second");
    assert_int_equal(staged_folder_commit(&first, &error), STATUS_OK);
    assert_int_equal(staged_folder_commit(&second, &error), STATUS_USER);
    staged_folder_abort(&first);
    staged_folder_abort(&second);
    run("test \"$(cat staged/made/file)\" = first && test \"$(ls staged | wc -l)\" = 2");
    /* What is begun and given up leaves nothing, nor do folders above it that were not there. */
    error = (Error){0};
    assert_int_equal(staged_folder_open(&first, "staged/a/b/c", &error), STATUS_OK);
    staged_folder_abort(&first);
    assert_false(is_there("staged/a"));
    StagedFolder never = {0};
    staged_folder_abort(&never);
    assert_true(fcntl(0, F_GETFD) >= 0); /* standard input is still open */
}

/* ---- A run that begins anew */

/* With --resume auto a run may begin again in its folder, but only as long as nothing was saved there, which another
 * process may have done while this one waited for the lock. */
static void test_restart(void **state) {
    (void)state;
    RunClaim claim;
    Error error = {0};
    run("mkdir -p again/checkpoints && touch again/config.ini again/metrics.jsonl");
    assert_int_equal(run_claim_new(&claim, "again", "nano", true, &error), STATUS_OK);
    run_claim_release(&claim);
    run("mkdir again/checkpoints/step-00000003");
    assert_int_equal(run_claim_new(&claim, "again", "nano", true, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "another process has just saved again/checkpoints/step-00000003"));
    run_claim_release(&claim);
    assert_true(is_there("again/metrics.jsonl") && !is_there("again/lock"));
    /* What is made for a run that does not begin is removed, what was there stays. */
    error = (Error){0};
    assert_int_equal(run_claim_new(&claim, "again/a//b/c/", "nano", false, &error), STATUS_OK);
    run_claim_release(&claim);
    assert_true(is_there("again") && !is_there("again/a"));
    run("mkdir empty");
    assert_int_equal(run_claim_new(&claim, "empty", "nano", false, &error), STATUS_OK);
    run_claim_release(&claim);
    assert_true(is_there("empty"));
}

/* Many that claim the same new folder at once, for runs that come to nothing: whoever does not get it is told that
 * another has it, not that it is gone. */
static void test_claim_race(void **state) {
    (void)state;
    enum { N_PROCESSES = 3, N_TURNS = 150 };
    pid_t processes[N_PROCESSES];
    for (int i = 0; i < N_PROCESSES; i++) {
        processes[i] = fork();
        if (processes[i] != 0) continue;
        for (int turn = 0; turn < N_TURNS; turn++) {
            RunClaim claim;
            Error error = {0};
            if (run_claim_new(&claim, "wanted/by/many", "nano", false, &error) == STATUS_OK)
                run_claim_release(&claim);
            else if (!strstr(error.text, "wanted/by/many is being written by ")) {
                fprintf(stderr, "%s\n", error.text);
                _exit(1);
            }
        }
        _exit(0);
    }
    for (int i = 0; i < N_PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(processes[i], &status, 0), processes[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* Many that make the same folder at once: none takes another's for abandoned, before it is locked or after. */
static void test_staged_race(void **state) {
    (void)state;
    enum { N_PROCESSES = 6, N_TURNS = 40 };
    run("mkdir crowd");
    for (int i = 0; i < N_PROCESSES; i++) {
        if (fork() != 0) continue;
        for (int turn = 0; turn < N_TURNS; turn++) {
            StagedFolder folder;
            Error error = {0};
            char path[256];
            if (staged_folder_open(&folder, "crowd/made", &error) != STATUS_OK) _exit(1);
            snprintf(path, sizeof path, "%s/file", folder.temporary);
            int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
            if (descriptor < 0) _exit(2);
            close(descriptor);
            staged_folder_abort(&folder);
        }
        _exit(0);
    }
    for (int i = 0; i < N_PROCESSES; i++) {
        int status = -1;
        wait(&status);
        assert_int_equal(status, 0);
    }
    run("test -z \"$(ls crowd)\"");
}

/* ---- Shared memory */

/* As a killed rank leaves it: a note of what it had mapped, which nobody holds. */
static pid_t leave_segments(const char *folder, bool dies) {
    pid_t child = fork();
    if (child == 0) {
        char path[128];
        snprintf(path, sizeof path, "%s/vader_segment.host.0.1.0", folder);
        int descriptor = open(path, O_RDWR | O_CREAT, 0600);
        Segments segments = {0};
        if (descriptor < 0 || ftruncate(descriptor, 4096) != 0 ||
            mmap(NULL, 4096, PROT_READ, MAP_SHARED, descriptor, 0) == MAP_FAILED)
            _exit(1);
        segments_note(&segments, folder);
        if (!segments.path[0]) _exit(2);
        if (!dies) segments_close(&segments);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    return child;
}

static void test_segments(void **state) {
    (void)state;
    char folder[128], text[256], whose[64];
    snprintf(folder, sizeof folder, "%s/shm", top);
    run("mkdir shm && echo mine >shm/vader_segment.host.0.9.9 && echo mine >shm/precious");
    snprintf(whose, sizeof whose, "of killed ranks (process %ld)", (long)leave_segments(folder, true));
    /* A note that was tampered with removes only what is called as segments are. */
    run("for n in shm/pgpt-segments.*; do printf 'precious\\n../text\\n' >>$n; done");
    segments_clear(folder, text, sizeof text);
    assert_non_null(strstr(text, "removed 1 shared-memory segment ("));
    assert_non_null(strstr(text, whose));
    assert_false(is_there("shm/vader_segment.host.0.1.0"));
    assert_true(is_there("shm/vader_segment.host.0.9.9") && is_there("shm/precious"));
    run("test \"$(ls shm | wc -l)\" = 2");
    segments_clear(folder, text, sizeof text);
    assert_string_equal(text, "");
    leave_segments(folder, false); /* it ended as it should: MPI itself removes what it made */
    segments_clear(folder, text, sizeof text);
    assert_string_equal(text, "");
    assert_true(is_there("shm/vader_segment.host.0.1.0"));
    segments_clear("/no/such/folder", text, sizeof text);
}

/* A living rank's segments stay, though a note of a dead one lists them too. */
static void test_living_segments(void **state) {
    (void)state;
    char folder[128], text[160];
    snprintf(folder, sizeof folder, "%s/living", top);
    run("mkdir living");
    leave_segments(folder, true);
    Segments segments = {0};
    int descriptor = open("living/vader_segment.host.0.1.0", O_RDWR);
    void *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
    assert_true(memory != MAP_FAILED);
    segments_note(&segments, folder);
    segments_clear(folder, text, sizeof text);
    assert_string_equal(text, "");
    assert_true(is_there("living/vader_segment.host.0.1.0"));
    segments_close(&segments);
    munmap(memory, 4096);
    close(descriptor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_unknown_files_stay),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_lock_in_the_way),
        cmocka_unit_test(test_lock_race),
        cmocka_unit_test(test_staged),
        cmocka_unit_test(test_claim_race),
        cmocka_unit_test(test_staged_race),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_living_segments),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
