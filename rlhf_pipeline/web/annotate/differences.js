// Finds the words in which two nearly equal completions differ.

// Words, single signs, and single characters of scripts that are written without spaces.
const TOKEN =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[\p{L}\p{M}\p{N}_]+|\S/gu;
const LARGEST_SHARE = 0.5; // of all words: more differences are no help to a reader
const MOST_CELLS = 4_000_000; // 2,000 words each, 8 MB

/** Spans {start, end} of each text that the other lacks; null if too much differs. */
export function findDifferences(left, right) {
  const a = [...left.matchAll(TOKEN)];
  const b = [...right.matchAll(TOKEN)];
  const edits = findEdits(a.map(String), b.map(String));
  return edits && { a: spansOf(a, edits.a), b: spansOf(b, edits.b) };
}

/** Highlights and differences of one text as marks that do not overlap. */
export function combineMarks(highlights, differences) {
  if (!differences.length) return highlights;
  const edges = [...highlights, ...differences].flatMap(({ start, end }) => [start, end]);
  const bounds = [...new Set(edges)].sort((x, y) => x - y);
  const holds = (start) => (span) => span.start <= start && start < span.end;
  return bounds.slice(0, -1).flatMap((start, i) => {
    const sign = highlights.find(holds(start))?.sign;
    const isDifferent = differences.some(holds(start));
    return sign || isDifferent ? [{ start, end: bounds[i + 1], sign, isDifferent }] : [];
  });
}

/** Indices of the words to remove from `a` and of those to insert from `b`: all but the longest
 * common subsequence. */
function findEdits(a, b) {
  let first = 0; // of the words after those with which both begin
  while (first < a.length && a[first] === b[first]) first += 1;
  const [n, m] = [a.length - first, b.length - first];
  if (n * m > MOST_CELLS) return null;
  // words in common from places i and j on
  const common = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  const isSame = (i, j) => a[first + i] === b[first + j];
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      common[i][j] = isSame(i, j)
        ? common[i + 1][j + 1] + 1
        : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  if (n + m - 2 * common[0][0] > (a.length + b.length) * LARGEST_SHARE) return null;
  const edits = { a: [], b: [] };
  for (let i = 0, j = 0; i < n || j < m; ) {
    if (i < n && j < m && isSame(i, j)) [i, j] = [i + 1, j + 1];
    else if (j === m || (i < n && common[i + 1][j] >= common[i][j + 1])) {
      edits.a.push(first + i);
      i += 1;
    } else {
      edits.b.push(first + j);
      j += 1;
    }
  }
  return edits;
}

/** Neighbouring words as one span. */
function spansOf(tokens, indices) {
  const spans = [];
  let last = -2;
  for (const index of indices) {
    const { 0: word, index: start } = tokens[index];
    if (index === last + 1) spans.at(-1).end = start + word.length;
    else spans.push({ start, end: start + word.length });
    last = index;
  }
  return spans;
}
