/* A folder's tensors, from whatever files they lie in, by the names of the parameter table.
 *
 * The files are opened and checked one by one (safetensors_open), then all their tensors go into one sorted
 * list under the names that we use. A name that turns up twice, in one file with and without prefix or in two
 * files, is refused, since nobody could say which is meant. Causal masks, which older versions of
 * transformers saved beside the weights, are no parameters and are left out of the list.
 *
 * Matrices of the blocks are turned as they are read, a band of rows at a time, so that besides the tensor
 * that is asked for only the band is in memory. */
#include "huggingface/huggingface.h"

#include "base/system/memory.h"
#include "huggingface/huggingface_layout.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { INDEX_LIMIT_BYTES = 4 << 20, MOST_FILES = 500, BAND_ELEMENTS = 1 << 18, SHAPE_BYTES = 160 };

bool huggingface_is_model(const char *folder) {
    Arena arena = {0};
    bool is_there = file_exists(arena_printf(&arena, "%s/%s", folder, HUGGINGFACE_CONFIG));
    arena_free(&arena);
    return is_there;
}

/* ---- files */

static Status open_file(HuggingFaceModel *model, const char *name, Error *error) {
    const char *path = arena_printf(&model->arena, "%s/%s", model->path, name);
    if (safetensors_open(&model->file[model->n_files++], path, error) != STATUS_OK)
        error_suffix(error, "; copy or download the model again");
    return error->status;
}

/* The file of this name, opened when it is met for the first time. */
static Status open_shard(HuggingFaceModel *model, const char *index, const char *name, int *number,
                         Error *error) {
    for (*number = 0; *number < model->n_files; ++*number) {
        const char *path = model->file[*number].path;
        if (strcmp(strrchr(path, '/') + 1, name) == 0) return STATUS_OK;
    }
    if (!*name || name[0] == '.' || strchr(name, '/')) {
        return error_user(error,
                          "%s: field 'weight_map' has '%.80s', which is not the name of a file beside it",
                          index, name);
    }
    if (model->n_files == MOST_FILES) {
        return error_user(error, "%s: field 'weight_map' has more than %d files; save the model in fewer",
                          index, MOST_FILES);
    }
    if (open_file(model, name, error) != STATUS_OK) return error_prefix(error, "%s: ", index);
    return STATUS_OK;
}

static Status read_index(HuggingFaceModel *model, const json_t *object, const char *index, Error *error) {
    json_t *map, *value;
    const char *name;
    TRY(json_field_object(object, index, "weight_map", &map, error));
    if (json_object_size(map) == 0) return error_user(error, "%s: field 'weight_map' is empty", index);
    json_object_foreach(map, name, value) {
        int number;
        if (!json_is_string(value)) {
            return error_user(error, "%s: field 'weight_map': '%.200s' wants the name of a file", index,
                              name);
        }
        TRY(open_shard(model, index, json_string_value(value), &number, error));
        if (safetensors_find(&model->file[number], name)) continue;
        return error_user(error, "%s: tensor '%.200s' should be in %.200s, which does not have it", index,
                          name, json_string_value(value));
    }
    return STATUS_OK;
}

static Status open_index(HuggingFaceModel *model, const char *index, Error *error) {
    json_t *object;
    TRY(json_read(index, INDEX_LIMIT_BYTES, &object, error));
    model->file = ARENA_ARRAY(&model->arena, SafetensorsFile, MOST_FILES + 1);
    read_index(model, object, index, error);
    json_decref(object);
    return error->status;
}

static Status open_files(HuggingFaceModel *model, Error *error) {
    const char *index = arena_printf(&model->arena, "%s/%s", model->path, HUGGINGFACE_INDEX);
    if (file_exists(arena_printf(&model->arena, "%s/%s", model->path, HUGGINGFACE_WEIGHTS))) {
        model->file = ARENA_ARRAY(&model->arena, SafetensorsFile, 1);
        return open_file(model, HUGGINGFACE_WEIGHTS, error);
    }
    if (file_exists(index)) return open_index(model, index, error);
    if (file_exists(arena_printf(&model->arena, "%s/pytorch_model.bin", model->path))) {
        return error_user(
            error,
            "%s has its weights in pytorch_model.bin, which is not read here; save it as safetensors "
            "(save_pretrained of a recent transformers)",
            model->path);
    }
    return error_user(error, "%s has neither %s nor %s; is the download complete?", model->path,
                      HUGGINGFACE_WEIGHTS, HUGGINGFACE_INDEX);
}

