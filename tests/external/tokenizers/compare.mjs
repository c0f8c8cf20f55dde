// GPT-2's token ids by pgpt against two other implementations, npm's js-tiktoken and gpt-3-encoder, and cl100k's and
// o200k's against js-tiktoken, which carry the real vocabularies.
//
//   node compare.mjs PGPT PACKAGES SOURCE_ROOT      in a fresh folder
//
// PACKAGES is the folder with the two packages' node_modules. The vocabularies are written out as the files pgpt reads,
// in every format. Then every text is encoded by all, and decoded again by pgpt.
//
// JavaScript has no strings of invalid UTF-8: for such bytes only the way there and back is checked, and the ids are
// compared for what JavaScript makes of them. Its \s differs from Unicode's white space, which GPT-2's own tokenizer
// uses, in two characters, U+0085 and U+FEFF; and characters that this Node.js does not know are left out. The patterns
// of cl100k and o200k run through PCRE2, whose Unicode version is its own, so they are compared on well-known scripts.

import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const [program, packages, sourceRoot] = process.argv.slice(2);
const require = createRequire(path.join(packages, 'node_modules', 'x'));
const { Tiktoken } = require('js-tiktoken/lite');
const gpt3 = require('gpt-3-encoder');
let failures = 0;

function report(name, words) {
    failures++;
    console.log(`FAILED: ${name}: ${words}`);
}

// ---- pgpt

function pgpt(words, input) {
    return execFileSync(program, ['data', ...words], { input, maxBuffer: 1 << 30 });
}

function encode(tokenizer, file) {
    const ids = pgpt(['encode', file, '--tokenizer', tokenizer]).toString().trim();
    return ids === '' ? [] : ids.split(/\s+/).map(Number);
}

function decode(tokenizer, ids) {
    return pgpt(['decode', '--tokenizer', tokenizer], ids.join(' '));
}

// ---- Vocabularies as files

function writeRanks(ranks, file) {
    const lines = [];
    for (const line of ranks.bpe_ranks.split('\n').filter(Boolean)) {
        const [, first, ...tokens] = line.split(' ');
        tokens.forEach((token, i) => lines.push(`${token} ${Number(first) + i}`));
    }
    fs.writeFileSync(file, lines.join('\n') + '\n');
}

const folder = path.dirname(require.resolve('gpt-3-encoder'));
for (const name of ['openai', 'huggingface', 'ranks']) fs.mkdirSync(name);
fs.copyFileSync(path.join(folder, 'encoder.json'), 'openai/encoder.json');
fs.copyFileSync(path.join(folder, 'vocab.bpe'), 'openai/vocab.bpe');
fs.copyFileSync(path.join(folder, 'encoder.json'), 'huggingface/vocab.json');
fs.copyFileSync(path.join(folder, 'vocab.bpe'), 'huggingface/merges.txt');
const encodings = {};
for (const name of ['gpt2', 'cl100k_base', 'o200k_base']) {
    const ranks = require(`js-tiktoken/ranks/${name}`);
    writeRanks(ranks, `ranks/${name}.tiktoken`);
    encodings[name] = new Tiktoken(ranks);
}

// ---- Texts

let seed = 12345;
function random(n) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 4294967296) * n);
}

const pick = (list) => list[random(list.length)];
const many = (n, make) => Array.from({ length: n }, make).join('');

function known(code) {
    if (code >= 0xd800 && code <= 0xdfff) return false;
    return code !== 0x85 && code !== 0xfeff && !/\p{Cn}/u.test(String.fromCodePoint(code));
}

function plane(number) {
    const codes = [];
    for (let code = number << 16; code < (number + 1) << 16; code++) if (known(code)) codes.push(code);
    if (codes.length === 0) return '';
    return many(4000, () => (random(5) ? '' : pick([' ', 'a', '1', '.', '\n', "'s"])) + String.fromCodePoint(pick(codes)));
}

