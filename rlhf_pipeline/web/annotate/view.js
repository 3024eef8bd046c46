// Draws the annotate page.

import { combineMarks, findDifferences } from "./differences.js";
import { isRating } from "./draft.js";
import { render } from "../markdown.js";
import { renderPrompt } from "./turns.js";

const MESSAGES = {
  nothing_open: [
    "Nothing to judge now",
    "New comparisons appear here automatically, and those that other annotators return. Your " +
      "statistics are under Me.",
  ],
  cap_reached: [
    "Daily limit reached",
    "You have cast the maximum number of votes per person and day. The count restarts at " +
      "00:00 UTC.",
  ],
  sending: [
    "Sending your votes",
    "The next comparisons load after the votes on this device are sent.",
  ],
};

// The server rounds the number up to tens, lest it reveal a hidden card, and counts no further
// than MOST.
const STEP = 10;
const MOST = 200;

function formatRemaining(n) {
  if (n === null) return "–";
  if (n >= MOST) return `over ${MOST - STEP}`;
  return n === STEP ? `≤ ${STEP}` : n === 0 ? "0" : `about ${n}`;
}

export class View {
  constructor(root) {
    this.root = root;
    this.at = (id) => root.querySelector(`#${id}`);
    this.panes = { prompt: this.at("prompt"), a: this.at("left"), b: this.at("right") };
    this.choices = [...root.querySelectorAll("[data-choice]")];
    this.dimensions = [...root.querySelectorAll(".dimension")];
    this.prepared = new WeakMap();
    this.showsDifferences = false;
    this.differences = null; // between the completions of the card that is shown
    this.seen = new Set(); // sides of it
    this.keepInStep();
  }

  /** Build the nodes of a card in advance, so that showing it is one swap. */
  prepare(card, isRaw) {
    const known = this.prepared.get(card);
    if (known && known.isRaw === isRaw) return known;
    const made = {
      isRaw,
      prompt: renderPrompt(card, isRaw),
      a: render(card.left, { isRaw }),
      b: render(card.right, { isRaw }),
      differences: findDifferences(card.left, card.right),
    };
    this.prepared.set(card, made);
    return made;
  }

  paintCard(card, draft, { isRaw, showsLength }) {
    const { prompt, a, b, differences } = this.prepare(card, isRaw);
    this.prepared.delete(card); // its nodes move into the page
    for (const [name, nodes] of Object.entries({ prompt, a, b })) {
      this.panes[name].replaceChildren(nodes);
      this.panes[name].scrollTop = 0;
    }
    this.seen.clear();
    this.showSide("a");
    this.offerDifferences(differences);
    for (const side of ["a", "b"])
      if (this.showsUnseen || this.marksOf(side, draft).length)
        this.repaint(side, card, draft, isRaw);
    this.unfold(false);
    for (const [id, text] of [["left-length", card.left], ["right-length", card.right]]) {
      const words = `${[...text].length.toLocaleString("en")} characters`;
      this.at(id).textContent = showsLength ? words : "";
    }
    this.at("desk").classList.toggle("rates", isRating(card));
    this.at("left-name").textContent = isRating(card) ? "Rate this completion" : "A";
    this.paintDraft(draft);
    this.show("desk");
    // Only a prompt that is cut off needs a button to unfold it; asked after the paint, because it
    // forces a layout.
    requestAnimationFrame(() => {
      this.scrollToLastTurn();
      this.at("unfold").hidden =
        this.panes.prompt.scrollHeight <= this.panes.prompt.clientHeight + 2;
    });
  }

  unfold(isOpen) {
    this.at("prompt-box").classList.toggle("unfolded", isOpen);
    this.at("unfold").setAttribute("aria-expanded", String(isOpen));
    this.at("unfold").textContent = isOpen ? "Show less" : "Show all";
  }

  repaint(side, card, draft, isRaw) {
    const pane = this.panes[side];
    const top = pane.scrollTop;
    const raw = side === "a" ? card.left : card.right;
    const marks = this.marksOf(side, draft);
    pane.replaceChildren(render(raw, { isRaw: isRaw || this.showsUnseen, marks }));
    pane.scrollTop = top;
  }

  repaintAll(card, draft, isRaw) {
    for (const side of ["a", "b"]) this.repaint(side, card, draft, isRaw);
    this.panes.prompt.replaceChildren(renderPrompt(card, isRaw));
    this.scrollToLastTurn();
  }

  /** What a dialogue asks stands in its last turn. */
  scrollToLastTurn() {
    const { prompt } = this.panes;
    const last = prompt.querySelector(".turn:last-child");
    if (last) prompt.scrollTop = last.offsetTop - prompt.offsetTop;
  }

  offerDifferences(differences) {
    this.differences = differences;
    const button = this.at("differences");
    button.disabled = differences === null;
    button.title = differences
      ? "Mark the words, blanks and invisible characters in which the completions differ (w)"
      : "The completions differ in most of their words";
  }

  /** Whether differences are shown that only the texts as they were written have. */
  get showsUnseen() {
    return this.showsDifferences && Boolean(this.differences?.isUnseen);
  }

  marksOf(side, draft) {
    const differences = this.showsDifferences ? this.differences?.[side] : null;
    return combineMarks(draft.marks[side], differences ?? []);
  }

  /** On a narrow screen, where one completion is shown at a time. */
  showSide(side) {
    this.seen.add(side);
    this.at("sides").dataset.shown = side;
    for (const one of ["a", "b"]) press(this.at(`show-${one}`), one === side);
  }

