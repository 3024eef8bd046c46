// The tools beside the choice: confidence, rubric, highlights, flags. They edit the draft.

import { marked, moveSelection, selectFirstWord, selectedSpan } from "./highlights.js";

const DIMENSION_KEYS = {
  a: "a", ArrowLeft: "a", b: "b", ArrowRight: "b", "=": "tie", t: "tie", Backspace: "",
};
const DIRECTIONS = {
  ArrowRight: ["forward", "word"], ArrowDown: ["forward", "line"],
  ArrowLeft: ["backward", "word"], ArrowUp: ["backward", "line"],
};

export class Tools {
  /** `desk` returns the card that is shown, its draft, and whether it is shown raw. */
  constructor(view, desk) {
    this.view = view;
    this.desk = desk;
    this.mode = null; // confidence, rubric or highlighting: which takes the next keys
    this.at = 0; // the dimension that is asked about
    this.dimensions = view.dimensions.map(({ dataset }) => dataset.name);
  }

  leave() {
    this.mode = null;
    this.view.paintMode(null);
  }

  /** Let a tool take the next keys; the second call ends that. */
  take(mode) {
    const isOver =
      this.mode === mode ||
      !this.desk().card ||
      (mode === "rubric" && this.dimensions.length === 0);
    this.mode = isOver ? null : mode;
    this.at = 0;
    this.view.paintMode(this.mode, this.dimensions[0]);
    if (this.mode === "highlighting") {
      selectFirstWord(this.view.panes.a);
      this.view.say(
        "Arrow keys move the selection, Shift extends it, Tab changes the side, + and - mark, " +
          "Escape ends.",
      );
    }
    if (this.mode === "confidence") this.view.say("How sure? 5 is 50%, 9 is 90%, 0 is 100%.");
    if (this.mode === "rubric")
      this.view.say(`Which is better in ${this.dimensions[0]}? a, b or =.`);
  }

  setConfidence(value) {
    this.change((draft) => (draft.confidence = draft.confidence === value ? null : value));
    const stated = this.desk().draft?.confidence;
    this.view.say(stated ? `${Math.round(stated * 100)}% sure.` : "No confidence stated.");
  }

  setDimension(name, side) {
    this.change((draft) => {
      const { [name]: had, ...others } = draft.dimensions;
      draft.dimensions = had === side || !side ? others : { ...others, [name]: side };
    });
  }

  toggleFlag(flag) {
    this.change((draft) => {
      const others = draft.flags.filter((one) => one !== flag);
      draft.flags = others.length < draft.flags.length ? others : [...others, flag];
    });
    const isFlagged = this.desk().draft?.flags.includes(flag);
    this.view.say(isFlagged ? `Flagged: ${flag}.` : `Flag removed: ${flag}.`);
  }

  get canHighlight() {
    const { card } = this.desk();
    const { a, b } = this.view.panes;
    return Boolean(card && (selectedSpan(a, card.left) ?? selectedSpan(b, card.right)));
  }

  /** Mark the selection; return whether there was one. */
  highlight(sign) {
    const { card, draft, isRaw } = this.desk();
    if (!card) return false;
    for (const side of ["a", "b"]) {
      const raw = side === "a" ? card.left : card.right;
      const span = selectedSpan(this.view.panes[side], raw);
      if (!span) continue;
      draft.marks[side] = marked(draft.marks[side], span.start, span.end, sign);
      this.view.repaint(side, card, draft, isRaw);
      draft.keep();
      document.getSelection().removeAllRanges();
      const kind = sign === "+" ? "strength" : "weakness";
      this.view.say(`${raw.slice(span.start, span.end)}: marked as a ${kind}.`);
      return true;
    }
    this.view.say("Select text of a completion first: with the mouse, or with h and arrow keys.");
    return false;
  }

  change(how) {
    const { card, draft } = this.desk();
    if (!card) return;
    how(draft);
    this.view.paintDraft(draft);
    draft.keep();
  }

  /** Whether the active tool used the key. */
  onKey(pressed, digit) {
    if (this.mode === "confidence") return this.onKeyOfConfidence(pressed, digit);
    if (this.mode === "rubric") return this.onKeyOfRubric(pressed);
    return this.mode === "highlighting" && this.onKeyOfSelection(pressed);
  }

  onKeyOfConfidence({ key }, digit) {
    if (key === "Backspace") this.setConfidence(null);
    else if (digit !== null && (digit === 0 || digit >= 5))
      this.setConfidence(digit === 0 ? 1 : digit / 10);
    else return false;
    this.leave();
    return true;
  }

  onKeyOfRubric({ key }) {
    const names = this.dimensions;
    const side = DIMENSION_KEYS[key];
    if (side !== undefined) this.setDimension(names[this.at], side);
    else if (key !== "ArrowDown" && key !== "ArrowUp" && key !== "Enter") return false;
    this.at += key === "ArrowUp" ? -1 : 1;
    if (this.at < 0 || this.at >= names.length || key === "Enter") {
      this.leave();
    } else {
      this.view.paintMode(this.mode, names[this.at]);
      this.view.say(`${names[this.at]}: a, b or =`);
    }
    return true;
  }

  onKeyOfSelection({ key, shiftKey }) {
    const { panes } = this.view;
    const anchor = document.getSelection().anchorNode;
    const side = anchor && panes.b.contains(anchor) ? "b" : "a";
    if (DIRECTIONS[key]) {
      moveSelection(panes[side], ...DIRECTIONS[key], shiftKey);
      document.getSelection().focusNode?.parentElement?.scrollIntoView({ block: "nearest" });
    } else if (key === "Tab") {
      const other = side === "a" ? "b" : "a";
      this.view.showSide(other);
      selectFirstWord(panes[other]);
    } else if (key === "+" || key === "-") {
      if (this.highlight(key)) selectFirstWord(panes[side]);
    } else {
      return false;
    }
    return true;
  }
}
