/* Options: what a command line may say, what is refused and in which words, and the texts made from the table. */
#include "base/options/options_refuse.h"
#include "options_fixture.h"

/* ---- The command line */

static void test_defaults(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, NULL), STATUS_OK);
    assert_string_equal(values.model.preset, "nano");
    assert_int_equal(values.model.n_layers, 4);
    assert_true(values.model.tied);
    assert_int_equal(values.train.n_steps, 1000);
    assert_true(values.train.lr == 3e-4 && values.train.dropout == 0.1);
    assert_int_equal(values.train.schedule, COSINE);
    assert_string_equal(values.train.data, "");
    assert_int_equal((unsigned char)values.guard, 0xEE); /* only fields are written */
    assert_int_equal(options_source(&options, "steps"), OPTION_FROM_DEFAULT);
    assert_int_equal(options.n_arguments, 0);
    options_free(&options);
    options_free(&options);
}

static void test_forms(void **state) {
    (void)state;
    Options options;
    Values values;
    ASSERT_PARSES(options, values, "--steps", "20", "--lr=1e-3", "--no-tied", "--json", "--lr-schedule",
                  "linear", "--data", "a b;c", "--seed", "-5", "--steps=30");
    assert_int_equal(values.train.n_steps, 30); /* the last one */
    assert_true(values.train.lr == 1e-3);
    assert_false(values.model.tied);
    assert_true(values.train.json);
    assert_int_equal(values.train.schedule, LINEAR);
    assert_string_equal(values.train.data, "a b;c");
    assert_int_equal(values.train.seed, -5);
    assert_int_equal(options_source(&options, "tied"), OPTION_FROM_COMMAND);
    assert_int_equal(options_source(&options, "dropout"), OPTION_FROM_DEFAULT);
    options_free(&options);
    ASSERT_PARSES(options, values, "--lr_schedule=CONSTANT", "--tied=off", "--data=", "--weight_decay",
                  "-1.5", "--model", "--odd");
    assert_int_equal(values.train.schedule, CONSTANT);
    assert_false(values.model.tied);
    assert_string_equal(values.train.data, "");
    assert_true(values.train.decay == -1.5);
    assert_string_equal(values.model.preset, "--odd"); /* no option of ours: a value */
    options_free(&options);
}

static void test_whole_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } whole[] = {{"0", 0},
                 {"-0", 0},
                 {"+7", 7},
                 {"10k", 10000},
                 {"2M", 2000000},
                 {"1G", 1000000000},
                 {"1.5M", 1500000},
                 {"1e6", 1000000},
                 {"25e-1k", 2500},
                 {"1_000_000", 1000000},
                 {"007", 7},
                 {"5.0", 5},
                 {"0e300", 0},
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775808", INT64_MIN},
                 {"100e-2", 1},
                 {"0.000", 0}};
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, NULL), STATUS_OK);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        error = (Error){0};
        if (options_set(&options, "seed", whole[i].text, OPTION_FROM_COMMAND, &error))
            fail_msg("%s", error.text);
        assert_true(values.train.seed == whole[i].value);
    }
    options_free(&options);
}

/* Refused values change nothing. */
static void test_no_whole_numbers(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      " ",
                                      " 5",
                                      "5 ",
                                      "abc",
                                      "5x",
                                      "0x10",
                                      "1.5",
                                      "1e-1",
                                      "--5",
                                      "1__0",
                                      "_1",
                                      "1_",
                                      "1e",
                                      "e5",
                                      ".",
                                      "-",
                                      "k",
                                      "5kk",
                                      "5m",
                                      "1e99",
                                      "inf",
                                      "nan",
                                      "1,000",
                                      "1.2.3",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "10000000000G",
                                      "1e1e1",
                                      "1e99999999999999999999"};
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, "--seed=3", NULL), STATUS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error = (Error){0};
        if (!options_set(&options, "seed", bad[i], OPTION_FROM_COMMAND, &error))
            fail_msg("'%s' was accepted", bad[i]);
        assert_int_equal(error.status, STATUS_USER);
        assert_true(values.train.seed == 3);
    }
    options_free(&options);
}

