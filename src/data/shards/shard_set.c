/* The manifest says what the headers say, and they are compared: a shard that was swapped for one of another
 * corpus, left over from an earlier preparation or lost is noticed before the first step. Its own checksum
 * covers its numbers, the checksums of the tokens among them, and is what a run remembers of its data:
 * identifying a corpus of any size costs reading one small file. */
#include "data/shards/shard_set.h"

#include "base/arena.h"
#include "base/text/format.h"
#include "base/text/json.h"
#include "data/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MOST_SHARDS = 100000, LIMIT_BYTES = 64 << 20 };

#define MANIFEST  "manifest.json"
#define TOKENIZER "tokenizer.json"

static char *join(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

char *shard_set_path(const char *folder, size_t index) {
    char name[40];
    snprintf(name, sizeof name, "tokens-%05zu.bin", index);
    return join(folder, name);
}

/* A folder of texts may have a manifest of somebody else's. */
bool shard_set_is_folder(const char *path) {
    char *shard = shard_set_path(path, 0), *manifest = join(path, MANIFEST), *bytes = NULL;
    size_t n_bytes;
    Error ignored = {0};
    bool found = shard && file_exists(shard);
    if (!found && manifest && file_exists(manifest) &&
        file_read_regular(manifest, LIMIT_BYTES, &bytes, &n_bytes, &ignored) == STATUS_OK) {
        found = strstr(bytes, "\"pgpt_data\"") != NULL;
    }
    free(bytes);
    free(shard);
    free(manifest);
    return found;
}

/* Of everything that the manifest says in numbers. */
static uint64_t manifest_checksum(const ShardManifest *manifest) {
    uint64_t hash = hash_u64(VERSION, manifest->validation_start);
    if (manifest->has_source)
        hash = hash_u64(hash_u64(hash, manifest->source.n_bytes), manifest->source.hash);
    for (size_t i = 0; i < manifest->n_shards; i++) {
        const ShardHeader *header = &manifest->headers[i];
        hash = hash_u64(hash_u64(hash, header->token_bytes), header->n_vocabulary);
        hash = hash_u64(hash_u64(hash, header->n_tokens), header->n_documents);
        hash = hash_u64(hash_u64(hash, header->n_text_bytes), header->tokenizer_hash);
        hash = hash_u64(hash_u64(hash, header->tokens_checksum), header->documents_checksum);
    }
    return hash_u64(hash, manifest->n_shards);
}

/* ---- Writing ---- */

static json_t *hash_json(uint64_t hash) {
    char digits[20];
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    return json_string(digits);
}

static json_t *number_json(uint64_t number) {
    return json_integer((json_int_t)number);
}

static json_t *shard_json(const ShardHeader *header, size_t index) {
    char name[40];
    snprintf(name, sizeof name, "tokens-%05zu.bin", index);
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o}", "file", name, "n_tokens", number_json(header->n_tokens),
                     "n_documents", number_json(header->n_documents), "n_text_bytes",
                     number_json(header->n_text_bytes), "tokens_checksum", hash_json(header->tokens_checksum),
                     "documents_checksum", hash_json(header->documents_checksum));
}

static json_t *manifest_json(const ShardManifest *manifest) {
    const ShardHeader *headers = manifest->headers;
    uint64_t n_tokens = 0;
    json_t *shards = json_array();
    for (size_t i = 0; i < manifest->n_shards; i++) {
        n_tokens += headers[i].n_tokens;
        if (json_array_append_new(shards, shard_json(&headers[i], i)) != 0) {
            json_decref(shards);
            return NULL;
        }
    }
    json_t *source = NULL;
    if (manifest->has_source) {
        source = json_pack("{s:o,s:o}", "n_bytes", number_json(manifest->source.n_bytes), "hash",
                           hash_json(manifest->source.hash));
    }
    return json_pack("{s:i,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o*,s:o}", "pgpt_data", VERSION, "tokenizer",
                     manifest->tokenizer_kind, "tokenizer_hash", hash_json(headers[0].tokenizer_hash),
                     "n_vocabulary", number_json(headers[0].n_vocabulary), "token_bytes",
                     number_json(headers[0].token_bytes), "n_tokens", number_json(n_tokens),
                     "validation_start", number_json(manifest->validation_start), "checksum",
                     hash_json(manifest_checksum(manifest)), "source", source, "shards", shards);
}

