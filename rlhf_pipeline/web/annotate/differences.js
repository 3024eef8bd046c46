// Finds the words in which two nearly equal completions differ, and what no reader could see.

// Words, single signs, and single characters of scripts that are written without spaces; each with
// the blanks and invisible characters before it. The last token of a text has no word.
const TOKEN = new RegExp(
  String.raw`([\s\p{DI}\p{Cf}\p{Cc}]*)(` +
    [
      String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]`,
      String.raw`[\p{L}\p{M}\p{N}_][\p{L}\p{M}\p{N}\p{DI}\p{Cf}_]*`,
      String.raw`(?![\p{DI}\p{Cf}\p{Cc}])\S\p{M}*`,
      "$",
    ].join("|") + ")", "gu",
);
const UNSEEN = /[\s\p{DI}\p{Cf}\p{Cc}]/gu;
const NAMES = { " ": "·", "\t": "→", "\n": "↵", "\r": "CR", "\u00a0": "NBSP" };
const MOST_NAMES = 12; // of unseen characters in a row
const LARGEST_SHARE = 0.5; // of all words: more differences are no help to a reader
const MOST_CELLS = 4_000_000; // 2,000 words each, 8 MB

/** Spans {start, end} of each text that the other lacks; those with `unseen` look the same in both
 * texts, and name the characters that differ. `isUnseen` tells whether there are such; null if too
 * much differs. */
export function findDifferences(left, right) {
  const [a, b] = [left, right].map(splitTokens);
  const pairs = alignTokens(a, b);
  if (pairs === null) return null;
  const [ofA, ofB] = [0, 1].map((side) => new Set(pairs.map((pair) => pair[side])));
  const spans = { a: spansOf(a, ofA), b: spansOf(b, ofB) };
  pairs.forEach(([i, j], n) => {
    const [before, also] = pairs[n - 1] ?? [-1, -1];
    const isNext = before === i - 1 && also === j - 1;
    const isSame = (part) => a[i][part].text === b[j][part].text;
    for (const part of [isNext && "gap", "word"]) {
      if (!part || isSame(part)) continue;
      spans.a.push(nameUnseen(a[i][part]));
      spans.b.push(nameUnseen(b[j][part]));
    }
  });
  const [inA, inB] = [spans.a, spans.b].map((some) =>
    some.filter(({ start, end }) => start < end).sort((x, y) => x.start - y.start),
  );
  return { a: inA, b: inB, isUnseen: [...inA, ...inB].some(({ unseen }) => unseen) };
}

/** Highlights and differences of one text as marks that do not overlap. */
export function combineMarks(highlights, differences) {
  if (!differences.length) return highlights;
  const edges = [...highlights, ...differences].flatMap(({ start, end }) => [start, end]);
  const bounds = [...new Set(edges)].sort((x, y) => x - y);
  const holds = (start) => (span) => span.start <= start && start < span.end;
  return bounds.slice(0, -1).flatMap((start, i) => {
    const sign = highlights.find(holds(start))?.sign;
    const difference = differences.find(holds(start));
    if (!sign && !difference) return [];
    const unseen = difference?.start === start ? difference.unseen : undefined;
    return [{ start, end: bounds[i + 1], sign, isDifferent: Boolean(difference), unseen }];
  });
}

function splitTokens(text) {
  const tokens = [];
  for (const { 1: gap, 2: word, index } of text.matchAll(TOKEN)) {
    const at = index + gap.length;
    tokens.push({
      gap: { text: gap, start: index, end: at },
      word: { text: word, start: at, end: at + word.length },
      key: word.replace(UNSEEN, "").normalize("NFC"),
    });
    if (!word) break;
  }
  return tokens;
}

/** The span with names of its characters that are invisible, or written in several ways. */
function nameUnseen({ text, start, end }) {
  const names = [...text]
    .filter((char) => /[\s\p{DI}\p{Cf}\p{Cc}\p{M}]/u.test(char) || char.normalize("NFD") !== char)
    .map((char) => NAMES[char] ?? `U+${char.codePointAt(0).toString(16).padStart(4, "0")}`);
  const more = names.length > MOST_NAMES ? "…" : "";
  const unseen = names.slice(0, MOST_NAMES).join("\u2009").toUpperCase() + more;
  return { start, end, unseen };
}

/** Indices [i, j] of the longest common subsequence of words; null if it is too short or takes too
 * long to find. */
function alignTokens(a, b) {
  const isSame = (i, j) => a[i].key === b[j].key;
  const pairs = [];
  let first = 0; // of the words after those with which both begin
  while (first < a.length && first < b.length && isSame(first, first)) pairs.push([first, first++]);
  const [n, m] = [a.length - first, b.length - first];
  if (n * m > MOST_CELLS) return null;
  // words in common from places i and j on
  const common = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      common[i][j] = isSame(first + i, first + j)
        ? common[i + 1][j + 1] + 1
        : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  // each text has a last token without a word
  if (n + m - 2 * common[0][0] > (a.length + b.length - 2) * LARGEST_SHARE) return null;
  for (let i = 0, j = 0; i < n && j < m; ) {
    if (isSame(first + i, first + j)) pairs.push([first + i++, first + j++]);
    else if (common[i + 1][j] >= common[i][j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

/** Words that are in no pair; neighbouring ones as one span. */
function spansOf(tokens, paired) {
  const spans = [];
  let last = -2;
  tokens.forEach(({ word: { start, end } }, index) => {
    if (paired.has(index)) return;
    if (index === last + 1) spans.at(-1).end = end;
    else spans.push({ start, end });
    last = index;
  });
  return spans;
}
