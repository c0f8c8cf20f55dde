/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
 *
 * A byte that does not start a valid character is a character of its own here, numbered beyond Unicode, so
 * that every sequence of bytes is a sequence of characters and comes back unchanged. */
#ifndef PGPT_BASE_TEXT_UTF8_H
#define PGPT_BASE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_N_UNICODE    0x110000u                 /* code points are below this */
#define UTF8_N_CHARACTERS (UTF8_N_UNICODE + 0x100u) /* and stray byte b is UTF8_N_UNICODE + b */

/* The bytes a character takes that starts with this one, 0 if none does. */
static inline size_t utf8_expected_bytes(unsigned char first) {
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    if (first < 0xE0) return 2;
    if (first < 0xF0) return 3;
    return first < 0xF5 ? 4 : 0;
}

/* The character at the start of n_bytes >= 1 bytes and how many of them it takes. */
static inline uint32_t utf8_decode(const char *text, size_t n_bytes, size_t *n_used) {
    const unsigned char *bytes = (const unsigned char *)text;
    size_t n = utf8_expected_bytes(bytes[0]);
    *n_used = 1;
    if (n == 1) return bytes[0];
    if (n == 0 || n > n_bytes) return UTF8_N_UNICODE + bytes[0];
    uint32_t code = bytes[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((bytes[i] & 0xC0) != 0x80) return UTF8_N_UNICODE + bytes[0];
        code = code << 6 | (bytes[i] & 0x3Fu);
    }
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    bool valid = code >= smallest[n] && code < UTF8_N_UNICODE && (code < 0xD800 || code > 0xDFFF);
    if (!valid) return UTF8_N_UNICODE + bytes[0];
    *n_used = n;
    return code;
}

/* The bytes of a character (at most 4); returns how many. */
static inline size_t utf8_encode(uint32_t code, char bytes[4]) {
    if (code < 0x80 || code >= UTF8_N_UNICODE) {
        bytes[0] = (char)(code >= UTF8_N_UNICODE ? code - UTF8_N_UNICODE : code);
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
    bytes[0] = (char)((0xF00u >> n & 0xFF) | code);
    return n;
}

/* Whether all bytes are UTF-8. */
static inline bool utf8_valid(const char *text, size_t n_bytes) {
    for (size_t at = 0, n; at < n_bytes; at += n) {
        if (utf8_decode(text + at, n_bytes - at, &n) >= UTF8_N_UNICODE) return false;
    }
    return true;
}

#endif
