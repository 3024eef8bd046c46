// The keys of the annotate page: when a key is a command, and when it is not.

// keys that mean something there
const IN_A_CONTROL = new Set(["Enter", " ", "ArrowDown", "ArrowUp", "PageDown", "PageUp"]);
const WHILE_PAUSED = new Set(["p", "?", "g", "Escape"]);
const VOTES = new Set(["s", "=", "Enter"]); // beside the digits

/** Runs the command of a key, and what `page` does at a digit, in a field and with its tools. */
export class Keys {
  constructor(commands, page) {
    this.commands = commands;
    this.page = page;
    document.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const { ctrlKey, metaKey, altKey, isComposing, keyCode } = event;
    // 229: a key of an input method, which Safari reports after the composition
    if (ctrlKey || metaKey || altKey || isComposing || keyCode === 229) return;
    if (document.querySelector("dialog[open]")) return;
    this.page.noteInput();
    const target = event.target instanceof Element ? event.target : document.body;
    if (target.matches("input, textarea, select")) return this.pressInField(event);
    const key = nameOf(event);
    const isInControl = target.closest("button, a, summary") !== null;
    if (isInControl && IN_A_CONTROL.has(key)) return;
    if (this.page.isPaused() && !WHILE_PAUSED.has(key)) return;
    const digit = this.digitOf(event);
    if (this.page.useTool({ key, shiftKey: event.shiftKey }, digit)) return event.preventDefault();
    if (event.repeat && !/^(Arrow|Page)/.test(key)) return; // a key held down is one vote
    const isVote = digit !== null || VOTES.has(key);
    if (isVote && this.page.isTooEarly(event)) return event.preventDefault();
    if (digit !== null) this.page.chooseByDigit(digit);
    else if (Object.hasOwn(this.commands, key)) this.commands[key](event);
    else return;
    event.preventDefault();
  }

  pressInField(event) {
    if (event.key === "Escape") {
      event.target.blur();
    } else if (event.key === "Enter" && !event.shiftKey && event.target.id === "reason") {
      event.preventDefault();
      event.target.blur();
      this.page.castChosen();
    }
  }

  /** By place, as a layout may have other signs there (AZERTY: `-` at 6). Commands that need Shift
   * keep their keys (`=` at 0), and so do the signs that mark a selected text. */
  digitOf({ key, code, shiftKey }) {
    if (/^[0-9]$/.test(key)) return Number(key);
    const isCommand = Object.hasOwn(this.commands, key) || key.length !== 1;
    if (isCommand && (shiftKey || this.page.marksText(key))) return null;
    const place = /^Digit([0-9])$/.exec(code ?? "");
    return place ? Number(place[1]) : null;
  }
}

/** A letter by place where the layout has no Latin ones. */
function nameOf({ key, code }) {
  const place = /^Key([A-Z])$/.exec(code ?? "");
  return place && /^[^\0-\u024f]$/.test(key) ? place[1].toLowerCase() : key;
}
