/* Where values come from, and the config file: what it may hold, what is refused and at which line, and that
 * everything written comes back unchanged. */
#include "options_fixture.h"

/* The file must be refused with "FILE:LINE: message...". */
static void assert_file_refused(const char *text, size_t n_bytes, const char *message) {
    Options options;
    Values values;
    Error error;
    put(text, n_bytes);
    assert_int_equal(parse(&options, &command, &values, &error, file_name, NULL), STATUS_USER);
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%s:%s", file_name, message);
    if (strncmp(error.text, wanted, strlen(wanted)) != 0)
        fail_msg("wanted '%s', got '%s'", wanted, error.text);
    options_free(&options);
}

#define ASSERT_FILE_REFUSED(text, message) assert_file_refused(text, sizeof(text) - 1, message)

static void test_precedence(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error = {0};
    const char *text = "steps = 11\nlayers = 12\nlr = 0.5\n";
    put(text, strlen(text));
    ASSERT_PARSES(options, values, "--steps", "5", file_name); /* the file after, and yet below */
    assert_int_equal(values.train.n_steps, 5);
    assert_int_equal(values.model.n_layers, 12);
    assert_int_equal(options_set_int(&options, "layers", 24, OPTION_FROM_PRESET, &error), STATUS_OK);
    assert_int_equal(options_set(&options, "dropout", "0.25", OPTION_FROM_PRESET, &error), STATUS_OK);
    assert_int_equal(values.model.n_layers, 12);
    assert_true(values.train.dropout == 0.25);
    assert_int_equal(options_source(&options, "steps"), OPTION_FROM_COMMAND);
    assert_int_equal(options_source(&options, "layers"), OPTION_FROM_FILE);
    assert_int_equal(options_source(&options, "dropout"), OPTION_FROM_PRESET);
    assert_int_equal(options_source(&options, "seed"), OPTION_FROM_DEFAULT);
    assert_string_equal(option_source_name(OPTION_FROM_COMMAND), "command line");
    /* Outranked, but wrong all the same. */
    assert_int_equal(options_set_int(&options, "steps", 0, OPTION_FROM_PRESET, &error), STATUS_USER);
    error = (Error){0};
    assert_int_equal(options_set_int(&options, "stepz", 1, OPTION_FROM_PRESET, &error), STATUS_USER);
    options_free(&options);
}

static void test_config_forms(void **state) {
    (void)state;
    Options options;
    Values values;
    const char *text =
        "\xEF\xBB\xBF# a comment\r\n; another\r\n\r\n[Model]\r\nmodel = mini ; said why\r\n  layers : 7\r\n"
        "[ training ] ; a comment\n[Model]#\n\tweight_decay=-2\ntied = No\nsteps = 3\n"
        "data = \"  a\\x3b \\\"b\\\"\\\\\\n\"\n\n    \"\\tc _ \"\n# between\n  \" d\"\nseed = 9";
    put(text, strlen(text));
    ASSERT_PARSES(options, values, file_name);
    assert_string_equal(values.model.preset, "mini");
    assert_int_equal(values.model.n_layers, 7);
    assert_true(values.train.decay == -2);
    assert_false(values.model.tied);
    assert_int_equal(values.train.n_steps, 3);
    assert_string_equal(values.train.data, "  a; \"b\"\\\n\tc _  d");
    assert_int_equal(values.train.seed, 9); /* the last line has no newline */
    options_free(&options);
    const char *of_a_mac =
        "# a comment\r[Model]\r\rlayers = 7\rdata = \"a\"\r \"b\"\r[Training]\rsteps = 3\r";
    put(of_a_mac, strlen(of_a_mac));
    ASSERT_PARSES(options, values, file_name);
    assert_int_equal(values.model.n_layers, 7);
    assert_int_equal(values.train.n_steps, 3);
    assert_string_equal(values.train.data, "ab");
    options_free(&options);
    put("\xEF\xBB\xBF[Model]\n", 11);
    ASSERT_PARSES(options, values, file_name);
    options_free(&options);
    put("", 0);
    ASSERT_PARSES(options, values, file_name);
    options_free(&options);
    char comment[5000];
    memset(comment, '#', sizeof comment);
    memcpy(comment + 4990, "\nsteps=8\n", 9);
    put(comment, 4999); /* a long comment is no harm */
    ASSERT_PARSES(options, values, file_name);
    assert_int_equal(values.train.n_steps, 8);
    options_free(&options);
}