Status shard_set_save(const ShardManifest *manifest, Error *error) {
    FileWriter writer = {.descriptor = -1};
    char *path = join(manifest->folder, MANIFEST);
    json_t *object = manifest_json(manifest);
    char *text = object ? json_dumps(object, JSON_INDENT(1)) : NULL;
    if (!path || !text) {
        error_failed(error, "out of memory: no room to write the manifest of %s", manifest->folder);
        goto done;
    }
    TRY_GOTO(file_writer_open(&writer, path, error), done);
    TRY_GOTO(file_writer_printf(&writer, error, "%s\n", text), done);
    file_writer_commit(&writer, error);
done:
    file_writer_abort(&writer);
    free(text);
    free(path);
    json_decref(object);
    return error->status;
}

/* ---- Opening ---- */

static Status field_hash(const json_t *object, const char *path, const char *field, uint64_t *hash,
                         Error *error) {
    const char *text;
    TRY(json_field_text(object, path, field, &text, error));
    size_t n_digits = strspn(text, "0123456789abcdef");
    if (n_digits != 16 || text[16]) {
        return error_user(error, "%s: field '%s' wants 16 hexadecimal digits, got '%.40s'", path, field,
                          text);
    }
    *hash = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static Status field_count(const json_t *object, const char *path, const char *field, uint64_t *count,
                          Error *error) {
    int64_t value = 0;
    TRY(json_field_int(object, path, field, 0, INT64_C(1) << 56, &value, error));
    *count = (uint64_t)value;
    return STATUS_OK;
}

/* What the manifest says about one shard must be what the shard says. */
static Status compare(const json_t *entry, const ShardSet *set, const Shard *shard, const char *path,
                      Error *error) {
    const ShardHeader *header = &shard->header;
    struct {
        const char *field;
        uint64_t found, wanted;
        bool is_hash;
    } pairs[] = {
        {"n_tokens", header->n_tokens, 0, false},
        {"n_documents", header->n_documents, 0, false},
        {"n_text_bytes", header->n_text_bytes, 0, false},
        {"tokens_checksum", header->tokens_checksum, 0, true},
        {"documents_checksum", header->documents_checksum, 0, true},
        {"token_bytes", header->token_bytes, set->token_bytes, false},
        {"n_vocabulary", header->n_vocabulary, set->n_vocabulary, false},
        {"tokenizer_hash", header->tokenizer_hash, set->tokenizer_hash, true},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (i < 3) TRY(field_count(entry, path, pairs[i].field, &pairs[i].wanted, error));
        else if (i < 5) TRY(field_hash(entry, path, pairs[i].field, &pairs[i].wanted, error));
        if (pairs[i].found == pairs[i].wanted) continue;
        return error_user(error,
                          pairs[i].is_hash ? "%s: field '%s' is %016" PRIx64 ", but %s says %016" PRIx64
                                             ": it belongs to other data; prepare the data again"
                                           : "%s: field '%s' is %" PRIu64 ", but %s says %" PRIu64
                                             ": it belongs to other data; prepare the data again",
                          shard->path, pairs[i].field, pairs[i].found, path, pairs[i].wanted);
    }
    return STATUS_OK;
}

/* Map the next shard of a set whose arrays have room for it. */
static Status add_shard(ShardSet *set, Error *error) {
    Shard *shard = &set->shards[set->n_shards];
    char *name = shard_set_path(set->folder, set->n_shards);
    if (!name) return error_failed(error, "out of memory: no room for a name");
    Status status = shard_open(name, shard, error);
    free(name);
    TRY(status);
    set->first[set->n_shards++] = set->n_tokens;
    set->n_tokens += shard->header.n_tokens;
    set->n_documents += shard->header.n_documents;
    set->n_text_bytes += shard->header.n_text_bytes;
    return STATUS_OK;
}

static Status make_room(ShardSet *set, size_t n, Error *error) {
    set->shards = calloc(n, sizeof *set->shards);
    set->first = calloc(n, sizeof *set->first);
    if (set->shards && set->first) return STATUS_OK;
    return error_failed(error, "out of memory: no room for %zu shards", n);
}

static Status open_shards(ShardSet *set, const json_t *entries, const char *path, Error *error) {
    size_t n = json_array_size(entries);
    if (n < 1 || n > MOST_SHARDS) {
        return error_user(error, "%s: field 'shards' must have 1 to %d entries, not %zu", path, MOST_SHARDS,
                          n);
    }
    TRY(make_room(set, n, error));
    for (size_t i = 0; i < n; i++) {
        TRY(add_shard(set, error));
        TRY(compare(json_array_get(entries, i), set, &set->shards[i], path, error));
    }
    return STATUS_OK;
}

Status shard_set_open_unfinished(const ShardManifest *manifest, ShardSet *set, Error *error) {
    *set = (ShardSet){.folder = strdup(manifest->folder)};
    if (!set->folder) return error_failed(error, "out of memory: no room to open %s", manifest->folder);
    TRY_GOTO(make_room(set, manifest->n_shards, error), failed);
    while (set->n_shards < manifest->n_shards) TRY_GOTO(add_shard(set, error), failed);
    return STATUS_OK;
failed:
    shard_set_close(set);
    return error->status;
}

static Status read_source(ShardSet *set, const json_t *object, const char *path, Error *error) {
    json_t *source;
    if (!json_object_get(object, "source")) return STATUS_OK;
    TRY(json_field_object(object, path, "source", &source, error));
    TRY(field_count(source, path, "n_bytes", &set->source.n_bytes, error));
    TRY(field_hash(source, path, "hash", &set->source.hash, error));
    set->has_source = true;
    return STATUS_OK;
}

static Status check_sums(ShardSet *set, const json_t *object, const char *path, Error *error) {
    uint64_t n_tokens = 0, checksum = 0;
    TRY(field_count(object, path, "n_tokens", &n_tokens, error));
    TRY(field_count(object, path, "validation_start", &set->validation_start, error));
    TRY(field_hash(object, path, "checksum", &checksum, error));
    if (n_tokens != set->n_tokens) {
        return error_user(error, "%s: field 'n_tokens' is %" PRIu64 ", but the shards have %" PRIu64, path,
                          n_tokens, set->n_tokens);
    }
    if (set->validation_start > n_tokens) {
        return error_user(error,
                          "%s: field 'validation_start' is %" PRIu64 ", but there are %" PRIu64 " tokens",
                          path, set->validation_start, n_tokens);
    }
    ShardHeader *headers = calloc(set->n_shards, sizeof *headers);
    if (!headers) return error_failed(error, "out of memory: no room for %zu headers", set->n_shards);
    for (size_t i = 0; i < set->n_shards; i++) headers[i] = set->shards[i].header;
    ShardManifest manifest = {.headers = headers,
                              .n_shards = set->n_shards,
                              .validation_start = set->validation_start,
                              .has_source = set->has_source,
                              .source = set->source};
    set->checksum = manifest_checksum(&manifest);
    free(headers);
    if (set->checksum == checksum) return STATUS_OK;
    return error_user(error,
                      "%s: field 'checksum' is %016" PRIx64 ", but the content makes %016" PRIx64
                      ": the file is damaged; prepare the data again",
                      path, checksum, set->checksum);
}

static Status read_manifest(ShardSet *set, const char *path, Error *error) {
    json_t *object = NULL, *entries;
    int64_t version, token_bytes, n_vocabulary;
    const char *kind;
    if (!file_exists(path)) {
        return error_user(error, "%s is missing: %s was not prepared to the end; prepare the data again",
                          path, set->folder);
    }
    TRY(json_read(path, LIMIT_BYTES, &object, error));
    TRY_GOTO(json_field_int(object, path, "pgpt_data", VERSION, VERSION, &version, error), done);
    TRY_GOTO(json_field_text(object, path, "tokenizer", &kind, error), done);
    TRY_GOTO(json_field_int(object, path, "token_bytes", 2, 4, &token_bytes, error), done);
    TRY_GOTO(json_field_int(object, path, "n_vocabulary", 1, INT32_MAX, &n_vocabulary, error), done);
    TRY_GOTO(field_hash(object, path, "tokenizer_hash", &set->tokenizer_hash, error), done);
    TRY_GOTO(json_field_array(object, path, "shards", &entries, error), done);
    set->token_bytes = (uint32_t)token_bytes;
    set->n_vocabulary = (uint32_t)n_vocabulary;
    set->tokenizer_kind = strdup(kind);
    if (!set->tokenizer_kind) {
        error_failed(error, "out of memory: no room to read %s", path);
        goto done;
    }
    TRY_GOTO(read_source(set, object, path, error), done);
    TRY_GOTO(open_shards(set, entries, path, error), done);
    check_sums(set, object, path, error);
done:
    json_decref(object);
    return error->status;
}

Status shard_set_open(const char *folder, ShardSet *set, Error *error) {
    *set = (ShardSet){.folder = strdup(folder)};
    char *path = join(folder, MANIFEST);
    if (!set->folder || !path) error_failed(error, "out of memory: no room to open %s", folder);
    else read_manifest(set, path, error);
    free(path);
    if (error->status != STATUS_OK) shard_set_close(set);
    return error->status;
}

void shard_set_close(ShardSet *set) {
    for (size_t i = 0; i < set->n_shards; i++) shard_close(&set->shards[i]);
    free(set->shards);
    free(set->first);
    free(set->folder);
    free(set->tokenizer_kind);
    *set = (ShardSet){0};
}

Status shard_set_tokenizer(const ShardSet *set, Tokenizer **tokenizer, Error *error) {
    *tokenizer = NULL;
    char *path = join(set->folder, TOKENIZER);
    if (!path) return error_failed(error, "out of memory: no room for a name");
    if (tokenizer_load(path, tokenizer, error) == STATUS_OK) {
        ShardTokenizer wanted = {path, tokenizer_kind(*tokenizer), tokenizer_hash(*tokenizer),
                                 tokenizer_n_vocabulary(*tokenizer)};
        ShardTokenizer found = {set->folder, set->tokenizer_kind, set->tokenizer_hash,
                                (int)set->n_vocabulary};
        if (shard_tokenizers_match(&wanted, &found, error) != STATUS_OK) {
            tokenizer_free(*tokenizer);
            *tokenizer = NULL;
        }
    }
    free(path);
    return error->status;
}

/* ---- Reading ---- */

uint64_t shard_set_bytes(const ShardSet *set) {
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < set->n_shards; i++) n_bytes += set->shards[i].memory_bytes;
    return n_bytes;
}