  get unseenSide() {
    const isNarrow = this.at("tabs").offsetParent !== null;
    return isNarrow ? ["a", "b"].find((side) => !this.seen.has(side)) : undefined;
  }

  paintDraft(draft) {
    for (const button of this.choices) {
      press(
        button,
        draft.choice === button.dataset.choice &&
          String(draft.strength ?? "") === (button.dataset.strength ?? ""),
      );
    }
    if (this.at("reason").value !== draft.reason) this.at("reason").value = draft.reason;
    for (const button of this.root.querySelectorAll("[data-confidence]")) {
      press(button, draft.confidence === Number(button.dataset.confidence));
    }
    for (const button of this.root.querySelectorAll("[data-dimension]")) {
      press(button, draft.dimensions[button.dataset.dimension] === button.dataset.side);
    }
    for (const button of this.root.querySelectorAll("[data-flag]"))
      press(button, draft.flags.includes(button.dataset.flag));
  }

  /** Show which group of tools takes the next keys. */
  paintMode(mode, dimension) {
    for (const id of ["confidence", "rubric", "highlighting"])
      this.at(id).classList.toggle("active", id === mode);
    for (const row of this.dimensions) {
      row.classList.toggle("active", mode === "rubric" && row.dataset.name === dimension);
    }
    this.root.classList.toggle("selecting", mode === "highlighting");
    if (mode) this.at("more").open = true;
  }

  /** desk, empty or paused. */
  show(what) {
    for (const id of ["desk", "empty", "paused"]) this.at(id).hidden = id !== what;
    this.root.dataset.shows = what;
  }

  paintEmpty(reason) {
    const [title, text] = MESSAGES[reason] ?? ["Loading comparisons", "One moment."];
    this.at("empty-title").textContent = title;
    this.at("empty-text").textContent = text;
    this.show("empty");
  }

  paintCounts({ today, median, remaining, streak }) {
    this.at("today").textContent = today === null ? "–" : String(today);
    this.at("median").textContent =
      median === null ? "–" : `${median < 10 ? median.toFixed(1) : Math.round(median)} s`;
    this.at("remaining").textContent = formatRemaining(remaining);
    this.at("streak").textContent = streak > 1 ? `${streak} days in a row` : "";
  }

  paintOutbox(outbox) {
    const { unsent, others, isOffline, needsLogin, isOtherLogin, reason, isDurable } = outbox;
    const n = unsent.length;
    const badge = this.at("outbox");
    badge.hidden = n === 0;
    badge.textContent = `${n} unsent`;
    badge.classList.toggle("waiting", isOffline || needsLogin || reason !== null);
    const lines = [];
    const waiting = `${n} ${n === 1 ? "vote waits" : "votes wait"} on this device`;
    if (needsLogin) {
      const who = isOtherLogin ? "Another user is logged in in this browser" : "You are logged out";
      lines.push(`${who}: ${waiting}. Log in again to send them.`);
    } else if (isOffline)
      lines.push(`No connection. Keep judging: ${waiting} and will be sent automatically.`);
    else if (reason && n) lines.push(`${waiting} and will be retried. ${reason}`);
    if (!isDurable && n)
      lines.push("This browser cannot store votes: do not close the tab before they are sent.");
    if (others) {
      const votes = others === 1 ? "vote" : "votes";
      lines.push(
        `${others} unsent ${votes} of another user wait on this device until that user logs in.`,
      );
    }
    const banner = this.at("banner");
    const text = lines.join(" ");
    if (banner.dataset.text !== text) {
      banner.dataset.text = text;
      this.at("banner-text").replaceChildren(...withCode(text));
      this.at("banner-login").hidden = !needsLogin;
    }
    this.at("waiting-open").hidden = !unsent.some(({ key }) => outbox.refusals.has(key));
    banner.hidden = text === "";
  }

  paintUndo(seconds, what) {
    const button = this.at("undo");
    button.disabled = seconds <= 0;
    this.at("undo-what").textContent = seconds > 0 ? ` ${what}` : "";
    this.at("undo-left").textContent = seconds > 0 ? ` (${Math.ceil(seconds)} s)` : "";
  }

  /** Announce a text to screen readers only. */
  say(text) {
    this.at("status").textContent = text;
  }

  notice(text) {
    this.at("notice").hidden = !text;
    this.at("notice-text").replaceChildren(...withCode(text ?? ""));
  }

  /** Scroll both completions in step, in proportion to their lengths. */
  keepInStep() {
    const { a, b } = this.panes;
    let leader = null;
    const follow = (from, to) => () => {
      if (leader !== null && leader !== from) return;
      const room = from.scrollHeight - from.clientHeight;
      if (room <= 0) return;
      leader = from;
      to.scrollTop = (from.scrollTop / room) * Math.max(0, to.scrollHeight - to.clientHeight);
      requestAnimationFrame(() => requestAnimationFrame(() => (leader = null)));
    };
    a.addEventListener("scroll", follow(a, b), { passive: true });
    b.addEventListener("scroll", follow(b, a), { passive: true });
  }
}

/** Nodes of what the server says: a command stands between backticks there, as it does in a
 * terminal. */
export function withCode(text) {
  return text.split(/`([^`\n]+)`/).map((span, n) => {
    if (n % 2 === 0) return span;
    const code = document.createElement("code");
    code.textContent = span;
    return code;
  });
}

function press(button, isPressed) {
  const said = String(isPressed);
  if (button.getAttribute("aria-pressed") !== said) button.setAttribute("aria-pressed", said);
}