static void test_config_hostile(void **state) {
    (void)state;
    ASSERT_FILE_REFUSED("\n\nsetps = 4\n", "3: unknown option setps; did you mean steps?");
    ASSERT_FILE_REFUSED(
        "[Training] steps = 5\n",
        "1: 'steps = 5' stands behind the section [Training] and would not be read; put it on");
    ASSERT_FILE_REFUSED("steps = 1\r\n[Model]x\r\n", "2: 'x' stands behind the section [Model]");
    ASSERT_FILE_REFUSED("[Modle]\n", "1: unknown section [Modle]; did you mean [Model]?");
    ASSERT_FILE_REFUSED("[]\n", "1: unknown section []; there are [Model], [Training]");
    ASSERT_FILE_REFUSED("\xEF\xBB\xBF[a]\n", "1: unknown section [a]; there are [Model], [Training]");
    ASSERT_FILE_REFUSED("[Model]\rlayers = 1\rsteps = 0\r", "3: steps wants a whole number");
    ASSERT_FILE_REFUSED("[Training]\nsteps = many\n",
                        "2: steps wants a whole number between 1 and 1000000000, got 'many'");
    ASSERT_FILE_REFUSED("steps =\n", "1: steps wants a whole number between 1 and 1000000000, got ''");
    ASSERT_FILE_REFUSED("steps = 5 # five\n",
                        "1: steps wants a whole number between 1 and 1000000000, got '5 # five'; "
                        "behind a value a comment begins with ';'");
    ASSERT_FILE_REFUSED("steps = 5\njust words\nsetps = 4\n",
                        "2: wants 'key = value', [section] or a comment");
    ASSERT_FILE_REFUSED("[open\n", "1: wants 'key = value'");
    ASSERT_FILE_REFUSED("steps = 5\nlr = \0 1\n", "2: a zero byte; this is not a text file");
    ASSERT_FILE_REFUSED("steps = 5\rseed = 1\r\nlr = \0 1\n", "3: a zero byte; this is not a text file");
    ASSERT_FILE_REFUSED("data = \"a ; b\"\n", "1: the closing quotation mark is missing (a ';'");
    ASSERT_FILE_REFUSED("data = \"a\" b\n", "1: there is something behind the closing quotation mark:  b");
    ASSERT_FILE_REFUSED("data = \"a\\q\"\n", "1: only \\n");
    ASSERT_FILE_REFUSED("data = \"a\\x0\"\n", "1: only \\n");
    ASSERT_FILE_REFUSED("data = \"a\\x00\"\n", "1: only \\n");
    ASSERT_FILE_REFUSED("data = \"a\\", "1: only \\n");
    ASSERT_FILE_REFUSED("data = \"", "1: the closing quotation mark is missing");
    ASSERT_FILE_REFUSED("\"stray\"\n", "1: wants 'key = value'");
    ASSERT_FILE_REFUSED("= 5\n", "1: unknown option ; 'pgpt train --help' lists them");
    ASSERT_FILE_REFUSED("help = 5\n", "1: unknown option help");
    /* Which of two counts, nobody can say: the first line is named beside the second. */
    ASSERT_FILE_REFUSED("steps = 2\nlr = 1\nsteps = 3\n", "3: steps stands in line 1 already; leave one");
    ASSERT_FILE_REFUSED("[Model]\nweight-decay = 2\n\n[Training]\nweight_decay = 2\n",
                        "5: weight_decay stands in line 2 already");
    ASSERT_FILE_REFUSED("data = \"a\"\n  \"b\"\ndata = c\n", "3: data stands in line 1 already");
    char text[4000] = "steps = 5\nlr = 1\ndata = ";
    size_t n = strlen(text);
    memset(text + n, 'x', sizeof text - n);
    assert_file_refused(text, sizeof text, "3: the line has more than ");
    assert_file_refused(text + n, 300, "1: the line has more than ");
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, "/nowhere/x.ini", NULL), STATUS_USER);
    assert_string_equal(error.text,
                        "cannot read /nowhere/x.ini: there is no such file or folder; check the path");
    options_free(&options);
    /* Random bytes of the kind that matters: any answer but a crash, and an error that names the file. */
    static const char letters[] = "data=steps\"\"\\\\;#[]:\n\n\n  \tx3b\r\xC3\xA9";
    for (uint64_t round = 0; round < 3000; round++) {
        RandomKey key = random_key(5, RANDOM_TEST, round);
        char bytes[600];
        size_t n_bytes = random_block(key, 1, 0).word[0] % sizeof bytes;
        for (size_t i = 0; i < n_bytes; i++)
            bytes[i] = letters[random_block(key, 0, i).word[0] % (sizeof letters - 1)];
        put(bytes, n_bytes);
        Status status = parse(&options, &command, &values, &error, file_name, NULL);
        if (status) assert_memory_equal(error.text, file_name, strlen(file_name));
        options_free(&options);
    }
}

