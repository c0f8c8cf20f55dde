/* A story is the expansion of a plot.
 *
 * First its features are drawn: who the hero is, the friend, the place, the thing. They become variables that
 * every sentence of the story shares, which is what keeps names, pronouns and places consistent; the grammar
 * itself is context-free. Then the plot's text is expanded. The notation in corpus_grammar.c:
 *
 *     (one|two|)   one of the alternatives, also an empty one; they nest
 *     <name>       a variable of the story or, if there is none, a rule
 *     <a>          "a" or "an", as the next word demands
 *     ^            the next letter is a capital (sentences and quotes begin with one without being told)
 *
 * Runs of blanks become one, so an empty alternative leaves no trace.
 *
 * Story s of a seed draws its choices from the stream (seed, s): a pure function, whatever was generated
 * before. */
#include "data/corpus.h"

#include "base/random.h"
#include "data/corpus_grammar.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIABLES = 40, RANDOM_STREAM = 1 << 16 };

typedef struct {
    char *bytes;
    size_t n, capacity;
    bool capital;   /* the next letter begins a sentence */
    bool in_quote;  /* between double quotes */
    bool article;   /* "a" was written, and the next word decides what becomes of it */
    bool exhausted; /* memory ran out: write nothing more */
} Writer;

typedef struct {
    RandomKey key;
    uint64_t n_drawn;
    CorpusRule variables[MAX_VARIABLES];
    int n_variables;
    Writer *writer;
} Story;

/* ---- Writing ---- */

