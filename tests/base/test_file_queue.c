/* Many reads and writes at once, by io_uring and by threads: every byte arrives where it belongs, every request
 * ends once, a request that cannot be says why, and closing waits for what was started. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file/file_queue.h"
#include "base/file/scratch_file.h"

enum { N_REQUESTS = 64, LONGEST = 3 * FILE_QUEUE_PIECE };

typedef struct {
    atomic_int n_ended, n_failed, code;
} Ends;

static void count(void *context, int code) {
    Ends *ends = context;
    if (code) {
        ends->code = code;
        ends->n_failed++;
    }
    ends->n_ended++;
}

static int open_file(void) {
    char path[] = "/tmp/pgpt-test-queue-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    unlink(path);
    return file;
}

/* Lengths from a byte to some pieces, which lie one behind the other. */
static size_t length_of(int request) {
    static const size_t lengths[] = {1, 4096, FILE_QUEUE_PIECE, FILE_QUEUE_PIECE + 1, LONGEST, 777};
    return lengths[request % 6];
}

static void run_all(FileQueueKind kind, int file, char *bytes, bool is_write, Ends *ends) {
    Error error = {0};
    FileQueue *queue;
    assert_int_equal(file_queue_open(&queue, kind, &error), STATUS_OK);
    uint64_t at = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        FileRequest request = {file, is_write, at, bytes + at, length_of(i), count, ends};
        assert_int_equal(file_queue_start(queue, &request, &error), STATUS_OK);
        at += length_of(i);
    }
    file_queue_close(&queue);
    assert_null(queue);
}

static size_t total_bytes(void) {
    size_t n = 0;
    for (int i = 0; i < N_REQUESTS; i++) n += length_of(i);
    return n;
}

static bool is_there(FileQueueKind kind) {
    Error error = {0};
    FileQueue *queue;
    bool is = file_queue_open(&queue, kind, &error) == STATUS_OK;
    assert_true(is || error.status == STATUS_USER); /* a system without io_uring says so */
    file_queue_close(&queue);
    return is;
}

static void every_byte_arrives(void **state) {
    (void)state;
    const size_t n = total_bytes();
    unsigned char *out = malloc(n), *in = malloc(n);
    assert_non_null(out);
    assert_non_null(in);
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)(i * 2654435761u >> 13);
    for (FileQueueKind kind = FILE_QUEUE_AUTO; kind <= FILE_QUEUE_THREADS; kind++) {
        if (!is_there(kind)) continue;
        Ends ends = {0};
        int file = open_file();
        memset(in, 0, n);
        run_all(kind, file, (char *)out, true, &ends);
        assert_int_equal(ends.n_ended, N_REQUESTS);
        run_all(kind, file, (char *)in, false, &ends);
        assert_int_equal(ends.n_ended, 2 * N_REQUESTS);
        assert_int_equal(ends.n_failed, 0);
        assert_memory_equal(in, out, n);
        close(file);
    }
    free(out);
    free(in);
}

/* Behind the end of a file; in a file that is not open for it. */
static void what_fails_says_why(void **state) {
    (void)state;
    char *bytes = calloc(1, total_bytes());
    assert_non_null(bytes);
    for (FileQueueKind kind = FILE_QUEUE_URING; kind <= FILE_QUEUE_THREADS; kind++) {
        if (!is_there(kind)) continue;
        Ends ends = {0};
        int file = open_file();
        assert_int_equal(ftruncate(file, 10), 0);
        run_all(kind, file, bytes, false, &ends);
        assert_int_equal(ends.n_ended, N_REQUESTS);
        assert_int_equal(ends.n_failed, N_REQUESTS - 1); /* the first has a byte */
        assert_int_equal(ends.code, FILE_QUEUE_END);
        close(file);
        file = open("/dev/null", O_RDONLY);
        ends = (Ends){0};
        run_all(kind, file, bytes, true, &ends);
        assert_int_equal(ends.n_failed, N_REQUESTS);
        assert_int_equal(ends.code, EBADF);
        close(file);
        file = open("/dev/full", O_WRONLY);
        if (file < 0) continue;
        ends = (Ends){0};
        run_all(kind, file, bytes, true, &ends);
        assert_int_equal(ends.n_failed, N_REQUESTS);
        assert_int_equal(ends.code, ENOSPC);
        close(file);
    }
    free(bytes);
}

