// Highlighted spans of a completion that count for or against it.
//
// In the page, offsets count UTF-16 units of the source, as JavaScript does; in requests they
// count code points, as the server does.

import { startOf } from "../markdown.js";

/** The marks with one more; where it meets others, it replaces them. The same mark once more takes
 * it away. */
export function marked(marks, start, end, sign) {
  if (marks.some((m) => m.start === start && m.end === end && m.sign === sign))
    return without(marks, start, end);
  return [...without(marks, start, end), { start, end, sign }].sort((a, b) => a.start - b.start);
}

/** Marks without a span. */
export function without(marks, start, end) {
  const left = [];
  for (const mark of marks) {
    if (mark.end <= start || mark.start >= end) {
      left.push(mark);
    } else {
      if (mark.start < start) left.push({ ...mark, end: start });
      if (mark.end > end) left.push({ ...mark, start: end });
    }
  }
  return left;
}

/** The marks of one side in the form of the API. */
export function asSent(raw, marks, side) {
  let at = 0;
  let points = 0;
  const pointsAt = (offset) => {
    while (at < offset) {
      at += raw.codePointAt(at) > 0xffff ? 2 : 1;
      points += 1;
    }
    return points;
  };
  return marks.map(({ start, end, sign }) => ({
    side,
    start: pointsAt(start),
    end: pointsAt(end),
    sign,
  }));
}

/** What of `pane` is selected, as a span of its source without the blanks around it; null where
 * nothing is. */
export function selectedSpan(pane, raw) {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed || selection.rangeCount === 0) return null;
  const range = selection.getRangeAt(0);
  if (!range.intersectsNode(pane)) return null;
  let start = null;
  let end = null;
  const walker = document.createTreeWalker(pane, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const from = startOf(node);
    const formula = node.parentElement.closest(".formula"); // selected as a whole
    if (from === undefined || !range.intersectsNode(formula ?? node)) continue;
    const first = node === range.startContainer && !formula ? range.startOffset : 0;
    const last = node === range.endContainer && !formula ? range.endOffset : node.length;
    if (last <= first) continue;
    if (start === null) start = from + first;
    end = from + last;
  }
  if (start === null) return null;
  // Do not split a surrogate pair.
  if (start > 0 && isLow(raw, start)) start -= 1;
  if (end < raw.length && isLow(raw, end)) end += 1;
  while (start < end && /\s/.test(raw[start])) start += 1;
  while (end > start && /\s/.test(raw[end - 1])) end -= 1;
  return start < end ? { start, end } : null;
}

function isLow(raw, at) {
  const unit = raw.charCodeAt(at);
  return unit >= 0xdc00 && unit <= 0xdfff;
}

/** Select the first word of a pane, for keyboards. */
export function selectFirstWord(pane) {
  const selection = document.getSelection();
  selection.selectAllChildren(pane);
  selection.collapseToStart();
  selection.modify("extend", "forward", "word");
}

/** Move the selection, or only its end, by a word or a line. */
export function moveSelection(pane, direction, granularity, extends_) {
  const selection = document.getSelection();
  if (!selection.anchorNode || !pane.contains(selection.anchorNode)) {
    selectFirstWord(pane);
    return;
  }
  if (extends_) {
    selection.modify("extend", direction, granularity);
  } else {
    if (direction === "forward") selection.collapseToEnd();
    else selection.collapseToStart();
    if (granularity === "line") selection.modify("move", direction, "line");
    if (direction === "backward" && granularity === "word")
      selection.modify("move", "backward", "word");
    selection.modify("extend", "forward", "word");
  }
  if (!pane.contains(selection.focusNode)) selectFirstWord(pane);
}
