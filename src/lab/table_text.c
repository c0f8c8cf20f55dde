/* One paragraph, over and over, cut off at the last byte: what matters to the clock is the number of tokens
 * and of symbols, and to the loss that everything comes again. */
#include "lab/table_text.h"

#include "base/file/file.h"

#include <string.h>

static const char PARAGRAPH[] =
    "Beyond the northern lighthouse travelling merchants exchanged stories about forgotten "
    "instruments, mechanical orchestras and libraries without librarians. Every visitor remembered "
    "something different: lanterns above the crowded harbours, musicians with impossible melodies, "
    "cartographers who measured invisible mountains. Several generations later nobody could tell what "
    "had been seen from what had been invented, for each story had been told again and again, and "
    "each sentence was polished until all of it was easy to believe. The engineers of the harbour "
    "collected these stories, one at a time, and wrote them down in the order in which they came. "
    "Their notebooks described calculating machines, gardens inside abandoned railway stations and "
    "elephants carrying porcelain through thunderstorms. When a page was lost, another visitor came "
    "to tell it again; when the visitor was not sure, the children of the harbour were glad to help "
    "with the details. In the end the notebooks filled all of the rooms, and the engineers began to "
    "count the words. The frequent words were neighbours of each other, the uncommon words were far "
    "apart, and the punctuation stood between them like a gatekeeper. One of them said that a machine "
    "could be taught to go on where the stories had stopped. The first machine produced nonsense, the "
    "second produced rhythm, and the third produced something like a conversation. Summer went by, "
    "then a long winter. It was slow, it was expensive, and it was strangely satisfying. A visitor "
    "asked if the machine understood what it said; the engineers answered that this was what they had "
    "to measure. Until then they repeated the experiment, adjusted the weights, and waited.\n";

Status table_text_write(const char *path, Error *error) {
    FileWriter writer;
    TRY(file_writer_open(&writer, path, error));
    for (size_t n_left = TABLE_TEXT_BYTES; n_left > 0 && error->status == STATUS_OK;) {
        size_t n = strlen(PARAGRAPH) < n_left ? strlen(PARAGRAPH) : n_left;
        file_writer_write(&writer, PARAGRAPH, n, error);
        n_left -= n;
    }
    if (error->status == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}
