// Renders Markdown as DOM nodes, by createElement alone: the text of a completion can become only
// the elements made here.
//
// Every text node is a slice of the source and knows where it begins (`startOf`), so that a
// selection in the rendered text is a span of the source, whichever way it is shown. Links are
// shown as text with their address behind them; images are never loaded; HTML stays text.

const DEEPEST = 8; // lists in quotes in lists
const LONGEST_BLOCK = 20_000; // characters; longer ones are shown without emphasis
const FARTHEST = 2_000; // characters between the two ends of an emphasis
const starts = new WeakMap();

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|\t|$)/;
const TABLE = new RegExp(
  [
    /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*$/, // two columns or more
    /^ {0,3}\|[ \t]*:?-+:?[ \t]*\|[ \t]*$/, // one
  ].map((one) => one.source).join("|"),
);
const PUNCTUATION = /[!-/:-@[-`{-~]/;

/** A fragment that shows `raw`; `marks` are spans {start, end, sign, isDifferent} of it, sorted,
 * none overlapping; it stands below a heading of `level`. */
export function render(raw, { marks = [], isRaw = false, level = 2 } = {}) {
  const painter = new Painter(raw, marks, level);
  const fragment = document.createDocumentFragment();
  if (isRaw) {
    const all = element(fragment, "div", "raw");
    painter.text(all, 0, raw.length);
  } else {
    painter.blocks(fragment, linesOf(raw), 0);
  }
  return fragment;
}

/** Offset in the source at which a text node begins; undefined for nodes of other origin. */
export function startOf(node) {
  return starts.get(node);
}

function element(parent, name, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function classOf({ sign, isDifferent }) {
  const names = [{ "+": "plus", "-": "minus" }[sign], isDifferent && "differs"];
  return names.filter(Boolean).join(" ");
}

function linesOf(raw) {
  const lines = [];
  let start = 0;
  for (;;) {
    const end = raw.indexOf("\n", start);
    if (end < 0) break;
    lines.push({ start, end });
    start = end + 1;
  }
  lines.push({ start, end: raw.length });
  return lines;
}

class Painter {
  constructor(raw, marks, level) {
    this.raw = raw;
    this.marks = marks;
    this.above = level;
    this.level = level; // of the heading before
  }

  textOf(line) {
    return this.raw.slice(line.start, line.end);
  }

  /** The slice as text nodes, split where marks begin and end. */
  text(parent, start, end) {
    let at = start;
    for (const mark of this.marks) {
      if (mark.end <= at) continue;
      if (mark.start >= end) break;
      if (mark.start > at) this.node(parent, at, mark.start);
      const from = Math.max(at, mark.start);
      const to = Math.min(end, mark.end);
      const marked = element(parent, "mark", classOf(mark));
      this.node(marked, from, to);
      at = to;
    }
    if (at < end) this.node(parent, at, end);
  }

  node(parent, start, end) {
    const made = document.createTextNode(this.raw.slice(start, end));
    starts.set(made, start);
    parent.append(made);
  }

  blocks(parent, lines, depth) {
    let i = 0;
    while (i < lines.length) {
      const line = lines[i];
      const said = this.textOf(line);
      const fence = FENCE.exec(said);
      if (said.trim() === "") {
        i += 1;
      } else if (fence) {
        i = this.code(parent, lines, i, fence[1]);
      } else if (HEADING.test(said)) {
        const [opening, marks] = HEADING.exec(said);
        // nothing is left out, whatever the source contains
        this.level = Math.min(6, this.level + 1, this.above + marks.length);
        const heading = element(parent, `h${this.level}`);
        const closing = /[ \t]+#+[ \t]*$/.exec(said.slice(opening.length));
        this.inline(
          heading,
          line.start + opening.length,
          line.end - (closing ? closing[0].length : 0),
          0,
        );
        i += 1;
      } else if (RULE.test(said)) {
        element(parent, "hr");
        i += 1;
      } else if (depth < DEEPEST && QUOTE.test(said)) {
        i = this.quote(parent, lines, i, depth);
      } else if (depth < DEEPEST && ITEM.test(said)) {
        i = this.list(parent, lines, i, depth);
      } else if (
        said.includes("|") &&
        i + 1 < lines.length &&
        TABLE.test(this.textOf(lines[i + 1]))
      ) {
        i = this.table(parent, lines, i);
      } else {
        i = this.paragraph(parent, lines, i, depth);
      }
    }
  }

  code(parent, lines, i, opening) {
    const body = element(element(parent, "pre"), "code");
    const closing = new RegExp(`^ {0,3}\\${opening[0]}{${opening.length},}[ \\t]*$`);
    for (i += 1; i < lines.length; i += 1) {
      const line = lines[i];
      if (closing.test(this.textOf(line))) return i + 1;
      this.text(body, line.start, Math.min(line.end + 1, this.raw.length)); // with its line break
    }
    return i;
  }

  quote(parent, lines, i, depth) {
    const inner = [];
    for (; i < lines.length; i += 1) {
      const opening = QUOTE.exec(this.textOf(lines[i]));
      if (!opening) break;
      inner.push({ start: lines[i].start + opening[0].length, end: lines[i].end });
    }
    this.blocks(element(parent, "blockquote"), inner, depth + 1);
    return i;
  }

  list(parent, lines, i, depth) {
    const first = ITEM.exec(this.textOf(lines[i]));
    const isOrdered = /\d/.test(first[2]);
    const list = element(parent, isOrdered ? "ol" : "ul");
    if (isOrdered && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
    while (i < lines.length) {
      const opening = ITEM.exec(this.textOf(lines[i]));
      if (!opening || /\d/.test(opening[2]) !== isOrdered) break;
      if (RULE.test(this.textOf(lines[i]))) break;
      const width = opening[0].length;
      const inner = [{ start: lines[i].start + width, end: lines[i].end }];
      for (i += 1; i < lines.length; i += 1) {
        const said = this.textOf(lines[i]);
        const indent = said.length - said.trimStart().length;
        const isBlank = said.trim() === "";
        if (isBlank) {
          const after = lines[i + 1] && this.textOf(lines[i + 1]);
          if (
            after === undefined ||
            (after.trim() !== "" && after.length - after.trimStart().length < Math.min(2, width))
          )
            break;
          inner.push({ start: lines[i].end, end: lines[i].end });
        } else if (indent >= Math.min(2, width)) {
          inner.push({ start: lines[i].start + Math.min(indent, width), end: lines[i].end });
        } else if (ITEM.test(said) || FENCE.test(said) || HEADING.test(said) || QUOTE.test(said)) {
          break;
        } else {
          inner.push(lines[i]); // a lazy continuation
        }
      }
      this.blocks(element(list, "li"), inner, depth + 1);
      while (
        i + 1 < lines.length &&
        this.textOf(lines[i]).trim() === "" &&
        ITEM.test(this.textOf(lines[i + 1]))
      )
        i += 1;
    }
    return i;
  }

  table(parent, lines, i) {
    const table = element(element(parent, "div", "table"), "table");
    this.row(element(element(table, "thead"), "tr"), lines[i], "th");
    const body = element(table, "tbody");
    for (i += 2; i < lines.length; i += 1) {
      const said = this.textOf(lines[i]);
      if (said.trim() === "" || !said.includes("|")) break;
      this.row(element(body, "tr"), lines[i], "td");
    }
    return i;
  }

  row(parent, line, name) {
    let { start, end } = line;
    while (start < end && /[ \t]/.test(this.raw[start])) start += 1;
    while (end > start && /[ \t]/.test(this.raw[end - 1])) end -= 1;
    if (this.raw[start] === "|") start += 1;
    if (end > start && this.raw[end - 1] === "|" && this.raw[end - 2] !== "\\") end -= 1;
    let from = start;
    for (let at = start; at <= end; at += 1) {
      if (at < end && !(this.raw[at] === "|" && this.raw[at - 1] !== "\\")) continue;
      this.inline(element(parent, name), from, at, 0);
      from = at + 1;
    }
  }

  paragraph(parent, lines, i, depth) {
    const first = i;
    for (i += 1; i < lines.length; i += 1) {
      const said = this.textOf(lines[i]);
      const nests =
        depth < DEEPEST &&
        (QUOTE.test(said) || (ITEM.test(said) && /\S/.test(said.replace(ITEM, ""))));
      if (
        said.trim() === "" ||
        FENCE.test(said) ||
        HEADING.test(said) ||
        RULE.test(said) ||
        nests
      )
        break;
    }
    const made = element(parent, "p");
    let from = first;
    for (let k = first; k < i; k += 1) {
      // Lines that follow each other in the source are read as one; in quotes and lists each by
      // itself.
      if (k + 1 < i && lines[k + 1].start === lines[k].end + 1) continue;
      this.inline(made, lines[from].start, lines[k].end, 0);
      if (k + 1 < i) this.text(made, lines[k].end, lines[k].end + 1);
      from = k + 1;
    }
    return i;
  }

  inline(parent, start, end, depth) {
    if (end - start > LONGEST_BLOCK || depth > DEEPEST) {
      this.text(parent, start, end);
      return;
    }
    const { raw } = this;
    let plain = start; // since where nothing was emitted yet
    let i = start;
    const flush = () => plain < i && this.text(parent, plain, i);
    const wrap = (name, from, to, after) => {
      flush();
      this.inline(element(parent, name), from, to, depth + 1);
      plain = i = after;
    };
    while (i < end) {
      const c = raw[i];
      if (c === "\\" && i + 1 < end && PUNCTUATION.test(raw[i + 1])) {
        flush();
        plain = i + 1;
        i += 2;
      } else if (c === "`") {
        const run = this.run(i, end, "`");
        const closing = this.closingRun(i + run, Math.min(end, i + FARTHEST), run);
        if (closing < 0) {
          i += run;
        } else {
          flush();
          this.text(element(parent, "code"), i + run, closing);
          plain = i = closing + run;
        }
      } else if (c === "*" || c === "_" || c === "~") {
        const run = this.run(i, end, c);
        const width = Math.min(run, 2);
        const opens =
          run <= 3 &&
          i + run < end &&
          /\S/.test(raw[i + run]) &&
          (c !== "_" || i === start || !/\w/.test(raw[i - 1]));
        const closing =
          opens && (c !== "~" || run === 2)
            ? this.closing(i + width, Math.min(end, i + FARTHEST), c, width)
            : -1;
        if (closing < 0) i += run;
        else
          wrap(
            c === "~" ? "del" : width === 2 ? "strong" : "em",
            i + width,
            closing,
            closing + width,
          );
      } else if (c === "[" || (c === "!" && raw[i + 1] === "[")) {
        const link = this.link(i, end);
        if (!link) {
          i += 1;
        } else {
          flush();
          const shown = element(parent, "span", c === "!" ? "image" : "link");
          this.inline(shown, link.text[0], link.text[1], depth + 1);
          const address = element(parent, "span", "address");
          this.text(address, link.address[0], link.address[1]);
          plain = i = link.end;
        }
      } else {
        i += 1;
      }
    }
    flush();
  }

  run(i, end, c) {
    let n = 0;
    while (i + n < end && this.raw[i + n] === c) n += 1;
    return n;
  }

  closingRun(from, end, n) {
    for (let at = this.raw.indexOf("`", from); at >= 0 && at < end; ) {
      const run = this.run(at, end, "`");
      if (run === n) return at;
      at = this.raw.indexOf("`", at + run);
    }
    return -1;
  }

  /** End of the emphasis that began before `from`. */
  closing(from, end, c, width) {
    for (let at = this.raw.indexOf(c, from); at >= 0 && at < end; ) {
      const run = this.run(at, end, c);
      const closes = run === width || (run === 3 && width < 3);
      const isWordEnd = c !== "_" || at + run >= end || !/\w/.test(this.raw[at + run]);
      if (closes && at > from && /\S/.test(this.raw[at - 1]) && isWordEnd)
        return run === 3 && width === 1 ? at + 2 : at;
      at = this.raw.indexOf(c, at + run);
    }
    return -1;
  }

  /** [text](address), without nested brackets. */
  link(i, end) {
    const from = this.raw.indexOf("[", i) + 1;
    const limit = Math.min(end, from + FARTHEST);
    const closing = this.raw.indexOf("](", from);
    if (closing < 0 || closing >= limit) return null;
    if (this.raw.slice(from, closing).includes("[")) return null;
    const last = this.raw.indexOf(")", closing + 2);
    if (last < 0 || last >= limit || last === closing + 2) return null;
    const address = this.raw.slice(closing + 2, last);
    return /\n/.test(address)
      ? null
      : { text: [from, closing], address: [closing + 2, last], end: last + 1 };
  }
}