/* Give options whatever values they have now, as a command line would. */
static void give(Options *options, const char *name, const char *text) {
    Error error = {0};
    char copy[2001];
    snprintf(copy, sizeof copy, "%s", text);
    if (options_set(options, name, copy, OPTION_FROM_COMMAND, &error)) fail_msg("%s", error.text);
}

/* Write the options down and read them into fresh ones: all values must be the same. */
static void assert_round_trip(Options *options, const Values *values) {
    Error error = {0};
    Arena arena = {0};
    for (int i = 0; i < options->n_options; i++) {
        const OptionSpec *spec = options_spec(options->command, i, NULL);
        give(options, spec->name, option_value_text(spec, options_value(options, i), &arena));
    }
    arena_free(&arena);
    if (options_save_config(options, file_name, &error)) fail_msg("%s", error.text);
    Options again;
    Values back;
    if (parse(&again, &command, &back, &error, file_name, NULL)) fail_msg("%s", error.text);
    assert_string_equal(back.model.preset, values->model.preset);
    assert_string_equal(back.train.data, values->train.data);
    assert_int_equal(back.model.n_layers, values->model.n_layers);
    assert_int_equal(back.model.tied, values->model.tied);
    assert_true(back.train.n_steps == values->train.n_steps && back.train.seed == values->train.seed);
    assert_true(back.train.lr == values->train.lr && back.train.decay == values->train.decay);
    assert_int_equal(back.train.schedule, values->train.schedule);
    assert_false(back.train.json); /* about the call, not the run */
    options_free(&again);
}

static void test_config_round_trip(void **state) {
    (void)state;
    Options options;
    Values values;
    ASSERT_PARSES(options, values, "--seed", "-9223372036854775808", "--no-tied", "--json", "--lr-schedule",
                  "linear");
    assert_round_trip(&options, &values);
    static char long_text[2000], long_utf8[2000], long_plain[2000];
    memset(long_plain, 'x', sizeof long_plain - 1);
    for (size_t i = 0; i + 1 < sizeof long_text; i++) long_text[i] = " ;x\"\n"[i % 5];
    for (size_t i = 0; i + 2 < sizeof long_utf8; i++) long_utf8[i] = "\xC3\xA9"[i % 2];
    static const char *const texts[] = {"",
                                        " ",
                                        "a",
                                        " a",
                                        "a ",
                                        "\ta",
                                        ";",
                                        "a;b",
                                        "a ;b",
                                        "#",
                                        "a # b",
                                        "\"",
                                        "\"a\"",
                                        "'a'",
                                        "\\",
                                        "\\n",
                                        "a\nb",
                                        "\n",
                                        "[x]",
                                        "a=b",
                                        "a: b",
                                        "\x01\x7F\x1B[0m",
                                        "\r\n",
                                        "ä",
                                        "é ü",
                                        "\xFF\xA0",
                                        "\xEF\xBB\xBF",
                                        "/a/very/normal path.txt",
                                        "x\\",
                                        "%s%n",
                                        long_plain,
                                        long_text,
                                        long_utf8};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        values.train.data = texts[i];
        values.model.preset = texts[sizeof texts / sizeof *texts - 1 - i];
        assert_round_trip(&options, &values);
    }
    RandomKey key = random_key(3, RANDOM_TEST, 0);
    for (uint64_t i = 0; i < 500; i++) {
        RandomBlock block = random_block(key, 0, i);
        uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
        memcpy(&values.train.decay, &bits, sizeof bits);
        if (!isfinite(values.train.decay)) continue;
        values.train.lr = (double)(block.word[2] | 1) * 0x1p-32;
        char text[200];
        size_t n = block.word[3] % sizeof text;
        for (size_t j = 0; j < n; j++) text[j] = (char)(1 + random_block(key, i + 1, j).word[0] % 255);
        text[n] = 0;
        values.train.data = text;
        assert_round_trip(&options, &values);
    }
    options_free(&options);
}

static char *written(const Options *options) {
    char *text;
    size_t n_bytes;
    FILE *stream = open_memstream(&text, &n_bytes);
    options_write_config(stream, options);
    fclose(stream);
    return text;
}

static void test_config_text(void **state) {
    (void)state;
    Options options;
    Values values;
    ASSERT_PARSES(options, values, "--data", "x y", "--steps=5");
    char *text = written(&options);
    assert_non_null(
        strstr(text, "# Every option of this run; what nobody gave stands behind a '#'. To repeat it: pgpt "
                     "train FILE.ini\n\n[Model]\n"));
    assert_non_null(strstr(text, "# share the embedding with the head (default on)\n#tied = true\n"));
    assert_non_null(strstr(text,
                           "# optimizer steps to take (1 to 1000000000; default 1000); from the command\n"
                           "# line\nsteps = 5\n"));
    assert_non_null(strstr(text, "\n#lr = 0.0003\n"));
    assert_non_null(strstr(text, "\ndata = x y\n"));
    assert_null(strstr(text, "json ="));
    free(text);
    Error error = {0};
    assert_int_equal(options_save_config(&options, "/nowhere/config.ini", &error), STATUS_USER);
    options_free(&options);
}

