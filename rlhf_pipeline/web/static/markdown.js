// Renders Markdown as DOM nodes: Lezer parses it, and each node of its tree becomes an element that
// is made here, by createElement alone.
//
// Every text node is a slice of the source and knows where it begins (`startOf`), so that a
// selection in the rendered text is a span of the source, whichever way it is shown. Links are
// shown as text with their address behind them; images are never loaded; HTML stays text. KaTeX
// draws formulas, whose text nodes are hidden then.

import { draw, findFormulas, hideFormulas } from "./formulas.js";
import { Strikethrough, Table, parser } from "./vendor/lezer.min.js";

const DEEPEST = 24; // levels of the tree, two for each list or quote
const LONGEST_BLOCK = 20_000; // characters; longer ones are shown without emphasis
const PLAIN = ["Autolink", "Entity", "HTMLBlock", "HTMLTag", "LinkReference"];
const ELEMENTS = {
  Paragraph: "p", Blockquote: "blockquote", BulletList: "ul", OrderedList: "ol", ListItem: "li",
  Emphasis: "em", StrongEmphasis: "strong", Strikethrough: "del", InlineCode: "code",
  HorizontalRule: "hr", TableRow: "tr",
};
const UNSEEN = new Set([
  "CodeInfo", "CodeMark", "EmphasisMark", "HeaderMark", "ListMark", "QuoteMark",
  "StrikethroughMark", "TableDelimiter",
]);
// Characters between the children of these nodes are markup, not text.
const FRAMES = new Set([
  "Document", "Blockquote", "BulletList", "OrderedList", "ListItem", "HorizontalRule", "CodeBlock",
  "FencedCode", "Table", "TableHeader", "TableRow",
]);

const markdown = parser.configure([Table, Strikethrough, { remove: PLAIN }]);
const parseInline = markdown.parseInline.bind(markdown);
markdown.parseInline = (text, at) => (text.length > LONGEST_BLOCK ? [] : parseInline(text, at));
const starts = new WeakMap();

/** A fragment that shows `raw`; `marks` are spans {start, end, sign, isDifferent} of it, sorted,
 * none overlapping; it stands below a heading of `level`. */
export function render(raw, { marks = [], isRaw = false, level = 2 } = {}) {
  const painter = new Painter(raw, marks, level);
  const fragment = document.createDocumentFragment();
  if (isRaw) painter.text(element(fragment, "div", "raw"), 0, raw.length);
  else painter.paintAll(fragment);
  return fragment;
}

/** Offset in the source at which a text node begins; undefined for nodes of other origin. */
export function startOf(node) {
  return starts.get(node);
}

