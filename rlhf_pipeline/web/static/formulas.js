// Finds the formulas of a text, and draws them by KaTeX, which loads once a text has one.
//
// Markdown must not read a formula: it would take `\\` and `*` in it for its own. What stands in
// code is none, nor is a price: `$5 and $6`.

const LONGEST = 5_000; // characters
const MOST = 500; // formulas of a text, each of which takes a millisecond to draw
// lines that fence code, code, environments, escaped characters, dollars, and blank lines
const TOKENS = [
  /^ {0,3}(?:`{3,}(?=[^`\n]*$)|~{3,})/, /`+/, /\\(?:begin|end)\{[a-zA-Z]+\*?\}/, /\\[^]/, /\$+/,
  /\n[ \t]*(?=\n)/,
];
const TOKEN = new RegExp(TOKENS.map(({ source }) => source).join("|"), "gm");
const BLANK = /^\n/;
const NONE = /(?!)/;
// What closes each opening, and what leaves it a plain text.
const PAIRS = {
  "\\(": { closing: "\\)", stop: /^\\[([]|^\n/ },
  "\\[": { closing: "\\]", stop: /^\\\[/ },
  $$: { closing: "$$", stop: /^\n|^\${3}/ },
  $: { closing: "$", stop: /^\\[([]|^[`$\n]/ },
};
const OPTIONS = { output: "html", maxSize: 20, maxExpand: 500, strict: "ignore" };

/** Formulas {start, end, tex, isDisplay} of `raw` in order; one that the end of the text cuts off,
 * or that is too long to draw, has no `tex`. */
export function findFormulas(raw) {
  if (!/\$|\\[([b]/.test(raw)) return [];
  const tokens = [...raw.matchAll(TOKEN)];
  const formulas = [];
  const unclosed = new Set(); // openings that nothing closes in the rest of the text
  for (let i = 0; i < tokens.length; i += 1) {
    const opening = tokens[i][0].trim();
    const pair = pairOf(opening);
    if (!pair || unclosed.has(opening) || !opens(raw, tokens[i])) continue;
    const last = findClosing(tokens, i, opening, pair);
    if (last === null) continue;
    const closing = tokens[last];
    if (!closing) unclosed.add(opening);
    if (/^[`~]/.test(opening)) {
      i = closing ? last : pair.isFence ? tokens.length : i;
      continue;
    }
    const start = tokens[i].index;
    const end = closing ? closing.index + closing[0].length : raw.length;
    const content = raw.slice(start, end);
    if (closing ? !isFormula(raw, start, end, opening) : !isCutOff(content)) continue;
    formulas.push({ start, end, ...(closing && readTex(raw, start, content, opening)) });
    i = last;
  }
  return formulas;
}

function pairOf(opening) {
  if (/^(?:`{3}|~{3})/.test(opening)) return { closing: opening, stop: NONE, isFence: true };
  if (opening.startsWith("`")) return { closing: opening, stop: BLANK };
  if (!opening.startsWith("\\begin")) return PAIRS[opening];
  return { closing: opening.replace("begin", "end"), stop: NONE };
}

/** Index of the token that closes the opening; their number if there is none, null if another one
 * shows before that this is a plain text. */
function findClosing(tokens, first, opening, { closing, stop, isFence }) {
  for (let i = first + 1; i < tokens.length; i += 1) {
    const text = isFence ? tokens[i][0].trim() : tokens[i][0];
    if (text === closing || (isFence && text.startsWith(closing))) return i;
    if (text === opening || stop.test(text)) return null;
  }
  return tokens.length;
}

function opens(raw, { 0: opening, index }) {
  return opening !== "$" || (!/[\d}]/.test(raw[index - 1]) && /\S/.test(raw[index + 1] ?? " "));
}

/** Whether the content between two delimiters is a formula: no price, shell variable, sentence. */
function isFormula(raw, start, end, opening) {
  if (!opening.startsWith("$")) return true;
  const inside = raw.slice(start + opening.length, end - opening.length);
  const hasTex = /[\\^_={}<>]/.test(inside);
  if (opening === "$$") return /\S/.test(inside) && (hasTex || !/[a-z]{2,}/i.test(inside));
  if (/\s$/.test(inside) || /[\d{]/.test(raw[end])) return false;
  const isInWord = /[a-z]/i.test(raw[start - 1] ?? "") || /[a-z]/i.test(raw[end] ?? "");
  if (isInWord) return hasTex || inside.length === 1; // such as $n$th
  return hasTex || !/^[\d.,]+\S*\s.*[a-z]{2,}|[a-z]{3,}\s+[a-z]{2,}/i.test(inside);
}

/** Whether the last paragraph ends within a formula, as one does at a limit of tokens. */
function isCutOff(content) {
  return !/\n[ \t]*\n/.test(content) && /[_^{]|\\[a-z]/i.test(content.slice(2));
}

function readTex(raw, start, content, opening) {
  const isEnvironment = opening.startsWith("\\begin");
  if (content.length > LONGEST) return {};
  const line = content.includes("\n") ? raw.slice(raw.lastIndexOf("\n", start) + 1, start) : "";
  const plain = /^\s*>/.test(line) ? content.replace(/\n[ \t]*(?:>[ \t]?)+/g, "\n") : content;
  return {
    tex: isEnvironment ? plain : plain.slice(opening.length, -opening.length),
    isDisplay: opening === "$$" || opening === "\\[" || isEnvironment,
  };
}

/** `raw` with letters in place of its formulas, for Markdown. */
export function hideFormulas(raw, formulas) {
  let at = 0;
  let hidden = "";
  for (const { start, end } of formulas) {
    hidden += raw.slice(at, start) + "x".repeat(end - start);
    at = end;
  }
  return hidden + raw.slice(at);
}

let katex = null; // its module, once it is loaded
let loading = null;
let waiting = []; // formulas to draw then

/** Draw the formulas into their boxes, which hold them as written; KaTeX refuses some, which stay
 * as they are. */
export function draw(drawings) {
  if (katex) drawings.slice(0, MOST).forEach(drawOne);
  else if (drawings.length) {
    waiting.push(...drawings.slice(0, MOST));
    loading ??= load();
  }
}

async function load() {
  const href = new URL("./vendor/katex.min.css", import.meta.url).href;
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  try {
    katex = await import("./vendor/katex.min.js");
    waiting.forEach(drawOne);
  } catch {
    loading = null; // without a connection; the next formula tries again
  }
  waiting = [];
}

function drawOne({ box, tex, isDisplay }) {
  const drawing = document.createElement("span");
  drawing.setAttribute("aria-hidden", "true"); // screen readers read the source
  try {
    katex.render(tex, drawing, { ...OPTIONS, displayMode: isDisplay });
  } catch {
    return;
  }
  box.append(drawing);
  box.classList.add("drawn");
}