typedef struct {
    const ShardSet *set;
    Progress *progress;
    const ShardVisitor *visitor;
    uint64_t n_done;
} Visit;

static void look(void *context, const int32_t *ids, size_t n) {
    Visit *visit = context;
    visit->n_done += n;
    if (visit->visitor) visit->visitor->look(visit->visitor->context, ids, n);
    if (!visit->progress || !progress_due(visit->progress)) return;
    char status[PROGRESS_STATUS_BYTES];
    snprintf(status, sizeof status, "verifying  %s of %s tokens", format_count((double)visit->n_done).text,
             format_count((double)visit->set->n_tokens).text);
    progress_update(visit->progress, (double)visit->n_done / (double)visit->set->n_tokens, status);
}

Status shard_set_verify(const ShardSet *set, Progress *progress, const ShardVisitor *visitor, Error *error) {
    Visit visit = {set, progress, visitor, 0};
    ShardVisitor inner = {look, &visit};
    for (size_t i = 0; i < set->n_shards; i++) TRY(shard_verify(&set->shards[i], &inner, error));
    return STATUS_OK;
}

/* The shard that holds a token. */
static size_t find_shard(const ShardSet *set, uint64_t token) {
    size_t low = 0, high = set->n_shards - 1;
    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        if (set->first[middle] <= token) low = middle;
        else high = middle - 1;
    }
    return low;
}

