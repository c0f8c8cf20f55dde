/* safetensors files: named tensors, as Hugging Face's format has them.
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON: {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...,
 *               "__metadata__": {...}}, padded with blanks
 *     data      every tensor's bytes, without gaps
 *
 * A file is hostile until it has been checked: safetensors_open accepts a file only if every name is there
 * once, every dtype is known, every size is shape times dtype, and the tensors cover the data exactly.
 * Nothing here knows a model. */
#ifndef PGPT_CHECKPOINT_SAFETENSORS_H
#define PGPT_CHECKPOINT_SAFETENSORS_H

#include "base/arena.h"
#include "base/file/file.h"
#include "checkpoint/checksum.h"

typedef enum {
    SAFETENSORS_F64,
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U64,
    SAFETENSORS_U32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    N_SAFETENSORS_TYPES,
} SafetensorsType;

const char *safetensors_type_name(SafetensorsType type);
size_t safetensors_type_bytes(SafetensorsType type);

enum { SAFETENSORS_MAX_DIMS = 8 };
#define SAFETENSORS_MAX_HEADER_BYTES 100000000u

typedef struct {
    const char *name;
    SafetensorsType type;
    int n_dims;
    int64_t dim[SAFETENSORS_MAX_DIMS];
    uint64_t offset;  /* into the data; the writer fills it in */
    uint64_t n_bytes; /* likewise */
} SafetensorsTensor;

int64_t safetensors_count(const SafetensorsTensor *tensor);

/* "(2,3)"; returns text. */
char *safetensors_shape(const SafetensorsTensor *tensor, char *text, size_t n_bytes);

/* ---- Writing: the tensors are described first, then their bytes follow in the same order, in pieces of any
 * size. The file appears under its name, complete and synced, in commit (see FileWriter). */
typedef struct {
    FileWriter file;
    Checksum checksum;     /* of the whole file */
    uint64_t n_bytes_left; /* of data */
} SafetensorsWriter;

/* `metadata` is key, value, key, value, ..., NULL; it may be NULL. The data begins at a multiple of 64 bytes,
 * or of a smaller power of two: Hugging Face's own writer takes 8, which files that shall be the same to the
 * byte need. */
enum { SAFETENSORS_ALIGNMENT = 64 };
Status safetensors_writer_open(SafetensorsWriter *writer, const char *path, SafetensorsTensor *tensors,
                               int n_tensors, const char *const *metadata, Error *error);
Status safetensors_writer_open_aligned(SafetensorsWriter *writer, const char *path,
                                       SafetensorsTensor *tensors, int n_tensors, const char *const *metadata,
                                       size_t alignment, Error *error);
Status safetensors_writer_write(SafetensorsWriter *writer, const void *bytes, size_t n_bytes, Error *error);
Status safetensors_writer_commit(SafetensorsWriter *writer, Error *error);
void safetensors_writer_abort(SafetensorsWriter *writer); /* after commit too */

/* ---- Reading. */
typedef struct {
    char *path;
    int descriptor;      /* -1 when closed */
    uint64_t data_start; /* in the file */
    Arena arena;
    int n_tensors;
    SafetensorsTensor *tensor;   /* in the order of their data */
    SafetensorsTensor **by_name; /* sorted */
    int n_metadata;
    const char **metadata; /* key, value, key, value, ... */
} SafetensorsFile;

Status safetensors_open(SafetensorsFile *file, const char *path, Error *error);
void safetensors_close(SafetensorsFile *file); /* safe after a failed open, and twice */

/* NULL if the file has none of that name. */
const SafetensorsTensor *safetensors_find(const SafetensorsFile *file, const char *name);
const char *safetensors_metadata(const SafetensorsFile *file, const char *key);

/* Bytes first .. first + n_bytes - 1 of a tensor. Threads may read one file together. */
Status safetensors_read(const SafetensorsFile *file, const SafetensorsTensor *tensor, uint64_t first_byte,
                        void *bytes, size_t n_bytes, Error *error);

/* Elements first .. first + n - 1 as f32; from F32, BF16 or F16 exactly, from F64 rounded. Other types are
 * refused. */
bool safetensors_reads_as_f32(SafetensorsType type);
Status safetensors_read_f32(const SafetensorsFile *file, const SafetensorsTensor *tensor, int64_t first,
                            int64_t n, float *values, Error *error);

#endif