static void test_real_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } real[] = {{"1e-4", 1e-4},  {".5", 0.5},    {"5.", 5},          {"-2.5E+3", -2500},
                {"1_0.5", 10.5}, {"1.5k", 1500}, {"5e-324", 5e-324}, {"1.7976931348623157e308", DBL_MAX},
                {"0e-400", 0},   {"0.000", 0},   {"0.1M", 1e5}};
    static const char *const bad[] = {"",     "nan", "inf", "-inf",   "0x1p3",     "1e999",
                                      "1e",   " 1",  "1 ",  "k",      "1e3k",      "1..2",
                                      "five", "1-1", "+-1", "1e-400", "-1_0e-400", "0.1e-399"};
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, NULL), STATUS_OK);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        error = (Error){0};
        if (options_set(&options, "weight-decay", real[i].text, OPTION_FROM_COMMAND, &error))
            fail_msg("%s", error.text);
        assert_true(values.train.decay == real[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error = (Error){0};
        if (!options_set(&options, "weight-decay", bad[i], OPTION_FROM_COMMAND, &error))
            fail_msg("'%s' was accepted", bad[i]);
        assert_int_equal(error.status, STATUS_USER);
    }
    assert_true(values.train.decay == 1e5); /* refused values change nothing */
    options_free(&options);
}

static void test_refused(void **state) {
    (void)state;
    ASSERT_REFUSED(command, "unknown option --setps; did you mean --steps?", "--setps", "5");
    ASSERT_REFUSED(command, "unknown option --no-teid; did you mean --no-tied?", "--no-teid");
    ASSERT_REFUSED(command, "unknown option --qqqqq; 'pgpt train --help' lists them", "--qqqqq=1");
    ASSERT_REFUSED(command, "unknown option --; 'pgpt train --help' lists them", "--=1");
    ASSERT_REFUSED(command, "unknown option -x; options begin with two dashes, see 'pgpt train --help'",
                   "-x");
    ASSERT_REFUSED(command, "--steps wants a whole number between 1 and 1000000000, got 'abc'", "--steps",
                   "abc");
    ASSERT_REFUSED(command, "--steps wants a whole number between 1 and 1000000000, got '0'", "--steps=0");
    ASSERT_REFUSED(command, "--steps wants a whole number between 1 and 1000000000, but nothing follows",
                   "--steps");
    ASSERT_REFUSED(command,
                   "--steps wants a whole number between 1 and 1000000000, but the option --lr follows",
                   "--steps", "--lr", "1");
    ASSERT_REFUSED(command, "--seed wants a whole number, got 'x'", "--seed", "x");
    ASSERT_REFUSED(command,
                   "--seed wants a whole number, got '9223372036854775808', which is more than 64 bits hold; "
                   "give at most 9223372036854775807",
                   "--seed", "9223372036854775808");
    ASSERT_REFUSED(
        command,
        "--seed wants a whole number, got '1e30', which is more than 64 bits hold; give at most 9223372036854775807",
        "--seed=1e30");
    ASSERT_REFUSED(command, "--lr wants a number above 0 and at most 10, got '0'", "--lr", "0");
    ASSERT_REFUSED(command, "--dropout wants a number of at least 0 and below 1, got '1'", "--dropout", "1");
    ASSERT_REFUSED(command, "--weight-decay wants a number, got 'nan'", "--weight-decay", "nan");
    ASSERT_REFUSED(command, "--tied wants true or false, got 'maybe'", "--tied=maybe");
    ASSERT_REFUSED(command, "--no-tied takes no value; write --tied=VALUE", "--no-tied=true");
    ASSERT_REFUSED(command, "--no-steps: --steps is not a switch, give it a value: --steps VALUE",
                   "--no-steps");
    ASSERT_REFUSED(command,
                   "--lr-schedule wants one of constant, linear, cosine, got 'cosin'; did you mean cosine?",
                   "--lr-schedule", "cosin");
    ASSERT_REFUSED(command, "--lr-schedule wants one of constant, linear, cosine, got ''", "--lr-schedule=");
    ASSERT_REFUSED(command, "--model is empty; leave it out, or give NAME (a variable that is not set?)",
                   "--model=");
    ASSERT_REFUSED(command, "--model is empty; leave it out, or give NAME (a variable that is not set?)",
                   "--model", "", "--steps", "5");
    ASSERT_REFUSED(convert, "INPUT is empty; leave it out, or say which (a variable that is not set?)", "");
    ASSERT_REFUSED(convert, "OUTPUT is empty; leave it out, or say which (a variable that is not set?)", "a",
                   "");
    ASSERT_REFUSED(command,
                   "unexpected word 'false'; --tied is a switch: write --tied, --no-tied or --tied=false",
                   "--tied", "false");
    ASSERT_REFUSED(
        command,
        "unexpected word 'x'; a config file's name ends in .ini, options begin with --, see 'pgpt train --help'",
        "--steps", "5", "x");
}

