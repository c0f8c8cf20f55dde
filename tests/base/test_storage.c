/* Memory and files: sizes that do not fit, disks that are full, paths that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/memory.h"
#include "folder_support.h"

/* ---- Memory */

static void test_memory_alloc(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 4095, (4u << 20) - 1, 4u << 20, (4u << 20) + 1, 9u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Error error = {0};
        void *memory;
        assert_int_equal(memory_alloc(&memory, sizes[i], "a test", &error), STATUS_OK);
        assert_non_null(memory);
        size_t alignment = sizes[i] >= 4u << 20 ? 2u << 20 : 64;
        assert_int_equal((uintptr_t)memory % alignment, 0);
        unsigned char *bytes = memory;
        for (size_t j = 0; j < sizes[i]; j += 509) assert_int_equal(bytes[j], 0);
        if (sizes[i]) {
            memset(bytes, 0xFF, sizes[i]);
            assert_int_equal(bytes[sizes[i] - 1], 0xFF);
        }
        memory_free(memory, sizes[i]);
    }
    memory_free(NULL, 100);
}

/* Real memory is there afterwards, all of it, and what had been written stays. */
static void test_memory_touch(void **state) {
    (void)state;
    static const size_t sizes[] = {4096, 4u << 20, (9u << 20) + 4097, 33u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Error error = {0};
        void *memory;
        assert_int_equal(memory_alloc(&memory, sizes[i], "a test", &error), STATUS_OK);
        unsigned char *bytes = memory, there[(33u << 20) / 4096] = {0};
        bytes[sizes[i] / 2] = 7;
        memory_touch(memory, sizes[i]);
        if (sizes[i] >= 4u << 20) {
            assert_int_equal(mincore(memory, sizes[i], there), 0);
            for (size_t page = 0; page < sizes[i] / 4096; page++) assert_int_equal(there[page] & 1, 1);
        }
        for (size_t j = 0; j < sizes[i]; j += 509) assert_int_equal(bytes[j], j == sizes[i] / 2 ? 7 : 0);
        assert_int_equal(bytes[sizes[i] / 2], 7);
        memory_free(memory, sizes[i]);
    }
}

