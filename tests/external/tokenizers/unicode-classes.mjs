// Writes src/data/tokenizer/pretokenize_unicode.c: which characters are letters, numbers and white space, by the Unicode
// version of the Node.js that runs this.
//
//   node tests/external/tokenizers/unicode-classes.mjs > src/data/tokenizer/pretokenize_unicode.c
//
// White space is Unicode's White_Space property, not JavaScript's \s, which leaves out U+0085 and takes in U+FEFF.

const classes = [
    [/\p{L}/u, 1],
    [/\p{N}/u, 2],
    [/\p{White_Space}/u, 3],
];

function classOf(code) {
    if (code >= 0xd800 && code <= 0xdfff) return 0; // no characters, and UTF-8 has no form for them
    const text = String.fromCodePoint(code);
    for (const [pattern, number] of classes) if (pattern.test(text)) return number;
    return 0;
}

const changes = [];
let previous = 0;
for (let code = 0; code <= 0x10ffff; code++) {
    const now = classOf(code);
    if (now !== previous) changes.push('0x' + (code * 4 + now).toString(16).toUpperCase());
    previous = now;
}
if (previous !== 0) changes.push('0x' + (0x110000 * 4).toString(16).toUpperCase());

const lines = [];
for (let i = 0; i < changes.length; i += 12) lines.push('    ' + changes.slice(i, i + 12).join(', ') + ',');
console.log(`/* Letters, numbers and white space of Unicode ${process.versions.unicode}, as the places where the class changes: code point
 * times 4, plus the class that starts there (PretokenizerClass).
 *
 * Compiled in, so that a tokenizer gives the same ids on every machine, whatever Unicode version its PCRE2 has.
 * Written by tests/external/tokenizers/unicode-classes.mjs. */
#include "data/tokenizer/pretokenize_parts.h"

/* clang-format off */
const uint32_t pretokenizer_class_changes[] = {
${lines.join('\n')}
};
/* clang-format on */

const size_t pretokenizer_n_class_changes = ${changes.length};`);