static void test_long_values(void **state) {
    (void)state;
    char digits[3000];
    memset(digits, '7', sizeof digits - 1);
    digits[sizeof digits - 1] = 0;
    Options options;
    Values values;
    Error error;
    assert_int_equal(parse(&options, &command, &values, &error, "--steps", digits, NULL), STATUS_USER);
    assert_non_null(strstr(error.text, "777... (2999 bytes)'"));
    options_free(&options);
}

static void test_positionals(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error;
    assert_int_equal(
        parse(&options, &convert, &values, &error, "in", "--steps", "7", "-", "--", "--lr", "x.ini", NULL),
        STATUS_OK);
    assert_int_equal(options.n_arguments, 4);
    assert_string_equal(options.arguments[0], "in");
    assert_string_equal(options.arguments[1], "-");
    assert_string_equal(options.arguments[2], "--lr");
    assert_string_equal(options.arguments[3], "x.ini");
    assert_int_equal(values.train.n_steps, 7);
    options_free(&options);
    ASSERT_REFUSED(convert, "pgpt convert wants INPUT (what to read); see 'pgpt convert --help'", "--steps",
                   "7");
    assert_int_equal(parse(&options, &convert, &values, &error, "-h", "--rubbish", NULL), STATUS_OK);
    assert_true(options.help_wanted);
    options_free(&options);
    assert_int_equal(parse(&options, &convert, &values, &error, "x", "--help", NULL), STATUS_OK);
    assert_true(options.help_wanted);
    options_free(&options);
    static const OptionCommand bare = {.name = "version", .summary = "say it", .no_config = true};
    assert_int_equal(parse(&options, &bare, &values, &error, NULL), STATUS_OK);
    options_free(&options);
    ASSERT_REFUSED(bare, "unexpected word 'x.ini'; options begin with --, see 'pgpt version --help'",
                   "x.ini");
    ASSERT_REFUSED(bare, "unknown option --steps; 'pgpt version --help' lists them", "--steps=5");
}