static void test_memory_too_much(void **state) {
    (void)state;
    Error error = {0};
    void *memory = &error;
    uint64_t available = memory_available_bytes();
    assert_true(available > 0 && available < UINT64_MAX);
    assert_int_equal(memory_alloc(&memory, (size_t)1 << 60, "activations", &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "needs 1.00 EiB for activations, ");
    assert_error(&error, STATUS_USER, " are free");
    assert_null(memory);
    error = (Error){0};
    assert_int_equal(memory_alloc(&memory, SIZE_MAX, "activations", &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(memory_check(UINT64_MAX, "weights", "use a smaller --model", &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "are free: use a smaller --model");
    error = (Error){0};
    assert_int_equal(memory_check(1, "weights", NULL, &error), STATUS_OK);
}

/* A machine with 8 GB available, as it looks to a process in this or that control group. */
static void put_system_file(const char *path, const char *text) {
    char full[512], parent[512];
    snprintf(full, sizeof full, "%s/system/%s", folder, path);
    snprintf(parent, sizeof parent, "%s", full);
    *strrchr(parent, '/') = 0;
    Error error = {0};
    assert_int_equal(file_make_folders(parent, &error), STATUS_OK);
    put_file(full, text);
}

static void test_memory_groups(void **state) {
    (void)state;
    char buffer[256];
    const char *root = in_folder(buffer, "system");
    assert_true(memory_available_bytes_under(root) == UINT64_MAX);
    put_system_file("proc/meminfo", "MemTotal:  16000000 kB\nMemAvailable:    8000000 kB\n");
    assert_int_equal(memory_available_bytes_under(root), 8192000000);

    /* Version 2: no limit in the group itself, 3 GB in the one above, of which 2 GB are used, half of that cache. */
    put_system_file("proc/self/cgroup", "0::/outer/inner\n");
    put_system_file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    put_system_file("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
    put_system_file("sys/fs/cgroup/outer/memory.max", "3000000000\n");
    put_system_file("sys/fs/cgroup/outer/memory.current", "2000000000\n");
    assert_int_equal(memory_available_bytes_under(root), 1000000000);
    put_system_file("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 1000000000\nactive_file 7\n");
    assert_int_equal(memory_available_bytes_under(root), 2000000000);
    put_system_file("sys/fs/cgroup/outer/memory.current", "5000000000\n"); /* over its limit: nothing left */
    assert_int_equal(memory_available_bytes_under(root), 0);

    /* Version 1, among other controllers; a container sees the root only. */
    put_system_file("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/\n");
    put_system_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000000\n");
    put_system_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000000\n");
    put_system_file("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500000000\n");
    assert_int_equal(memory_available_bytes_under(root), 3000000000);
    put_system_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(memory_available_bytes_under(root), 8192000000);
}

static void test_memory_peak(void **state) {
    (void)state;
    uint64_t before = memory_resident_peak_bytes();
    assert_true(before > 100000);
    size_t n_bytes = 96u << 20;
    Error error = {0};
    void *memory;
    assert_int_equal(memory_alloc(&memory, n_bytes, "a test", &error), STATUS_OK);
    memset(memory, 1, n_bytes);
    memory_free(memory, n_bytes);
    assert_true(memory_resident_peak_bytes() >= n_bytes);
}

static void test_size_arithmetic(void **state) {
    (void)state;
    size_t size = 7;
    assert_true(size_multiply(1u << 20, 3, &size));
    assert_int_equal(size, 3u << 20);
    assert_true(size_multiply(0, SIZE_MAX, &size));
    assert_int_equal(size, 0);
    size = 7;
    assert_false(size_multiply(SIZE_MAX / 2, 3, &size));
    assert_false(size_add(SIZE_MAX, 1, &size));
    assert_int_equal(size, 7);
    assert_true(size_add(SIZE_MAX - 1, 1, &size));
    int64_t number = 7;
    assert_false(int64_multiply(INT64_MAX, 2, &number));
    assert_false(int64_multiply(-1, 2, &number));
    assert_false(int64_multiply(2, -1, &number));
    assert_int_equal(number, 7);
    assert_true(int64_multiply(INT64_MAX, 1, &number));
    assert_true(number == INT64_MAX);
}

/* ---- Files */

static void test_file_read(void **state) {
    (void)state;
    char path[256], *bytes;
    size_t n_bytes;
    Error error = {0};
    put_file(in_folder(path, "text"), "hello\n");
    assert_text_of_file(path, "hello\n");
    assert_int_equal(file_read(path, 6, &bytes, &n_bytes, &error), STATUS_OK);
    free(bytes);
    assert_int_equal(file_read(path, 5, &bytes, &n_bytes, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "is too large: it has 6 B, at most 5 B are read");
    assert_null(bytes);
    put_file(in_folder(path, "empty"), "");
    assert_text_of_file(path, "");

    error = (Error){0};
    assert_int_equal(file_read(in_folder(path, "missing"), 5, &bytes, &n_bytes, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "/missing: there is no such file");
    error = (Error){0};
    assert_int_equal(file_read(folder, 5, &bytes, &n_bytes, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "it is a folder");
    error = (Error){0};
    assert_int_equal(file_read(in_folder(path, "text/x"), 5, &bytes, &n_bytes, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "a part of the path is a file");
    /* No size to trust: /proc says 0 bytes, a device never ends. */
    error = (Error){0};
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &bytes, &n_bytes, &error), STATUS_OK);
    assert_true(n_bytes > 100 && strlen(bytes) == n_bytes);
    free(bytes);
    assert_int_equal(file_read("/dev/zero", 300000, &bytes, &n_bytes, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "too large");
    if (geteuid() != 0) {
        put_file(in_folder(path, "secret"), "x");
        chmod(path, 0);
        error = (Error){0};
        assert_int_equal(file_read(path, 5, &bytes, &n_bytes, &error), STATUS_USER);
        assert_error(&error, STATUS_USER, "no permission");
    }
}

static void test_file_large(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    FileWriter writer;
    size_t n_bytes = 300001;
    char *text = malloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++) text[i] = (char)('a' + i % 23);
    text[n_bytes] = 0;
    assert_int_equal(file_writer_open(&writer, in_folder(path, "large"), &error), STATUS_OK);
    /* Pieces of all sizes around the buffer's. */
    size_t done = 0, piece = 1;
    for (; done < n_bytes; done += piece, piece = piece * 3 % 100003) {
        if (piece > n_bytes - done) piece = n_bytes - done;
        assert_int_equal(file_writer_write(&writer, text + done, piece, &error), STATUS_OK);
    }
    assert_int_equal(writer.n_bytes, n_bytes);
    assert_false(file_exists(path)); /* not before it is whole */
    assert_int_equal(file_writer_commit(&writer, &error), STATUS_OK);
    file_writer_abort(&writer);
    file_writer_abort(&writer);
    assert_text_of_file(path, text);
    free(text);
}

static int count_files(const char *pattern) {
    char command[256];
    snprintf(command, sizeof command, "ls %s/%s 2>/dev/null | wc -l", folder, pattern);
    FILE *pipe = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    return n;
}

static void test_file_writer_replaces_or_not(void **state) {
    (void)state;
    char path[256], stale[300];
    Error error = {0};
    FileWriter writer;
    put_file(in_folder(path, "kept"), "old");
    assert_int_equal(file_writer_open(&writer, path, &error), STATUS_OK);
    assert_int_equal(file_writer_printf(&writer, &error, "new %d", 1), STATUS_OK);
    assert_int_equal(count_files("kept.tmp.*"), 1);
    file_writer_abort(&writer);
    assert_text_of_file(path, "old");
    assert_int_equal(count_files("kept.tmp.*"), 0);

    snprintf(stale, sizeof stale, "%s.tmp.%ld", path, (long)getpid());
    put_file(stale, "left by a dead process");
    assert_int_equal(file_writer_open(&writer, path, &error), STATUS_OK);
    assert_int_equal(file_writer_printf(&writer, &error, "new %d", 2), STATUS_OK);
    assert_int_equal(file_writer_commit(&writer, &error), STATUS_OK);
    assert_int_equal(file_writer_write(&writer, "x", 1, &error), STATUS_FAILED);
    file_writer_abort(&writer);
    assert_text_of_file(path, "new 2");
    assert_int_equal(count_files("kept.tmp.*"), 0);
}

static void test_file_writer_errors(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    FileWriter writer;
    assert_int_equal(file_writer_open(&writer, in_folder(path, "no/such/folder"), &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "no/such does not exist; make it first");
    file_writer_abort(&writer);
    error = (Error){0};
    assert_int_equal(file_writer_open(&writer, folder, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "it is a folder");
    error = (Error){0};
    assert_int_equal(file_writer_open(&writer, "", &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(file_writer_open(&writer, in_folder(path, "new/"), &error), STATUS_USER);

    if (!file_exists("/dev/full")) return;
    error = (Error){0};
    assert_int_equal(file_writer_open(&writer, "/dev/full", &error), STATUS_OK);
    assert_int_equal(file_writer_write(&writer, "x", 1, &error), STATUS_OK); /* buffered */
    assert_int_equal(file_writer_commit(&writer, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "cannot write /dev/full: the disk is full (");
    file_writer_abort(&writer);
    assert_true(file_exists("/dev/full"));
    error = (Error){0};
    assert_int_equal(file_writer_open(&writer, "/dev/null", &error), STATUS_OK);
    assert_int_equal(file_writer_write(&writer, "x", 1, &error), STATUS_OK);
    assert_int_equal(file_writer_commit(&writer, &error), STATUS_OK); /* cannot be synced: not an error */
    file_writer_abort(&writer);
}

static void test_make_folders(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    assert_int_equal(file_make_folders(in_folder(path, "a/b//c/"), &error), STATUS_OK);
    assert_int_equal(file_make_folders(path, &error), STATUS_OK);
    assert_true(file_exists(in_folder(path, "a/b/c")));
    put_file(in_folder(path, "a/file"), "");
    assert_int_equal(file_make_folders(in_folder(path, "a/file/d"), &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "a/file is a file");
    error = (Error){0};
    assert_int_equal(file_make_folders("/proc/nowhere/x", &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(file_make_folders("", &error), STATUS_USER);
    bool is_same = false; /* others write to the disk meanwhile */
    for (int i = 0; i < 1000 && !is_same; i++)
        is_same = file_free_bytes(in_folder(path, "not/yet/there")) == file_free_bytes(folder);
    assert_true(is_same);
    assert_true(file_free_bytes("not-there") < UINT64_MAX);
}

static void test_line_writer(void **state) {
    (void)state;
    char path[256];
    Error error = {0};
    LineWriter writer;
    assert_int_equal(line_writer_open(&writer, in_folder(path, "lines"), &error), STATUS_OK);
    assert_int_equal(line_writer_write(&writer, "{\"a\":1}", &error), STATUS_OK);
    assert_text_of_file(path, "{\"a\":1}\n"); /* at once, not when closed */
    assert_int_equal(line_writer_close(&writer, &error), STATUS_OK);
    assert_int_equal(line_writer_close(&writer, &error), STATUS_OK);
    assert_int_equal(line_writer_open(&writer, path, &error), STATUS_OK);
    assert_int_equal(line_writer_write(&writer, "", &error), STATUS_OK);
    assert_int_equal(line_writer_write(&writer, "a\nb", &error), STATUS_FAILED);
    error = (Error){0};
    line_writer_close(&writer, &error);
    assert_text_of_file(path, "{\"a\":1}\n\n");

    /* A torn last line goes, whether it is short, long, or the only one. */
    put_file(path, "one\ntwo\nthr");
    line_writer_open(&writer, path, &error);
    line_writer_write(&writer, "three", &error);
    line_writer_close(&writer, &error);
    assert_text_of_file(path, "one\ntwo\nthree\n");
    FILE *file = fopen(path, "a");
    for (int i = 0; i < 10000; i++) fputc('x', file);
    fclose(file);
    line_writer_open(&writer, path, &error);
    line_writer_close(&writer, &error);
    assert_text_of_file(path, "one\ntwo\nthree\n");
    put_file(path, "torn");
    line_writer_open(&writer, path, &error);
    line_writer_close(&writer, &error);
    assert_text_of_file(path, "");
    assert_int_equal(error.status, STATUS_OK);

    assert_int_equal(line_writer_open(&writer, folder, &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "it is a folder");
    error = (Error){0};
    if (!file_exists("/dev/full")) return;
    assert_int_equal(line_writer_open(&writer, "/dev/full", &error), STATUS_OK);
    assert_int_equal(line_writer_write(&writer, "x", &error), STATUS_USER);
    assert_error(&error, STATUS_USER, "the disk is full");
    error = (Error){0};
    line_writer_close(&writer, &error);
}

/* A real full disk: 1 MiB of memory, mounted for the test. */
static void test_disk_full(void **state) {
    (void)state;
    char disk[256], path[300];
    mkdir(in_folder(disk, "disk"), 0700);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=1m") < 0) {
        print_message("skipped: mounting a small disk needs root (%s)\n", strerror(errno));
        skip();
    }
    Error file_error = {0}, line_error = {0};
    FileWriter writer;
    snprintf(path, sizeof path, "%s/weights", disk);
    put_file(path, "old");
    static const char block[100000] = {1};
    file_writer_open(&writer, path, &file_error);
    for (int i = 0; i < 20 && file_error.status == STATUS_OK; i++) {
        file_writer_write(&writer, block, sizeof block, &file_error);
    }
    file_writer_abort(&writer);
    char *kept = NULL, *lines = NULL;
    size_t n_kept = 0, n_lines = 0;
    Error error = {0};
    file_read(path, 100, &kept, &n_kept, &error);

    LineWriter line_writer;
    snprintf(path, sizeof path, "%s/lines", disk);
    char line[3001];
    memset(line, 'x', 3000);
    line[3000] = 0;
    line_writer_open(&line_writer, path, &line_error);
    for (int i = 0; i < 1000 && line_error.status == STATUS_OK; i++)
        line_writer_write(&line_writer, line, &line_error);
    Error close_error = {0};
    line_writer_close(&line_writer, &close_error);
    file_read(path, 2 << 20, &lines, &n_lines, &error);
    umount(disk); /* before anything can fail */

    assert_int_equal(error.status, STATUS_OK);
    assert_error(&file_error, STATUS_USER, "the disk is full (");
    assert_string_equal(kept, "old");
    assert_error(&line_error, STATUS_USER, "the disk is full (");
    assert_true(n_lines > 100000);
    assert_int_equal(n_lines % 3001, 0); /* no half line */
    free(kept);
    free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_alloc),
        cmocka_unit_test(test_memory_too_much),
        cmocka_unit_test(test_memory_touch),
        cmocka_unit_test(test_memory_groups),
        cmocka_unit_test(test_memory_peak),
        cmocka_unit_test(test_size_arithmetic),
        cmocka_unit_test(test_file_read),
        cmocka_unit_test(test_file_large),
        cmocka_unit_test(test_file_writer_replaces_or_not),
        cmocka_unit_test(test_file_writer_errors),
        cmocka_unit_test(test_make_folders),
        cmocka_unit_test(test_line_writer),
        cmocka_unit_test(test_disk_full),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