function element(parent, name, className = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function highlight(parent, { sign, isDifferent, unseen }) {
  const names = [{ "+": "plus", "-": "minus" }[sign], isDifferent && "differs"];
  const made = element(parent, "mark", names.filter(Boolean).join(" "));
  if (unseen) made.dataset.unseen = unseen; // style.css shows it
  return made;
}

class Painter {
  constructor(raw, marks, level) {
    this.raw = raw;
    this.marks = marks;
    this.above = level;
    this.level = level; // of the heading before
    this.formulas = []; // that are still to be painted
    this.drawings = [];
  }

  paintAll(parent) {
    this.formulas = findFormulas(this.raw);
    const tree = markdown.parse(hideFormulas(this.raw, this.formulas));
    this.formulas.reverse();
    this.paint(parent, tree.topNode, 0);
    draw(this.drawings);
  }

  /** The slice as text nodes, split where marks begin and end. */
  text(parent, start, end) {
    let at = start;
    for (const mark of this.marks) {
      if (mark.end <= at) continue;
      if (mark.start >= end) break;
      if (mark.start > at) this.node(parent, at, mark.start);
      const to = Math.min(end, mark.end);
      this.node(highlight(parent, mark), Math.max(at, mark.start), to);
      at = to;
    }
    if (at < end) this.node(parent, at, end);
  }

  node(parent, start, end) {
    const made = document.createTextNode(this.raw.slice(start, end));
    starts.set(made, start);
    parent.append(made);
  }

  /** Prose, and the formulas in it. */
  write(parent, start, end) {
    let at = start;
    while (this.formulas.length && this.formulas.at(-1).start < end) {
      const formula = this.formulas.pop();
      if (formula.start < at) continue; // one that Markdown took for code
      this.prose(parent, at, formula.start);
      this.formula(parent, formula);
      at = formula.end;
    }
    this.prose(parent, at, end);
  }

  /** A mark of a part is one of the whole formula. */
  formula(parent, { start, end, tex, isDisplay }) {
    if (tex === undefined) return this.text(parent, start, end);
    const mark = this.marks.find((one) => one.start < end && one.end > start);
    const around = mark ? highlight(parent, mark) : parent;
    const box = element(around, "span", isDisplay ? "formula display" : "formula");
    this.node(element(box, "span", "tex"), start, end);
    this.drawings.push({ box, tex, isDisplay });
  }

  /** The slice without the blanks at the beginning of its lines. */
  prose(parent, start, end) {
    for (let at = start; at < end; ) {
      const isLineStart = at === 0 || /[\n>]/.test(this.raw[at - 1]);
      if (isLineStart) while (at < end && /[ \t]/.test(this.raw[at])) at += 1;
      const to = Math.min(end, this.raw.indexOf("\n", at) + 1 || end);
      this.text(parent, at, to);
      at = to;
    }
  }

  /** The parts of a node from `at` to `end`, and the text between them. */
  paint(parent, node, depth, at = node.from, end = node.to) {
    const write = FRAMES.has(node.name) ? () => {} : (from, to) => this.write(parent, from, to);
    for (let child = node.childAfter(at); child && child.to <= end; child = child.nextSibling) {
      write(at, child.from);
      this.child(parent, child, depth + 1);
      at = child.to;
    }
    write(at, end);
  }

  child(parent, node, depth) {
    const { name, from, to } = node;
    if (UNSEEN.has(name)) return;
    if (depth > DEEPEST || name === "CodeText") this.text(parent, from, to);
    else if (name === "Escape")
      this.text(parent, this.raw[to - 1] === "\\" ? from : from + 1, to); // TeX outside a formula
    else if (name === "HardBreak") this.text(parent, to - 1, to);
    else if (name === "FencedCode" || name === "CodeBlock")
      this.paint(element(element(parent, "pre"), "code"), node, depth);
    else if (name === "Table") this.table(parent, node, depth);
    else if (name === "Link" || name === "Image") this.link(parent, node, depth);
    else if (/Heading\d$/.test(name)) this.heading(parent, node, depth);
    else this.element(parent, node, depth);
  }

  element(parent, node, depth) {
    const { name } = node;
    const made = ELEMENTS[name] ? element(parent, ELEMENTS[name]) : parent;
    const first = name === "OrderedList" ? parseInt(this.raw.slice(node.from), 10) : 1;
    if (first !== 1) made.start = first;
    this.paint(made, node, depth);
  }

  /** Levels follow each other on the page, whatever the source has. */
  heading(parent, node, depth) {
    this.level = Math.min(6, this.level + 1, this.above + Number(node.name.at(-1)));
    this.paint(element(parent, `h${this.level}`), node, depth);
  }

  table(parent, node, depth) {
    const table = element(element(parent, "div", "table"), "table");
    for (let row = node.firstChild; row; row = row.nextSibling) {
      if (row.name === "TableHeader") this.row(element(table, "thead"), row, "th", depth);
      else if (row.name === "TableRow") this.row(table, row, "td", depth);
    }
  }

  /** The tree has no node for an empty cell. */
  row(parent, node, name, depth) {
    const row = element(parent, "tr");
    let isCellOpen = this.raw[node.from] !== "|";
    for (let part = node.firstChild; part; part = part.nextSibling) {
      if (part.name === "TableCell") this.paint(element(row, name), part, depth + 2);
      else if (isCellOpen) element(row, name);
      isCellOpen = part.name !== "TableCell" && part.to < node.to;
    }
  }

  /** Text and address; brackets without an address are text. */
  link(parent, node, depth) {
    const url = node.getChild("URL");
    if (!url) return this.paint(parent, node, depth);
    const [opening, closing] = node.getChildren("LinkMark");
    const shown = element(parent, "span", node.name.toLowerCase());
    this.paint(shown, node, depth, opening.to, closing.from);
    this.text(element(parent, "span", "address"), url.from, node.to - 1);
  }
}