/* A whole number may have names, which may stand for what is out of its range. */
static void test_words(void **state) {
    (void)state;
    static const OptionWord words[] = {{"none", 0}, {"all", -1}, {NULL, 0}};
    static const OptionSpec specs[] = {
        OPTION_INT("layers", ModelOptions, n_layers, 2, 0, 5, "how many", .words = words), OPTION_END};
    static const OptionGroup named_groups[] = {OPTION_GROUP("A", Values, model, specs), OPTION_GROUP_END};
    static const OptionCommand named = {.name = "t", .groups = named_groups};
    static const struct {
        const char *text, *shown;
        int64_t value;
    } cases[] = {{"3", "3", 3}, {"none", "0", 0}, {"all", "all", -1}, {"ALL", "all", -1}};
    Options options;
    Values values;
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena arena = {0};
        assert_int_equal(parse(&options, &named, &values, &error, "--layers", cases[i].text, NULL),
                         STATUS_OK);
        assert_int_equal(values.model.n_layers, cases[i].value);
        assert_string_equal(option_value_text(&specs[0], &values.model.n_layers, &arena), cases[i].shown);
        json_t *object = options_to_json(&options), *value = json_object_get(object, "layers");
        if (cases[i].value < 0) assert_string_equal(json_string_value(value), "all");
        else assert_int_equal(json_integer_value(value), cases[i].value);
        assert_string_equal(option_facts(&specs[0], &arena), "0 to 5; none, all; default 2");
        json_decref(object);
        options_free(&options);
        arena_free(&arena);
    }
    ASSERT_REFUSED(named, "--layers wants a whole number between 0 and 5, or one of none, all, got '-1'",
                   "--layers", "-1");
    ASSERT_REFUSED(
        named,
        "--layers wants a whole number between 0 and 5, or one of none, all, got 'nome'; did you mean none?",
        "--layers", "nome");
}

static void test_wrong_tables(void **state) {
    (void)state;
    static const OptionSpec twice[] = {OPTION_BOOL("tied", ModelOptions, tied, true, "again"), OPTION_END};
    static const OptionGroup twice_groups[] = {OPTION_GROUP("A", Values, model, model_specs),
                                               OPTION_GROUP("B", Values, model, twice), OPTION_GROUP_END};
    static const OptionSpec range[] = {OPTION_INT("layers", ModelOptions, n_layers, 0, 1, 5, "bad default"),
                                       OPTION_END};
    static const OptionGroup range_groups[] = {OPTION_GROUP("A", Values, model, range), OPTION_GROUP_END};
    static const OptionSpec choice[] = {
        OPTION_CHOICE("x", TrainOptions, schedule, 3, schedules, "bad default"), OPTION_END};
    static const OptionGroup choice_groups[] = {OPTION_GROUP("A", Values, train, choice), OPTION_GROUP_END};
    static const OptionSpec name[] = {OPTION_BOOL("Tied_", ModelOptions, tied, true, "bad name"), OPTION_END};
    static const OptionGroup name_groups[] = {OPTION_GROUP("A", Values, model, name), OPTION_GROUP_END};
    static const struct {
        const OptionGroup *groups;
        const char *message;
    } cases[] = {{twice_groups, "t: --tied is twice in the table"},
                 {range_groups, "t: --layers: the default wants a whole number between 1 and 5, got '0'"},
                 {choice_groups, "t: the default of --x is not among its choices"},
                 {name_groups, "t: 'Tied_' cannot be the name of an option"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OptionCommand wrong = {.name = "t", .groups = cases[i].groups};
        Options options;
        Values values;
        Error error = {0};
        assert_int_equal(options_init(&options, &wrong, &values, &error), STATUS_FAILED);
        assert_string_equal(error.text, cases[i].message);
    }
}

static void assert_starts(const char *text, const char *start) {
    if (strncmp(text, start, strlen(start)) != 0) fail_msg("'%s' does not begin with '%s'", text, start);
}

/* ---- Help, record, manual page */

static char *help(const OptionCommand *which, int columns) {
    char *text;
    size_t n_bytes;
    FILE *stream = open_memstream(&text, &n_bytes);
    options_write_help(stream, "pgpt", which, columns);
    fclose(stream);
    return text;
}

static void test_help(void **state) {
    (void)state;
    char *text = help(&command, 80);
    assert_starts(text, "usage: pgpt train [FILE.ini] [--key value]...\n\ntrain a model\n\nModel:\n");
    assert_non_null(strstr(text, "\n  --layers N          how many blocks (1 to 1000; default 4)\n"));
    assert_non_null(strstr(text, "\n  --seed N            where all randomness comes from (default 1337)\n"));
    assert_non_null(strstr(
        text, "the highest learning rate (above 0, at most 10; default\n                      0.0003)\n"));
    assert_non_null(strstr(text, "\n  --[no-]tied         share the embedding with the head (default on)\n"));
    assert_non_null(strstr(text,
                           "\n  --lr-schedule NAME  course of the learning rate (constant, linear, cosine;\n"
                           "                      default cosine)\n"));
    assert_non_null(strstr(text, "\nExamples:\n  train on a file\n    pgpt train --data x.txt --steps 10\n"));
    free(text);
    text = help(&convert, 80);
    assert_starts(text, "usage: pgpt convert [FILE.ini] [--key value]... INPUT [OUTPUT]...\n");
    assert_non_null(strstr(text, "A line break is a blank.\n\n.Second paragraph"));
    assert_non_null(strstr(text, "\nArguments:\n  INPUT               what to read\n"));
    free(text);
    for (int columns = 0; columns < 140; columns += 7) { /* no line is too long, whatever the width */
        text = help(&command, columns);
        char *save = NULL;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            bool verbatim = strncmp(line, "usage:", 6) == 0 || strncmp(line, "    ", 4) == 0 || columns < 40;
            if (!verbatim && strlen(line) > (size_t)columns) fail_msg("at %d columns: '%s'", columns, line);
        }
        free(text);
    }
}