/* What a program makes of a value is told, and what was asked for is recorded. */
static void test_config_asked(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error = {0};
    ASSERT_PARSES(options, values, "--seed", "0", "--steps", "7");
    assert_int_equal(options_set_int(&options, "layers", 12, OPTION_FROM_PRESET, &error), STATUS_OK);
    values.train.seed = 99;
    values.train.dropout = 0.5;
    options_reset(&options, "steps");
    assert_int_equal(values.train.n_steps, 1000);
    assert_int_equal(options_source(&options, "steps"), OPTION_FROM_DEFAULT);
    char *text = written(&options);
    assert_non_null(strstr(text, " 99\nseed = 0\n"));
    assert_non_null(strstr(text, "it came to 0.5\n#dropout = 0.1\n"));
    assert_non_null(strstr(text, "from the preset\n#layers = 12\n"));
    assert_non_null(strstr(text, "\n#steps = 1000\n"));
    free(text);
    FILE *stream = open_memstream(&text, &(size_t){0});
    options_write_values(stream, &options);
    fclose(stream);
    assert_non_null(strstr(text, "\nseed = 99\n"));
    assert_non_null(strstr(text, "\nlayers = 12\n"));
    assert_null(strchr(text, '#'));
    free(text);
    options_free(&options);
}

/* The file of a run that goes on: also what was not given, in its place. */
static void test_config_record(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error = {0};
    const char *text =
        "# lr = 1\n#lr = 0.25\n#steps = 7\nseed = 3\n#nothing = 4\n#seed = 5\n#steps 8\n##steps = 9\n"
        "#data = \"a;\"\n[Model]\nlayers = 2\n";
    put(text, strlen(text));
    ASSERT_PARSES(options, values, file_name); /* comments, to anybody else */
    assert_true(values.train.lr == 3e-4 && values.train.n_steps == 1000 && values.train.seed == 3);
    options_free(&options);
    ASSERT_PARSES(options, values, "--layers", "6");
    if (options_read_record(&options, file_name, &error)) fail_msg("%s", error.text);
    assert_int_equal(options_set_int(&options, "steps", 8, OPTION_FROM_PRESET, &error), STATUS_OK);
    assert_true(values.train.lr == 0.25 && values.train.n_steps == 7 && values.train.seed == 3);
    assert_int_equal(values.model.n_layers, 6);
    assert_int_equal(options_source(&options, "steps"), OPTION_FROM_RUN_DEFAULT);
    assert_int_equal(options_source(&options, "seed"), OPTION_FROM_RUN);
    /* Written again, with what is changed: the same is given and the same is not. */
    if (options_save_change(&options, file_name, "first\nchange", &error)) fail_msg("%s", error.text);
    if (options_save_change(&options, file_name, "", &error)) fail_msg("%s", error.text);
    if (options_save_change(&options, file_name, "second", &error)) fail_msg("%s", error.text);
    options_free(&options);
    char bytes[8192];
    FILE *file = fopen(file_name, "r");
    bytes[fread(bytes, 1, sizeof bytes - 1, file)] = 0;
    fclose(file);
    assert_non_null(strstr(bytes, "\n#+ first change\n#+ second\n\n[Model]\n"));
    ASSERT_PARSES(options, values, file_name);
    assert_int_equal(options_source(&options, "lr"), OPTION_FROM_DEFAULT);
    assert_int_equal(options_source(&options, "seed"), OPTION_FROM_FILE);
    assert_int_equal(values.model.n_layers, 6);
    assert_int_equal(options_read_record(&options, file_name, &error), STATUS_OK);
    assert_true(values.train.lr == 0.25);
    assert_string_equal(values.train.data, "a;");
    options_free(&options);
    put("#steps = many\n", 14);
    ASSERT_PARSES(options, values, "--layers", "6");
    assert_int_equal(options_read_record(&options, file_name, &error), STATUS_USER);
    assert_non_null(strstr(error.text, ".ini:1: steps wants a whole number"));
    options_free(&options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precedence),     cmocka_unit_test(test_config_forms),
        cmocka_unit_test(test_config_hostile), cmocka_unit_test(test_config_round_trip),
        cmocka_unit_test(test_config_text),    cmocka_unit_test(test_config_asked),
        cmocka_unit_test(test_config_record),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
