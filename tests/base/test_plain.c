/* Texts of others: what of them a terminal gets to see, how long they may be, and how a shell wants them. */
#define _GNU_SOURCE /* posix_openpt */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/error.h"
#include "base/random.h"
#include "base/text/json.h"
#include "base/text/log.h"
#include "base/text/plain.h"
#include "base/text/utf8.h"

static void assert_plain(const char *bytes, size_t n, bool keeps_lines, const char *wanted) {
    char text[256], again[256];
    assert_int_equal(plain_text(text, sizeof text, bytes, n, keeps_lines), strlen(wanted));
    assert_string_equal(text, wanted);
    plain_text(again, sizeof again, text, strlen(text), keeps_lines);
    assert_string_equal(again, text); /* once more changes nothing */
}

static void test_escapes(void **state) {
    (void)state;
    assert_plain("a b\\c", 5, false, "a b\\c");
    assert_plain("\033[31m\a\x7F", 7, false, "\\x1b[31m\\x07\\x7f");
    assert_plain("a\0b", 3, false, "a\\x00b");
    assert_plain("a\nb\tc\rd", 7, false, "a\\nb\\tc\\rd");
    assert_plain("a\nb\tc\rd\r\n", 9, true, "a\nb\tc\\rd\r\n");
    assert_plain("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 9, false, "ä€😀");
    assert_plain("\xC2\x9B"
                 "31m\xC2\x85\xC2\xA0",
                 9, false, "\\u{009B}31m\\u{0085}\xC2\xA0");
    assert_plain("\xE2\x80\xAE\xE2\x81\xA6\xE2\x80\xAA\xE2\x81\xA9", 12, false,
                 "\\u{202E}\\u{2066}\\u{202A}\\u{2069}");
    assert_plain("\x9B\xFF\xC3", 3, false, "\\x9b\\xff\\xc3"); /* stray bytes, one cut off */
    assert_plain("\xC0\x9B\xED\xA0\x80", 5, false, "\\xc0\\x9b\\xed\\xa0\\x80"); /* overlong, a surrogate */
}

/* A start is whole characters and whole escapes. */
static void test_capacity(void **state) {
    (void)state;
    char text[16];
    assert_int_equal(plain_text(text, 6, "abc\033", 4, false), 7);
    assert_string_equal(text, "abc");
    assert_int_equal(plain_text(text, 5, "abc\xC3\xA4z", 6, false), 6);
    assert_string_equal(text, "abc");
    assert_int_equal(plain_text(NULL, 0, "\033\033", 2, false), 8);
}

static void test_values(void **state) {
    (void)state;
    assert_string_equal(plain_value("short\n").text, "short\\n");
    char *large = malloc(100001);
    memset(large, 'a', 100000);
    large[100000] = 0;
    large[59] = '\xC3', large[60] = '\xA4'; /* the cut would fall into it */
    PlainText value = plain_value(large);
    assert_non_null(strstr(value.text, "aaa... (100000 bytes)"));
    assert_int_equal(strlen(value.text), 59 + strlen("... (100000 bytes)"));
    memset(large, '\033', 100000);
    assert_true(strlen(plain(large).text) < sizeof(PlainText) && strlen(plain_value(large).text) < 320);
    assert_null(strchr(plain(large).text, '\033'));
    free(large);
}

static void test_errors(void **state) {
    (void)state;
    Error error = {0};
    error_user(&error, "%s: field '%s' is wrong; write another", "a\033]0;title\a", "x\nforged line");
    assert_string_equal(error.text, "a\\x1b]0;title\\x07: field 'x\\nforged line' is wrong; write another");
    error_prefix(&error, "in \033%s: ", "\x9B");
    assert_string_equal(
        error.text, "in \\x1b\\x9b: a\\x1b]0;title\\x07: field 'x\\nforged line' is wrong; write another");

    /* What is too long says so, and keeps its advice. */
    char *large = malloc(100001);
    for (int i = 0; i < 100000; i++) large[i] = "0123456789 "[i % 11];
    large[100000] = 0;
    Error words = {0};
    error_user(&words, "no '%s'; give less", large);
    assert_true(strlen(words.text) < sizeof words.text);
    assert_int_equal(strncmp(words.text, "no '0123456789 0123456789", 25), 0);
    assert_non_null(strstr(words.text, " ... (100016 bytes in all) ... "));
    assert_non_null(strstr(words.text, "'; give less"));
    Error word = {0};
    memset(large, 'x', 100000);
    error_user(&word, "no '%s'; give less", large);
    assert_true(strlen(word.text) < 300);
    assert_non_null(strstr(word.text, "xxx... (100000 bytes)'; give less"));
    free(large);
}

/* Whatever bytes come, a message is one line of UTF-8 without controls, and fits. */
static void test_random_messages(void **state) {
    (void)state;
    RandomKey key = random_key(7, RANDOM_TEST, 0);
    char bytes[3001];
    for (uint64_t round = 0; round < 300; round++) {
        size_t n = (size_t)round * 10;
        for (size_t i = 0; i < n; i++) {
            uint32_t word = random_block(key, round, i).word[0];
            bytes[i] = (char)(word % 4 ? "a \\\xE2\x80\xAE\xC2\x9B\033\n"[word / 4 % 10]
                                       : (char)(1 + word / 4 % 255));
        }
        bytes[n] = 0;
        Error error = {0};
        error_user(&error, "%s", bytes);
        size_t length = strlen(error.text);
        assert_true(length < sizeof error.text);
        char again[4096];
        assert_int_equal(plain_text(again, sizeof again, error.text, length, false), length);
        assert_string_equal(again, error.text);
    }
}

static void test_error_json(void **state) {
    (void)state;
    Error error = {0};
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    error_write_json(&error, stream); /* nothing is wrong yet */
    error_user(&error, "bad \"%s\"", "\xFF\033");
    error_write_json(&error, stream);
    error_write_json(&error, stream); /* once is enough */
    fclose(stream);
    assert_string_equal(text, "{\"error\":\"bad \\\"\\\\xff\\\\x1b\\\"\",\"exit_code\":2}\n");
    free(text);
}

/* ---- Pieces */

static FILE *open_terminal(int *master) {
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    if (*master < 0 || grantpt(*master) != 0 || unlockpt(*master) != 0) return NULL;
    int slave = open(ptsname(*master), O_RDWR | O_NOCTTY);
    if (slave < 0) return NULL;
    struct termios settings;
    tcgetattr(slave, &settings);
    cfmakeraw(&settings);
    tcsetattr(slave, TCSANOW, &settings);
    return fdopen(slave, "w");
}

/* However a text is cut into pieces, a terminal shows the same. */
static void test_pieces(void **state) {
    (void)state;
    static const char text[] =
        "h\xC3\xA4\n\t\033[2J\r\n\r\xE2\x80\xAEx\xF0\x9F\x98\x80\xE2\x82\xE2\xC2\x9B\xF0\x9F";
    static const char wanted[] = "hä\n\t\\x1b[2J\r\n\\r\\u{202E}x😀\\xe2\\x82\\xe2\\u{009B}\\xf0\\x9f";
    int master;
    FILE *terminal = open_terminal(&master);
    if (!terminal) skip();
    for (size_t piece = 1; piece < sizeof text; piece++) {
        PlainWriter writer = plain_writer(terminal);
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t left = sizeof text - 1 - at;
            plain_write(&writer, text + at, left < piece ? left : piece);
        }
        plain_end(&writer);
        fflush(terminal);
        char shown[256] = "";
        size_t n = 0;
        while (n < sizeof wanted - 1) {
            ssize_t more = read(master, shown + n, sizeof shown - 1 - n);
            assert_true(more > 0);
            n += (size_t)more;
        }
        shown[n] = 0;
        assert_string_equal(shown, wanted);
    }
    fclose(terminal);
    close(master);

    char *exact = NULL;
    size_t n_exact = 0;
    FILE *memory = open_memstream(&exact, &n_exact);
    PlainWriter writer = plain_writer(memory), nowhere = plain_writer(NULL);
    plain_write(&writer, text, sizeof text - 1);
    plain_write(&nowhere, text, sizeof text - 1);
    plain_end(&writer);
    plain_end(&nowhere);
    fclose(memory);
    assert_int_equal(n_exact, sizeof text - 1);
    assert_memory_equal(exact, text, n_exact);
    free(exact);
}