/* Options that do nothing: only what was given is refused, the first one, and from the source that is asked for on. */
static void test_refused_without_effect(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error = {0};
    enum { FOR_ONE = 1, FOR_OTHER = 2 };
    static const OptionUse uses[] = {{"lr", FOR_ONE}, {"dropout", FOR_ONE | FOR_OTHER}, {"seed", FOR_OTHER}};
    ASSERT_PARSES(options, values, "--lr", "1", "--dropout", "0.5");
    assert_int_equal(options_set(&options, "seed", "3", OPTION_FROM_FILE, &error), STATUS_OK);
    const OptionCondition idle[] = {{"seed", "--data", false},
                                    {"dropout", "--no-tied", true},
                                    {"weight-decay", "--tied", false},
                                    {"lr", "--lr-schedule linear", false}};
    assert_int_equal(options_refuse_idle(&options, idle, 3, OPTION_FROM_COMMAND, &error), STATUS_OK);
    assert_int_equal(options_refuse_idle(&options, idle, 4, OPTION_FROM_COMMAND, &error), STATUS_USER);
    assert_string_equal(
        error.text, "--lr means something only with --lr-schedule linear; leave it out, or give that too");
    error = (Error){0};
    assert_int_equal(options_refuse_idle(&options, idle, 3, OPTION_FROM_FILE, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "--seed means something only with --data;"));
    error = (Error){0};
    assert_int_equal(
        options_refuse_unused(&options, uses, 3, FOR_ONE, "'test one'", OPTION_FROM_COMMAND, &error),
        STATUS_OK);
    assert_int_equal(
        options_refuse_unused(&options, uses, 3, FOR_OTHER, "'test other'", OPTION_FROM_COMMAND, &error),
        STATUS_USER);
    assert_string_equal(error.text, "--lr means nothing to 'test other'; leave it out");
    error = (Error){0};
    assert_int_equal(
        options_refuse_unused(&options, uses, 3, FOR_ONE, "'test one'", OPTION_FROM_FILE, &error),
        STATUS_USER);
    assert_string_equal(error.text, "--seed means nothing to 'test one'; leave it out");
    options_free(&options);
}