function sources(folder, endings) {
    let text = '';
    for (const entry of fs.readdirSync(folder, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
        const file = path.join(folder, entry.name);
        if (entry.isDirectory()) text += /^(\.|build|node_modules)/.test(entry.name) ? '' : sources(file, endings);
        else if (endings.some((ending) => file.endsWith(ending))) text += fs.readFileSync(file, 'utf8');
    }
    return text;
}

// A book: the words of the project's pages, in an order in which each could follow the one before.
function book(text, nBytes) {
    const words = text.split(/(?<=\s)(?=\S)/);
    const followers = new Map();
    words.forEach((word, i) => {
        if (!followers.has(word)) followers.set(word, []);
        followers.get(word).push(words[(i + 1) % words.length]);
    });
    let result = '';
    for (let word = words[0]; result.length < nBytes; word = pick(followers.get(word))) result += word;
    return result;
}

const pages = sources(sourceRoot, ['.md', 'LICENSE']);
const code = sources(path.join(sourceRoot, 'src'), ['.c', '.h']);
const spaces = [' ', ' ', ' ', '\n', '\t', '\r', '\r\n', '\u00a0', '\u1680', '\u2003', '\u2028', '\u3000', '\v', '\f'];
const emoji = ['😀', '👩‍👩‍👧‍👦', '🏳️‍🌈', '👍🏽', '🇪🇺', '❤️', '✨', '1️⃣', '🫠', 'e\u0301', ' ', ' ok '];
const scripts = [...'abcXYZéßñžŁΩψЖщאبحनमกあカ漢字한글ǅʰªº', '\u0301', '٣', '५', '½', '²', 'Ⅷ', '。', '€', ' ', '\n', "'ll"];
const contractions = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "''", "'", "l'l", ' ', 'we', "don't", 'ſ'];
const texts = {
    empty: '',
    one: 'a',
    english: "It's a truth universally acknowledged, that we'll see 42 of them -- don't you?\nYes.\n\n\tNo!  OK   ",
    pages,
    code,
    emoji: many(3000, () => pick(emoji)),
    spaces: many(5000, () => (random(3) ? many(1 + random(6), () => pick(spaces)) : pick(['x', '7', '!', 'é', '中']))),
    scripts: many(5000, () => pick(scripts)),
    contractions: many(5000, () => pick(contractions)),
    numbers: many(2000, () => pick([' ', ',', '', '']) + random(10 ** (1 + random(9)))),
    special: 'a<|endoftext|>b <|endoftext|> <|endoftext',
    long: 'x'.repeat(300) + ' '.repeat(300) + '='.repeat(300) + '\n'.repeat(300) + '中'.repeat(100) + many(300, () => pick([...'abcde'])),
    book: book(pages + code, 1500000),
};
for (let number = 0; number <= 16; number++) texts[`plane ${number}`] = plane(number);

const bytes = {
    'random bytes': Buffer.from(Array.from({ length: 20000 }, () => random(256))),
    'invalid UTF-8': Buffer.from(
        Array.from({ length: 3000 }, () => [...pick([[0x80], [0xc3], [0xe2, 0x82], [0xf0, 0x9f, 0x90], [0xc0, 0x80],
            [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xff], [0x61], [0x20], [0x20, 0x31], [0], [0xe4, 0xb8, 0xad]])]).flat()),
};
for (const [name, raw] of Object.entries(bytes)) {
    texts[`${name}, as JavaScript reads it`] = [...raw.toString('utf8')].filter((c) => known(c.codePointAt(0))).join('');
}

// ---- Comparing

function compare(name, ours, theirs, whose) {
    let i = 0;
    while (i < ours.length && ours[i] === theirs[i]) i++;
    if (i === ours.length && i === theirs.length) return;
    report(name, `id ${i} is ${ours[i]}, ${whose} has ${theirs[i]}; before it ${ours.slice(Math.max(0, i - 5), i)}`);
}

// gpt-3-encoder's time grows with the square of the text: it gets it in parts, cut where a letter meets a blank.
function encodeInParts(text) {
    const ids = [];
    for (const part of text.match(/[^]{2000,}?[a-z](?= )|[^]+$/g) ?? []) for (const id of gpt3.encode(part)) ids.push(id);
    return ids;
}

const formats = ['openai', 'huggingface', 'huggingface/merges.txt', 'openai/encoder.json', 'ranks/gpt2.tiktoken'];
let nIds = 0;
for (const [name, text] of Object.entries(texts)) {
    fs.writeFileSync('text', text);
    const ours = encode(formats[0], 'text');
    nIds += ours.length;
    compare(name, ours, encodings.gpt2.encode(text, [], []), 'js-tiktoken');
    compare(name, ours, encodeInParts(text), 'gpt-3-encoder');
    if (decode(formats[0], ours).compare(fs.readFileSync('text')) !== 0) report(name, 'does not come back');
    for (const other of ['cl100k_base', 'o200k_base']) {
        if (/^plane|^random/.test(name)) continue;
        const own = encode(`ranks/${other}.tiktoken`, 'text');
        // JavaScript's patterns spell out their contractions: no "'ſ" there.
        if (!text.includes('ſ')) compare(`${name}, ${other}`, own, encodings[other].encode(text, [], []), 'js-tiktoken');
    }
}
for (const [name, raw] of Object.entries(bytes)) {
    fs.writeFileSync('text', raw);
    for (const tokenizer of ['openai', 'ranks/cl100k_base.tiktoken']) {
        if (decode(tokenizer, encode(tokenizer, 'text')).compare(raw) !== 0) report(name, 'does not come back');
    }
}
fs.writeFileSync('text', texts.code);
for (const format of formats) compare(`format ${format}`, encode(format, 'text'), encode(formats[0], 'text'), formats[0]);

console.log(`${Object.keys(texts).length} texts, ${nIds} ids of GPT-2, Unicode ${process.versions.unicode}`);
process.exit(failures ? 1 : 0);