void shard_set_read(const ShardSet *set, uint64_t first, uint64_t n, int32_t *ids) {
    for (size_t i = n ? find_shard(set, first) : 0; n > 0; i++) {
        uint64_t at = first - set->first[i], n_here = set->shards[i].header.n_tokens - at;
        if (n_here > n) n_here = n;
        shard_read(&set->shards[i], at, n_here, ids);
        ids += n_here;
        first += n_here;
        n -= n_here;
    }
}

/* How many documents of a shard begin at or before a token. */
static uint64_t n_documents_up_to(const ShardSet *set, size_t index, uint64_t token) {
    const uint64_t *documents = shard_documents(&set->shards[index]);
    uint64_t low = 0, high = set->shards[index].header.n_documents;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (set->first[index] + documents[middle] <= token) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The last one that begins at or before a token of shard `index`. */
static bool document_before(const ShardSet *set, size_t index, uint64_t token, uint64_t *start) {
    for (size_t i = index + 1; i-- > 0;) {
        uint64_t n = n_documents_up_to(set, i, token);
        if (n == 0) continue;
        *start = set->first[i] + shard_documents(&set->shards[i])[n - 1];
        return true;
    }
    return false;
}

/* The first one that begins after it. */
static bool document_after(const ShardSet *set, size_t index, uint64_t token, uint64_t *start) {
    for (size_t i = index; i < set->n_shards; i++) {
        uint64_t n = n_documents_up_to(set, i, token);
        if (n == set->shards[i].header.n_documents) continue;
        *start = set->first[i] + shard_documents(&set->shards[i])[n];
        return true;
    }
    return false;
}

bool shard_set_nearest_document(const ShardSet *set, uint64_t token, uint64_t *start) {
    size_t index = find_shard(set, token);
    uint64_t before = 0, after = 0;
    bool has_before = document_before(set, index, token, &before);
    bool has_after = document_after(set, index, token, &after);
    if (!has_before && !has_after) return false;
    *start = !has_after || (has_before && token - before <= after - token) ? before : after;
    return true;
}