static void test_json_record(void **state) {
    (void)state;
    Options options;
    Values values;
    Error error = {0};
    ASSERT_PARSES(options, values, "--data", "a\"\xFF", "--no-tied");
    json_t *object = options_to_json(&options);
    char *line;
    assert_int_equal(json_line(object, JSON_DIGITS_FLOAT, &line, &error), STATUS_OK);
    assert_string_equal(
        line, "{\"model\":\"nano\",\"layers\":4,\"tied\":false,\"steps\":1000,\"seed\":1337,\"lr\":0.0003,"
              "\"dropout\":0.1,\"weight-decay\":0.1,\"lr-schedule\":\"cosine\","
              "\"data\":\"a\\\"\xEF\xBF\xBD\",\"json\":false}");
    free(line);
    json_decref(object);
    options_free(&options);
}

static const OptionCommand *const commands[] = {&command, &convert, NULL};
static const ManSection sections[] = {
    {"SEE ALSO", "groff(1), the \"manual\"; caf\xC3\xA9 -- '.dot' at\n.the start"}, {.title = NULL}};
static const ManPage page = {.program = "pgpt",
                             .version = "0.1.0",
                             .date = "2024-05-01",
                             .summary = "train, fine-tune and run GPT models",
                             .description = "First paragraph.\n\nSecond one.",
                             .commands = commands,
                             .sections = sections};

static void test_overview(void **state) {
    (void)state;
    char *text;
    size_t n_bytes;
    FILE *stream = open_memstream(&text, &n_bytes);
    options_write_overview(stream, &page, 80);
    fclose(stream);
    assert_string_equal(
        text, "usage: pgpt COMMAND [FILE.ini] [--key value]...\n\nFirst paragraph.\n\nSecond one.\n\n"
              "Commands:\n  train    train a model\n  convert  convert files\n\n"
              "'pgpt COMMAND --help' shows the options of a command; 'pgpt --version' the version.\n");
    free(text);
}

static void test_man(void **state) {
    (void)state;
    FILE *file = fopen(file_name, "w");
    options_write_man(file, &page);
    fclose(file);
    char *text = NULL;
    size_t capacity = 0;
    file = fopen(file_name, "r");
    assert_true(getdelim(&text, &capacity, 0, file) > 0);
    fclose(file);
    assert_starts(text, ".TH \"PGPT\" 1 \"2024\\-05\\-01\" \"pgpt 0.1.0\" \"User Commands\"\n");
    assert_non_null(strstr(text, "\n.TP\n\\fB\\-\\-steps\\fR \\fIN\\fR\noptimizer steps"));
    assert_non_null(strstr(text, "\n.TP\n\\fB\\-\\-tied\\fR, \\fB\\-\\-no\\-tied\\fR\n"));
    assert_non_null(strstr(text, "\n\\&.\\epgpt \\(aqtrain\\(aq \\-\\- \\(dq\\(ti\\(ha\\(ga\\(dq\n"));
    assert_non_null(strstr(text, "\n\\&.Second paragraph with \\ebackslash and \\(aqquotes\\(aq.\n"));
    assert_non_null(strstr(text, "\\fITraining\\fR: as for \\fBtrain\\fR.\n"));
    assert_non_null(strstr(text, "caf\\[u00E9]"));
    free(text);
    if (system("command -v groff >/dev/null 2>&1") != 0) {
        print_message("skipped: groff is not there to read the manual page\n");
        skip();
    }
    char call[256];
    snprintf(call, sizeof call, "test -z \"$(groff -man -ww -Tutf8 '%s' 2>&1 >/dev/null)\"", file_name);
    assert_int_equal(system(call), 0);
    snprintf(call, sizeof call, "groff -man -Tascii -P-cbou '%s' 2>/dev/null | grep -q -e '--no-tied'",
             file_name);
    assert_int_equal(system(call), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_forms),
        cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_no_whole_numbers),
        cmocka_unit_test(test_real_numbers),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_values),   cmocka_unit_test(test_positionals),
        cmocka_unit_test(test_words),         cmocka_unit_test(test_wrong_tables),
        cmocka_unit_test(test_help),          cmocka_unit_test(test_refused_without_effect),
        cmocka_unit_test(test_json_record),   cmocka_unit_test(test_overview),
        cmocka_unit_test(test_man),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