/* ---- names */

/* "h.3.attn.bias" and "h.3.attn.masked_bias": causal masks. "...rotary_emb.inv_freq": angles. */
static bool is_made_anew(const char *name) {
    static const char angles[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name), n_angles = sizeof angles - 1;
    if (n > n_angles && strcmp(name + n - n_angles, angles) == 0) return true;
    if (strncmp(name, "h.", 2) != 0) return false;
    const char *rest = name + 2 + strspn(name + 2, "0123456789");
    return rest > name + 2 && (strcmp(rest, ".attn.bias") == 0 || strcmp(rest, ".attn.masked_bias") == 0);
}

static int by_name(const void *a, const void *b) {
    const HuggingFaceTensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static Status list_tensors(HuggingFaceModel *model, Error *error) {
    int64_t n_all = 0;
    for (int i = 0; i < model->n_files; i++) n_all += model->file[i].n_tensors;
    model->tensor = ARENA_ARRAY(&model->arena, HuggingFaceTensor, n_all + 1);
    for (int i = 0; i < model->n_files; i++) {
        for (int k = 0; k < model->file[i].n_tensors; k++) {
            const SafetensorsTensor *tensor = &model->file[i].tensor[k];
            bool has_prefix = strncmp(tensor->name, HUGGINGFACE_PREFIX, strlen(HUGGINGFACE_PREFIX)) == 0;
            const char *name = tensor->name + (has_prefix ? strlen(HUGGINGFACE_PREFIX) : 0);
            if (is_made_anew(name)) continue;
            model->tensor[model->n_tensors++] = (HuggingFaceTensor){name, &model->file[i], tensor};
        }
    }
    qsort(model->tensor, (size_t)model->n_tensors, sizeof *model->tensor, by_name);
    for (int i = 1; i < model->n_tensors; i++) {
        const HuggingFaceTensor *a = &model->tensor[i - 1], *b = &model->tensor[i];
        if (strcmp(a->name, b->name) != 0) continue;
        return error_user(error, "tensor '%.200s' is there twice: as '%.200s' in %s, as '%.200s' in %s",
                          a->name, a->tensor->name, a->file->path, b->tensor->name, b->file->path);
    }
    return STATUS_OK;
}

static const HuggingFaceTensor *find(const HuggingFaceModel *model, const char *name) {
    HuggingFaceTensor wanted = {.name = name};
    return bsearch(&wanted, model->tensor, (size_t)model->n_tensors, sizeof wanted, by_name);
}

/* ---- opening */

static Status check_folder(const char *folder, Error *error) {
    struct stat facts;
    if (stat(folder, &facts) == 0 && !S_ISDIR(facts.st_mode))
        return error_user(error, "%s is a file; name the folder that it lies in", folder);
    if (huggingface_is_model(folder)) return STATUS_OK;
    return error_user(error, "there is no %s/%s; name a folder with a model of Hugging Face", folder,
                      HUGGINGFACE_CONFIG);
}

Status huggingface_open(HuggingFaceModel *model, const char *folder, Error *error) {
    *model = (HuggingFaceModel){0};
    TRY(check_folder(folder, error));
    model->path = arena_strdup(&model->arena, folder);
    const char *path = arena_printf(&model->arena, "%s/%s", folder, HUGGINGFACE_CONFIG);
    TRY_GOTO(huggingface_config_read(path, &model->config, model->note, &model->arena, error), failed);
    TRY_GOTO(open_files(model, error), failed);
    TRY_GOTO(list_tensors(model, error), failed);
    const HuggingFaceTensor *table = find(model, huggingface_token_table(&model->config));
    model->type = table ? table->tensor->type : SAFETENSORS_F32;
    for (int i = 0; i < model->n_tensors; i++) {
        if (model->tensor[i].tensor->type != model->type) model->has_other_types = true;
    }
    return STATUS_OK;
failed:
    huggingface_close(model);
    return error->status;
}

void huggingface_close(HuggingFaceModel *model) {
    for (int i = 0; i < model->n_files; i++) safetensors_close(&model->file[i]);
    arena_free(&model->arena);
    *model = (HuggingFaceModel){0};
}

/* ---- what a table wants */

static Status find_piece(const HuggingFaceModel *model, const HuggingFacePiece *piece,
                         const HuggingFaceTensor **found, Error *error) {
    char has[SHAPE_BYTES], wants[SHAPE_BYTES];
    *found = find(model, piece->name);
    if (!*found) {
        return error_user(error, "%s has no tensor '%s', which its %s asks for", model->path, piece->name,
                          HUGGINGFACE_CONFIG);
    }
    const SafetensorsTensor *tensor = (*found)->tensor;
    Shape shape = piece->stored;
    if (tensor->n_dims != shape.n_dims ||
        memcmp(tensor->dim, shape.dim, sizeof(int64_t) * (size_t)shape.n_dims) != 0) {
        return error_user(error, "%s: tensor '%.200s' has shape %s where %s asks for %s",
                          (*found)->file->path, tensor->name, safetensors_shape(tensor, has, sizeof has),
                          HUGGINGFACE_CONFIG, shape_format(shape, wants, sizeof wants));
    }
    bool is_number = tensor->type == SAFETENSORS_F32 || tensor->type == SAFETENSORS_F16 ||
                     tensor->type == SAFETENSORS_BF16 || tensor->type == SAFETENSORS_F64;
    if (is_number) return STATUS_OK;
    return error_user(error, "%s: tensor '%.200s' is of type %s; only F32, BF16, F16 and F64 are read",
                      (*found)->file->path, tensor->name, safetensors_type_name(tensor->type));
}

/* A head that is saved beside the table it is tied to must be the same, or the folder contradicts itself. */
static Status check_tied_head(const HuggingFaceModel *model, const HuggingFaceTensor *head,
                              const HuggingFaceTensor *table, Error *error) {
    bool is_same =
        head->tensor->type == table->tensor->type && head->tensor->n_bytes == table->tensor->n_bytes;
    size_t piece = BAND_ELEMENTS * sizeof(float);
    void *buffer;
    TRY(memory_alloc(&buffer, 2 * piece, "a comparison of two tensors", error));
    char *a = buffer, *b = a + piece;
    for (uint64_t first = 0; is_same && first < head->tensor->n_bytes; first += piece) {
        uint64_t left = head->tensor->n_bytes - first;
        size_t n = left < piece ? (size_t)left : piece;
        if (safetensors_read(head->file, head->tensor, first, a, n, error) != STATUS_OK ||
            safetensors_read(table->file, table->tensor, first, b, n, error) != STATUS_OK)
            break;
        is_same = memcmp(a, b, n) == 0;
    }
    memory_free(buffer, 2 * piece);
    if (error->status != STATUS_OK || is_same) return error->status;
    return error_user(
        error,
        "%s: tensor '%s' differs from '%s', but %s/%s ties them; set its 'tie_word_embeddings' to false, or "
        "remove the tensor",
        head->file->path, head->tensor->name, table->tensor->name, model->path, HUGGINGFACE_CONFIG);
}

/* The first of the folder's tensors that no parameter asks for, NULL: none. `used` has a mark for each. */
static const HuggingFaceTensor *unused_tensor(const HuggingFaceModel *model, const bool *used) {
    for (int i = 0; i < model->n_tensors; i++)
        if (!used[i]) return &model->tensor[i];
    return NULL;
}

static Status check_tensors(const HuggingFaceModel *model, const ParameterTable *table, Arena *arena,
                            Error *error) {
    const HuggingFaceTensor *found, *head = find(model, HUGGINGFACE_HEAD),
                                    *tokens = find(model, huggingface_token_table(&model->config));
    bool *used = ARENA_ARRAY(arena, bool, model->n_tensors + 1);
    for (int i = 0; i < table->n_parameters; i++) {
        HuggingFacePiece *pieces;
        int n_pieces = huggingface_pieces(&model->config, &table->parameter[i], arena, &pieces);
        for (int k = 0; k < n_pieces; k++) {
            TRY(find_piece(model, &pieces[k], &found, error));
            used[found - model->tensor] = true;
        }
    }
    if (head && model->config.tied) {
        if (tokens) TRY(check_tied_head(model, head, tokens, error));
        used[head - model->tensor] = true;
    }
    bool is_part = table->n_parameters < table->n_whole_parameters; /* what else there is, it cannot know */
    const HuggingFaceTensor *unused = is_part ? NULL : unused_tensor(model, used);
    if (!unused) return STATUS_OK;
    return error_user(error, "%s: tensor '%.200s' is no part of the %s that %s/%s describes",
                      unused->file->path, unused->tensor->name,
                      huggingface_layout_name(huggingface_layout(&model->config)), model->path,
                      HUGGINGFACE_CONFIG);
}

Status huggingface_check(const HuggingFaceModel *model, const ParameterTable *table, Error *error) {
    Arena arena = {0};
    check_tensors(model, table, &arena, error);
    arena_free(&arena);
    return error->status;
}

/* ---- values */

/* Rows first_row .. first_row + n_rows - 1 of (rows,columns) to their places in (columns,rows). */
static void turn(const float *from, int64_t first_row, int64_t n_rows, int64_t rows, int64_t columns,
                 float *to) {
    enum { TILE = 32 };
    for (int64_t top = 0; top < n_rows; top += TILE) {
        int64_t bottom = top + TILE < n_rows ? top + TILE : n_rows;
        for (int64_t column = 0; column < columns; column++) {
            float *line = to + column * rows + first_row;
            for (int64_t row = top; row < bottom; row++) line[row] = from[row * columns + column];
        }
    }
}

/* A box of what is stored, as it lies there: whole rows at once, or of every row its part. */
static Status read_stored(const HuggingFaceTensor *found, const Box *box, float *values, Error *error) {
    const SafetensorsTensor *tensor = found->tensor;
    Shape shape = {.n_dims = tensor->n_dims};
    memcpy(shape.dim, tensor->dim, sizeof(int64_t) * (size_t)shape.n_dims);
    Box all = box_whole(shape);
    int64_t n = shape_count(box->shape), run = n ? box_run(box, &all) : 1;
    for (int64_t first = 0; first < n; first += run) {
        TRY(safetensors_read_f32(found->file, tensor, box_element(box, &all, first), run, values + first,
                                 error));
    }
    return STATUS_OK;
}

/* The box (R,C) of the table's tensor, which is stored as (C,R), a band of its rows there at a time. */
static Status read_turned(const HuggingFaceTensor *found, const Box *box, float *values, Error *error) {
    int64_t rows = box->shape.dim[1], columns = box->shape.dim[0];
    int64_t n_band = BAND_ELEMENTS / columns > 0 ? BAND_ELEMENTS / columns : 1;
    size_t n_bytes = (size_t)(n_band * columns) * sizeof(float);
    void *band;
    TRY(memory_alloc(&band, n_bytes, "a band of a tensor", error));
    for (int64_t row = 0; row < rows; row += n_band) {
        int64_t n = rows - row < n_band ? rows - row : n_band;
        Box stored = {.shape = SHAPE(n, columns), .offset = {box->offset[1] + row, box->offset[0]}};
        TRY_GOTO(read_stored(found, &stored, band, error), done);
        turn(band, row, n, rows, columns, values);
    }
done:
    memory_free(band, n_bytes);
    return error->status;
}

/* What a piece has of a box of ours, into its places among the box's values. */
static Status read_piece(const HuggingFaceModel *model, const HuggingFacePiece *piece, const Box *box,
                         float *values, Error *error) {
    const HuggingFaceTensor *found;
    Box common, stored;
    TRY(find_piece(model, piece, &found, error));
    if (!box_intersect(box, &piece->box, &common)) return STATUS_OK;
    if (piece->is_turned) return read_turned(found, &common, values, error); /* it is all there is */
    int n_dims = piece->stored.n_dims, skipped = common.shape.n_dims - n_dims;
    stored.shape = (Shape){.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        stored.shape.dim[i] = common.shape.dim[skipped + i];
        stored.offset[i] = common.offset[skipped + i] - piece->box.offset[skipped + i];
    }
    Box all = box_whole(piece->stored);
    int64_t n = shape_count(common.shape);
    int64_t run = box_run(&stored, &all), ours = box_run(&common, box);
    if (ours < run) run = ours;
    for (int64_t first = 0; first < n; first += run) {
        TRY(safetensors_read_f32(found->file, found->tensor, box_element(&stored, &all, first), run,
                                 values + box_element(&common, box, first), error));
    }
    return STATUS_OK;
}

/* What the table has of it: box by box. */
Status huggingface_read(const HuggingFaceModel *model, const Parameter *parameter, float *values,
                        Error *error) {
    Arena arena = {0};
    HuggingFacePiece *pieces;
    int n_pieces = huggingface_pieces(&model->config, parameter, &arena, &pieces);
    for (int i = 0; i < parameter->shard.n_boxes && error->status == STATUS_OK; i++) {
        const Box *box = &parameter->shard.box[i].box;
        for (int k = 0; k < n_pieces && error->status == STATUS_OK; k++)
            read_piece(model, &pieces[k], box, values, error);
        values += shape_count(box->shape);
    }
    arena_free(&arena);
    return error->status;
}