/* JSON for a terminal says the same in ASCII. */
static void test_json_on_terminal(void **state) {
    (void)state;
    int master;
    FILE *terminal = open_terminal(&master);
    if (!terminal) skip();
    json_t *object = json_pack("{s:s}", "t", "\xC2\x9B\x7F\xE2\x80\xAEz\033");
    Error error = {0};
    assert_int_equal(json_line_write(terminal, object, JSON_DIGITS_FLOAT, &error), STATUS_OK);
    char shown[128] = "";
    assert_true(read(master, shown, sizeof shown - 1) > 0);
    assert_string_equal(shown, "{\"t\":\"\\u009B\\u007f\\u202Ez\\u001B\"}\n");
    json_decref(object);
    fclose(terminal);
    close(master);
}

/* ---- The shell */

static void test_shell(void **state) {
    (void)state;
    assert_string_equal(shell_path("runs/a-1.b").text, "runs/a-1.b");
    assert_string_equal(shell_path("my run").text, "'my run'");
    assert_string_equal(shell_path("it's; rm -rf $x").text, "'it'\\''s; rm -rf $x'");
    assert_string_equal(shell_path("").text, "''");
    assert_string_equal(shell_path("~").text, "'~'");
    assert_string_equal(shell_path("-x").text, "./-x");
    assert_string_equal(shell_path("-x y").text, "'./-x y'");
    assert_string_equal(shell_path("a\0331'\\\n\xFFz").text, "$'a\\0331\\'\\\\\\012\\377z'");
    char small[4];
    assert_int_equal(shell_quote(small, sizeof small, "a b"), 5);
    assert_string_equal(small, "'a ");
    assert_int_equal(shell_quote(NULL, 0, "abc"), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes),         cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_values),          cmocka_unit_test(test_errors),
        cmocka_unit_test(test_random_messages), cmocka_unit_test(test_error_json),
        cmocka_unit_test(test_pieces),          cmocka_unit_test(test_json_on_terminal),
        cmocka_unit_test(test_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
