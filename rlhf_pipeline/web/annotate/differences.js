// Finds the words in which two nearly equal completions differ.

// Words, single signs, and single characters of scripts that are written without spaces.
const TOKEN =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[\p{L}\p{M}\p{N}_]+|\S/gu;
const LARGEST_SHARE = 0.5; // of all words: more differences are no help to a reader
const MOST_EDITS = 600; // 180,000 steps

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

/** Indices of the words to remove from `a` and of those to insert from `b`: the fewest (Myers 1986,
 * "An O(ND) difference algorithm"). */
function findEdits(a, b) {
  const most = Math.min(MOST_EDITS, Math.floor((a.length + b.length) * LARGEST_SHARE));
  const middle = most + 1;
  const farthest = new Int32Array(2 * most + 3); // in `a`, by diagonal
  const history = [];
  for (let n = 0; n <= most; n += 1) {
    history.push(farthest.slice());
    for (let diagonal = -n; diagonal <= n; diagonal += 2) {
      let i = comesFromInsertion(farthest, middle, diagonal, n)
        ? farthest[middle + diagonal + 1]
        : farthest[middle + diagonal - 1] + 1;
      while (i < a.length && i - diagonal < b.length && a[i] === b[i - diagonal]) i += 1;
      farthest[middle + diagonal] = i;
      if (i >= a.length && i - diagonal >= b.length) return walkBack(history, middle, a, b);
    }
  }
  return null;
}

function comesFromInsertion(farthest, middle, diagonal, n) {
  return (
    diagonal === -n ||
    (diagonal !== n && farthest[middle + diagonal - 1] < farthest[middle + diagonal + 1])
  );
}

function walkBack(history, middle, { length: i }, { length: j }) {
  const edits = { a: [], b: [] };
  for (let n = history.length - 1; n > 0; n -= 1) {
    const before = history[n];
    const diagonal = i - j;
    const isInsertion = comesFromInsertion(before, middle, diagonal, n);
    const from = isInsertion ? diagonal + 1 : diagonal - 1;
    i = before[middle + from];
    j = i - from;
    if (isInsertion) edits.b.push(j);
    else edits.a.push(i);
  }
  return { a: edits.a.reverse(), b: edits.b.reverse() };
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