static void keep_error(void *context, const Error *error) {
    *(Error *)context = *error;
}

static void a_scratch_file_tells_what_was_wrong(void **state) {
    (void)state;
    enum { N = 8 * SCRATCH_PAGE };
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, SCRATCH_PAGE, N), 0);
    memset(memory, 7, N);
    for (FileQueueKind kind = FILE_QUEUE_AUTO; kind <= FILE_QUEUE_THREADS; kind++) {
        Error error = {0}, written = {.status = STATUS_FAILED}, read = {0};
        ScratchFile *file;
        if (!is_there(kind)) continue;
        assert_int_equal(scratch_open(&file, "/tmp", N, kind, &error), STATUS_OK);
        ScratchTransfer out = {true, 0, memory, N, keep_error, &written};
        ScratchTransfer behind = {false, 64 * N, memory, N, keep_error, &read};
        bool is_done;
        assert_int_equal(scratch_start(file, &out, &is_done, &error), STATUS_OK);
        assert_false(is_done);
        assert_int_equal(scratch_start(file, &behind, &is_done, &error), STATUS_OK);
        char way[64];
        assert_non_null(
            strstr(scratch_way(file, way, sizeof way), kind == FILE_QUEUE_THREADS ? "threads" : "by"));
        scratch_close(&file);
        assert_int_equal(written.status, STATUS_OK);
        assert_int_equal(read.status, STATUS_FAILED);
        assert_non_null(strstr(read.text, "ends too early"));
    }
    free(memory);
}

/* Parts of any size, one after the other, as a byte array would have them; memory begins where in a page the file does. */
static void parts_of_pages_are_kept(void **state) {
    (void)state;
    enum { PAGES = 8, N = PAGES * SCRATCH_PAGE, ROUNDS = 400 };
    unsigned char *memory = NULL, model[N] = {0};
    assert_int_equal(posix_memalign((void **)&memory, SCRATCH_PAGE, N), 0);
    for (FileQueueKind kind = FILE_QUEUE_AUTO; kind <= FILE_QUEUE_THREADS; kind++) {
        Error error = {0};
        ScratchFile *file;
        if (!is_there(kind)) continue;
        memset(model, 0, N);
        assert_int_equal(scratch_open(&file, "/tmp", N, kind, &error), STATUS_OK);
        srand(5);
        for (int i = 0; i < ROUNDS; i++) {
            size_t first = (size_t)rand() % N, n = 1 + (size_t)rand() % (N - first);
            if (i % 3 == 0) first = first / SCRATCH_PAGE * SCRATCH_PAGE;
            if (i % 2) n = 1 + n % 3000;
            if (first + n > N) n = N - first;
            Error written = {.status = STATUS_FAILED};
            bool is_write = i % 5 != 4, is_done;
            memset(memory, 0xee, N);
            for (size_t k = 0; k < n && is_write; k++)
                memory[first + k] = model[first + k] = (unsigned char)rand();
            ScratchTransfer transfer = {is_write, first, memory + first, n, keep_error, &written};
            assert_int_equal(scratch_start(file, &transfer, &is_done, &error), STATUS_OK);
            while (!is_done && __atomic_load_n(&written.status, __ATOMIC_ACQUIRE) == STATUS_FAILED)
                sched_yield();
            if (!is_write) assert_memory_equal(memory + first, model + first, n);
        }
        assert_int_equal(scratch_read(file, 0, memory, N, &error), STATUS_OK);
        assert_memory_equal(memory, model, N);
        memset(memory, 9, N);
        assert_int_equal(scratch_write(file, 0, memory, N / 2, &error), STATUS_OK);
        memset(model, 9, N / 2);
        assert_int_equal(scratch_read(file, 0, memory, N, &error), STATUS_OK);
        assert_memory_equal(memory, model, N);
        scratch_close(&file);
    }
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives),
        cmocka_unit_test(what_fails_says_why),
        cmocka_unit_test(a_scratch_file_tells_what_was_wrong),
        cmocka_unit_test(parts_of_pages_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
