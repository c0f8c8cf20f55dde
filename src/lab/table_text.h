/* The text that lab table trains on where the user gives none: as long, as repetitive and of as many
 * different words as that of the older study. */
#ifndef PGPT_LAB_TABLE_TEXT_H
#define PGPT_LAB_TABLE_TEXT_H

#include "base/error.h"

/* About 52,600 tokens and 172 symbols for the tokenizer of words. */
enum { TABLE_TEXT_BYTES = 290599 };

/* Writes a new file of exactly that many bytes. */
Status table_text_write(const char *path, Error *error);

#endif