static void put(Writer *writer, char c) {
    if (writer->n + 2 > writer->capacity && !writer->exhausted) {
        size_t capacity = writer->capacity * 2 + 4096;
        char *bytes = realloc(writer->bytes, capacity);
        writer->exhausted = !bytes;
        if (bytes) {
            writer->bytes = bytes;
            writer->capacity = capacity;
        }
    }
    if (!writer->exhausted) writer->bytes[writer->n++] = c;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char last(const Writer *writer) {
    return writer->n ? writer->bytes[writer->n - 1] : '\n';
}

/* One character of the expansion, with the typesetter's rules applied. */
static void write_character(Writer *writer, char c) {
    if (c == ' ' && (last(writer) == ' ' || last(writer) == '\n')) return;
    if (c == '\n' && last(writer) == ' ') writer->n--;
    if (is_letter(c)) {
        if (writer->article && !writer->exhausted && strchr("aeiouAEIOU", c)) {
            writer->bytes[writer->n - 1] = 'n'; /* over the blank after "a" */
            put(writer, ' ');
        }
        if (writer->capital && c >= 'a') c = (char)(c - 'a' + 'A');
        writer->article = writer->capital = false;
    }
    if (c == '"') {
        writer->in_quote = !writer->in_quote;
        writer->capital = writer->in_quote;
    }
    if (c == '\n') writer->capital = true;
    if (c == ' ' && strchr(".!?", last(writer))) writer->capital = true;
    put(writer, c);
}

/* ---- Expanding ---- */

static uint64_t draw(Story *story, uint64_t n) {
    RandomBlock block = random_block(story->key, 0, story->n_drawn / 4);
    return (uint64_t)block.word[story->n_drawn++ % 4] * n >> 32;
}

/* The grammar is part of the program: a fault in it is ours, and every test of the stories would meet it. */
static _Noreturn void grammar_broken(const char *what, const char *where) {
    fprintf(stderr, "pgpt: the story grammar is broken: %s: %.40s\n", what, where);
    abort();
}

static const char *find_body(const Story *story, const char *name, size_t n) {
    for (int i = 0; i < story->n_variables; i++) {
        if (strncmp(story->variables[i].name, name, n) == 0 && story->variables[i].name[n] == 0) {
            return story->variables[i].body;
        }
    }
    for (const CorpusRule *rule = corpus_rules; rule->name; rule++) {
        if (strncmp(rule->name, name, n) == 0 && rule->name[n] == 0) return rule->body;
    }
    grammar_broken("unknown rule", name);
}

/* The first '|' or ')' of this level at or after `text`. */
static const char *alternative_end(const char *text) {
    for (int depth = 0;; text++) {
        if (*text == 0) grammar_broken("unbalanced brackets", "");
        if (*text == '(') depth++;
        if (depth == 0 && (*text == '|' || *text == ')')) return text;
        if (*text == ')') depth--;
    }
}

static void expand(Story *story, const char *text, const char *end);

static const char *expand_alternatives(Story *story, const char *text /* after the bracket */) {
    uint64_t n = 1;
    const char *at = alternative_end(text);
    for (; *at == '|'; at = alternative_end(at + 1)) n++;
    uint64_t chosen = draw(story, n);
    const char *first = text, *last_one = alternative_end(text);
    for (; chosen > 0; chosen--) {
        first = last_one + 1;
        last_one = alternative_end(first);
    }
    expand(story, first, last_one);
    return at + 1;
}

static void expand(Story *story, const char *text, const char *end) {
    while (text < end) {
        char c = *text++;
        if (c == '(') {
            text = expand_alternatives(story, text);
        } else if (c == '^') {
            story->writer->capital = true;
        } else if (c == '<') {
            size_t n = strcspn(text, ">");
            if (n == 1 && *text == 'a') {
                write_character(story->writer, 'a');
                story->writer->article = true;
            } else {
                const char *body = find_body(story, text, n);
                expand(story, body, body + strlen(body));
            }
            text += n + 1;
        } else {
            write_character(story->writer, c);
        }
    }
}

/* ---- The features of a story ---- */

static void set(Story *story, const char *name, const char *body) {
    if (story->n_variables == MAX_VARIABLES) grammar_broken("too many variables", name);
    story->variables[story->n_variables++] = (CorpusRule){name, body};
}

/* Fix a choice for the whole story: the n-th alternative of a text like "one|two|three", as a new string. */
static void choose(Story *story, const char *alternatives, char *chosen, size_t capacity) {
    uint64_t n = 1;
    for (const char *at = alternatives; *at; at++) n += *at == '|';
    const char *first = alternatives;
    for (uint64_t skip = draw(story, n); skip > 0; skip--) first = strchr(first, '|') + 1;
    size_t length = strcspn(first, "|");
    if (length >= capacity) grammar_broken("a choice is too long", first);
    memcpy(chosen, first, length);
    chosen[length] = 0;
}

typedef struct {
    const char *name, *he, *him, *his, *himself, *noun, *home;
} CharacterNames;

static void set_character(Story *story, const CharacterNames *names, const CorpusCharacter *character) {
    bool female = character->gender == 'f';
    set(story, names->name, character->name);
    set(story, names->noun, character->noun);
    set(story, names->home, character->home);
    set(story, names->he, female ? "she" : "he");
    set(story, names->him, female ? "her" : "him");
    set(story, names->his, female ? "her" : "his");
    set(story, names->himself, female ? "herself" : "himself");
}

static void set_cast(Story *story) {
    static const CharacterNames hero_names = {"h", "he", "him", "his", "himself", "h_noun", "h_home"};
    static const CharacterNames friend_names = {"f", "fhe", "fhim", "fhis", "fhimself", "f_noun", "f_home"};
    static const CorpusCharacter elders[] = {{"mother", "", 'f', ""},
                                             {"father", "", 'm', ""},
                                             {"grandmother", "", 'f', ""},
                                             {"grandfather", "", 'm', ""}};
    static const CharacterNames elder_names = {"m", "mhe", "mhim", "mhis", "mhimself", "m_noun", "m_home"};
    uint64_t n = (uint64_t)corpus_n_characters, hero = draw(story, n), friend = hero;
    while (strcmp(corpus_characters[friend].noun, corpus_characters[hero].noun) == 0) friend = draw(story, n);
    set_character(story, &hero_names, &corpus_characters[hero]);
    set_character(story, &friend_names, &corpus_characters[friend]);
    set_character(story, &elder_names, &elders[draw(story, 4)]);
    const char *noun = corpus_characters[friend].noun;
    bool human = strcmp(noun, "girl") == 0 || strcmp(noun, "boy") == 0;
    set(story, "f_the", human ? "<a> <f_noun> named <f>" : "<f> the <f_noun>");
}

static void write_story(Writer *writer, uint64_t seed, uint64_t number) {
    Story story = {.key = random_key(seed, RANDOM_DATA + RANDOM_STREAM, number), .writer = writer};
    const char *plot = corpus_plots[draw(&story, (uint64_t)corpus_n_plots)];
    set_cast(&story);
    const CorpusPlace *place = &corpus_places[draw(&story, (uint64_t)corpus_n_places)];
    set(&story, "place", place->place);
    set(&story, "in_place", place->in_place);
    set(&story, "to_place", place->to_place);
    const CorpusThing *thing = &corpus_things[draw(&story, (uint64_t)corpus_n_things)];
    set(&story, "thing", thing->thing);
    set(&story, "use", thing->use);
    set(&story, "used", thing->used);
    const CorpusTrait *trait = &corpus_traits[draw(&story, (uint64_t)corpus_n_traits)];
    set(&story, "trait", trait->trait);
    set(&story, "habit", trait->habit);
    char color[16], spot[64], treat[32], skill[32], other_spot[64], light[16], baby[32], dry_place[32];
    choose(&story, "red|blue|green|yellow|orange|white|purple", color, sizeof color);
    choose(&story, "an apple|an orange|a honey cake|some berries|some warm bread|some nuts|a cherry pie",
           treat, sizeof treat);
    choose(&story, "swim|whistle|dance|climb|juggle|sing|paint", skill, sizeof skill);
    choose(&story, "kite|balloon|hat|scarf", light, sizeof light);
    choose(&story, "baby bird|little lamb|little puppy|tiny kitten", baby, sizeof baby);
    choose(&story, "an old barn|a dry cave|a hollow tree|a little hut", dry_place, sizeof dry_place);
    choose(&story, place->spots, spot, sizeof spot);
    do choose(&story, place->spots, other_spot, sizeof other_spot);
    while (strcmp(spot, other_spot) == 0);
    set(&story, "color", color);
    set(&story, "treat", treat);
    set(&story, "skill", skill);
    set(&story, "light", light);
    set(&story, "baby_kind", baby);
    set(&story, "dry_place", dry_place);
    set(&story, "spot", spot);
    set(&story, "other_spot", other_spot);
    writer->capital = true;
    expand(&story, plot, plot + strlen(plot));
    write_character(writer, '\n');
    write_character(writer, '\n');
}

Status corpus_generate(uint64_t seed, size_t n_bytes, char **text, size_t *length, Error *error) {
    Writer writer = {0};
    for (uint64_t number = 0; writer.n < n_bytes && !writer.exhausted; number++) {
        write_story(&writer, seed, number);
    }
    put(&writer, 0);
    if (writer.exhausted) {
        free(writer.bytes);
        return error_failed(error, "out of memory: no room for %zu bytes of stories", n_bytes);
    }
    *text = writer.bytes;
    *length = writer.n - 1;
    return STATUS_OK;
}
