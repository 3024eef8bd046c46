// The annotate page: one key, one vote, the next comparison in the same frame. Casts votes;
// keys.js reads keys, card_queue.js leases cards, outbox.js sends votes, tools.js edits what
// stands beside the choice, view.js draws the page.

import { Draft, isRating, judgementOf } from "./draft.js";
import { CardQueue } from "./card_queue.js";
import { Guidelines } from "./guidelines.js";
import { Keys } from "./keys.js";
import { isLogin, newKey, Outbox } from "./outbox.js";
import { Tools } from "./tools.js";
import { View } from "./view.js";
import { Waiting } from "./waiting.js";

const UNDOABLE = 10; // votes
const RATINGS = { 1: "poor", 2: "weak", 3: "fair", 4: "good", 5: "excellent" };
const STRENGTHS = { 4: "much", 3: "clearly", 2: "somewhat", 1: "slightly" };
const WORDS = { tie: "equally good", both_bad: "both bad", skip: "skipped" };
const READ_FIGURES_EVERY = 20; // votes, the first time after FIRST of them
const FIRST = 3;
// after a card is painted: too short to judge it, so a key pressed twice casts no second vote
const SETTLE_MS = 150;

const root = document.querySelector("#annotate");
const WELCOMED = `welcomed-${root.dataset.user}`; // read: the guidelines
const view = new View(root);
const outbox = new Outbox(root.dataset.user);
const queue = new CardQueue(root.dataset.user, () => outbox.unsent.length);

let card = null;
let draft = null;
let history = []; // of votes that may be taken back, oldest first
let isPaused = false;
let isRaw = setting("raw") === "yes";
let isCareful = setting("mode") === "yes";
let lastInput = performance.now();
let figures = { today: null, median: null, streak: 0 };
let nCast = 0;
let nEvents = 0; // votes cast, taken back, recorded, refused
let settledAt = Infinity; // since when the painted card may be voted on, on the clock of events
let settling = 0;

const tools = new Tools(view, () => ({ card, draft, isRaw }));
const guidelines = new Guidelines(view, queue);
const waiting = new Waiting(view, outbox, describeVote);

// --- showing -------------------------------------------------------------------------------------

function showNext() {
  card = queue.next();
  draft = card && Draft.of(card);
  paint();
}

function paint() {
  tools.leave();
  if (isPaused) return view.show("paused");
  if (!card) return view.paintEmpty(outbox.unsent.length ? "sending" : null);
  view.paintCard(card, draft, { isRaw, showsLength: queue.rules.shows_length });
  settle();
  if (document.visibilityState === "visible") draft.see();
}

/** Show a card once more, with a judgement of it; the card that is shown returns to the queue. */
function showAgain(again, judgement) {
  if (card) {
    draft.lookAway();
    draft.keep();
    queue.putBack(card);
  }
  card = again;
  draft = new Draft(card, judgement);
  queue.takeBack(card);
  paint();
}

/** Accept votes on the painted card after a short delay; `data-accepts-votes` shows when. */
function settle() {
  settledAt = Infinity;
  delete root.dataset.acceptsVotes;
  clearTimeout(settling);
  settling = setTimeout(() => {
    settledAt = performance.now();
    root.dataset.acceptsVotes = "";
  }, SETTLE_MS);
}

/** Whether a key or click came too early, also if the page was busy. */
const isTooEarly = (event) => event.timeStamp < settledAt;

function prepareNext() {
  const soon = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 0));
  soon(() => queue.cards.slice(0, 3).forEach((one) => view.prepare(one, isRaw)));
}

function paintFigures() {
  view.paintCounts({ ...figures, remaining: queue.remaining });
}

// --- voting --------------------------------------------------------------------------------------

function choose(choice, strength) {
  if (!card || isPaused) return;
  if (choice !== "skip" && isRating(card) !== (choice === "rate")) return;
  const unseen = choice === "skip" ? undefined : view.unseenSide;
  if (unseen) {
    showSide(unseen);
    settle(); // a double tap casts no vote
    view.notice(`Read completion ${unseen.toUpperCase()} too, then vote.`);
    return;
  }
  draft.choice = choice;
  draft.strength = strength;
  const lacksReason =
    queue.rules.requires_reason && !["skip", "rate"].includes(choice) && !draft.reason.trim();
  if (lacksReason) {
    view.paintDraft(draft);
    view.at("more").open = true;
    view.at("reason").focus();
    view.say("This project requires a reason. Write it, then press Enter.");
  } else if (isCareful) {
    view.paintDraft(draft);
    view.say(`${describeVote(choice, strength)}. Enter casts the vote.`);
  } else {
    cast();
  }
}

/** Cast the chosen judgement as a vote; the next card is painted before anything is sent. */
function cast() {
  if (!card || isPaused || !draft.choice) return;
  draft.lookAway();
  const { choice, strength } = draft;
  const entry = {
    key: newKey(),
    user: root.dataset.user,
    after: draft.after,
    isUndo: false,
    card,
    draft: draft.copy(),
    body: withGuidelines(draft.body(now())),
  };
  draft.forget();
  nEvents += 1;
  history = [...history, { entry, at: performance.now() }].slice(-UNDOABLE);
  queue.judge(card);
  showNext();
  count(choice, 1);
  nCast += 1;
  if (nCast === FIRST || nCast % READ_FIGURES_EVERY === 0) readFigures();
  paintUndo();
  view.notice(null);
  view.say(`${describeVote(choice, strength)}.${card ? " Next comparison." : ""}`);
  outbox.add(entry);
  queue.refill();
  prepareNext();
}

/** With the version of the guidelines, which a rating has not. */
const withGuidelines = (body) =>
  isRating(card) ? body : { ...body, guideline_version: queue.guidelineVersion };

/** Count a vote as one of today's, or with -1 no longer. */
function count(choice, n) {
  if (choice !== "skip" && choice !== "rate") figures.today = Math.max(0, (figures.today ?? 0) + n);
  paintFigures();
}

/** The newest vote, if it may still be taken back: a vote more, which says that the other one
 * counts no longer. */
function undo() {
  const last = history.at(-1);
  if (!last || isPaused || secondsLeft(last) <= 0) return view.say("Nothing to undo.");
  history.pop();
  nEvents += 1;
  const { entry } = last;
  const { choice, strength } = judgementOf(entry);
  const key = newKey();
  const { card_id } = entry.card;
  showAgain(entry.card, { ...entry.draft, after: key });
  const body = isRating(card)
    ? { card_id, value: null, rated_at: now() }
    : withGuidelines({
        card_id,
        choice: "skip",
        flags: ["undone"],
        duration_s: 0,
        voted_at: now(),
      });
  draft.keep();
  count(choice, -1);
  paintUndo();
  view.say(`Undone: ${describeVote(choice, strength)}. Judge it again.`);
  outbox.add({
    key,
    user: root.dataset.user,
    after: entry.key,
    isUndo: true,
    undone: { choice, strength },
    card,
    draft: entry.draft,
    body,
  });
}

function secondsLeft({ at }) {
  return (queue.rules?.undo_seconds ?? 0) - (performance.now() - at) / 1000;
}

function paintUndo() {
  const last = history.at(-1);
  const { choice, strength } = last ? judgementOf(last.entry) : {};
  view.paintUndo(last ? secondsLeft(last) : 0, choice ? describeVote(choice, strength) : "");
}

function describeVote(choice, strength) {
  if (choice === "rate") return `${strength} of 5, ${RATINGS[strength]}`;
  return WORDS[choice] ?? `${choice.toUpperCase()} ${STRENGTHS[strength]} better`;
}

function now() {
  return new Date(Date.now() + queue.skew).toISOString();
}

// --- what the server says ------------------------------------------------------------------------

outbox.addEventListener("state", () => view.paintOutbox(outbox));

outbox.addEventListener("recorded", () => {
  nEvents += 1;
  if (!card && !isPaused) queue.refill();
});

outbox.addEventListener("refused", ({ detail }) => {
  const { entry, status, problem, dependants } = detail;
  if (!forgetEntry(detail)) return;
  const why = problem.detail ?? `status ${status}`;
  if (entry.isUndo) {
    // If the annotator has begun to judge the card again, that vote would be refused as well.
    view.notice(`Not undone: the vote stands. ${why}`);
    standAgain(entry, dependants);
  } else if (status === 422) {
    showAgain(entry.card, entry.draft);
    view.notice(`This vote was refused: ${why}`);
  } else {
    view.notice(`A vote was refused: ${why}`);
  }
});

outbox.addEventListener("discarded", ({ detail }) => {
  const { entry, isDependant, dependants } = detail;
  if (!forgetEntry(detail)) return;
  if (entry.isUndo && !isDependant) {
    const describe = ({ choice, strength }) => describeVote(choice, strength);
    const anew = dependants.filter((one) => !one.isUndo).map((one) => describe(judgementOf(one)));
    const more = ` Discarded with it, as it was to stand in its place: ${anew.join(", ")}.`;
    const what = `Not taken back: the vote stands (${describe(entry.undone)}).`;
    view.notice(anew.length ? what + more : what);
    standAgain(entry, dependants);
  } else if (!isDependant && !outbox.unsent.some((one) => isSameCard(one, entry))) {
    queue.unjudge(entry.card); // nothing is known of it any more: it may be judged
  }
  paintUndo();
  if (!entry.isUndo) view.say("The vote is discarded.");
});

const isSameCard = (one, other) => one.card.card_id === other.card.card_id;

/** Forget an entry that will never be a vote; whether this page sent it. */
function forgetEntry({ entry, isOwn, isTakenBack }) {
  nEvents += 1;
  if (!isOwn) return false;
  history = history.filter((one) => one.entry.key !== entry.key);
  // one that was taken back is counted no more since
  if (!entry.isUndo && !isTakenBack) count(judgementOf(entry).choice, -1);
  return true;
}

/** A vote that was to be taken back counts as before, and its card is judged: also where what was
 * cast in its place was taken back too. */
function standAgain({ key, card: judged, undone }, dependants) {
  count(undone.choice, 1);
  queue.stand(judged);
  if ([key, ...dependants.map((one) => one.key)].includes(draft?.after)) {
    draft.forget();
    showNext();
  }
  queue.refill();
}

queue.addEventListener("dealt", () => {
  outbox.welcome();
  view.at("no-cards").hidden = true;
  if (!card && !isPaused && queue.cards.length) showNext();
  if (queue.guidelineVersion !== null) guidelines.announce();
  paintFigures();
  prepareNext();
});

queue.addEventListener("empty", ({ detail }) => {
  if (!isPaused) view.paintEmpty(detail.reason);
});

queue.addEventListener("trouble", ({ detail: { status, kind } }) => {
  if (isLogin(status, kind)) {
    outbox.refuseLogin(kind);
  } else if (status === 0 || status >= 500) {
    outbox.isOffline = true;
    outbox.emitState();
  } else {
    view.notice(`The server deals no cards (status ${status}). Tell an administrator.`);
  }
  if (!card) view.at("no-cards").hidden = false;
});

queue.addEventListener("gone", () => {
  if (isPaused) return;
  draft.forget();
  showNext();
  view.notice("You judged that comparison in another tab.");
  queue.refill();
});

async function readFigures() {
  const before = nEvents;
  try {
    const response = await fetch("/api/v1/me/statistics", {
      headers: { "X-Annotator": root.dataset.user },
    });
    if (!response.ok) return;
    const said = await response.json();
    if (nEvents !== before || outbox.unsent.length) {
      // A vote was cast or arrived meanwhile, or its answer is on the way: nobody knows whether it
      // is among those that were counted.
      setTimeout(readFigures, 2000);
      return;
    }
    const { votes_today: today, days_in_a_row: streak, median_seconds: median } = said;
    figures = { today, streak, median };
    paintFigures();
  } catch {
    // They are shown once the connection is back.
  }
}

// --- first visit, pause, settings ---------------------------------------------------------------

/** At the first visit: the guidelines, once. */
async function welcome() {
  const version = Number(root.dataset.welcome ?? 0);
  if (!version || setting(WELCOMED)) return;
  queue.guidelineVersion = version;
  isPaused = true; // no card is shown beneath
  await guidelines.openOnce();
  setting(WELCOMED, "read");
  isPaused = false;
}

function pause(isOn) {
  isPaused = isOn;
  view.at("pause").setAttribute("aria-pressed", String(isOn));
  if (isOn) draft?.lookAway();
  paint();
  if (isOn) view.at("resume").focus();
  else queue.refill();
  view.say(isOn ? "Paused. The clock is stopped." : "Resumed.");
}

/** Of a button that stays pressed, also in later visits. */
function keepPressed(id, isOn) {
  setting(id, isOn ? "yes" : "no");
  view.at(id).setAttribute("aria-pressed", String(isOn));
}

function setCareful(careful) {
  isCareful = careful;
  keepPressed("mode", careful);
  view.at("cast").hidden = !careful;
  view.say(
    careful ? "Careful mode: a key chooses, Enter casts." : "Fast mode: a key casts the vote.",
  );
}

function setRaw(raw) {
  isRaw = raw;
  keepPressed("raw", raw);
  if (!card) return;
  view.repaintAll(card, draft, isRaw);
  prepareNext();
}

function setDifferences(isOn) {
  view.showsDifferences = isOn;
  keepPressed("differences", isOn);
  if (!card || !view.differences) return;
  for (const side of ["a", "b"]) view.repaint(side, card, draft, isRaw);
  view.say(isOn ? "Words in which the completions differ are marked." : "Differences hidden.");
}

function showSide(side) {
  view.showSide(side);
  view.say(`Completion ${side.toUpperCase()}.`);
}

/** Store the setting in this browser, if it allows storage. */
function setting(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`rlhf-${name}`);
    localStorage.setItem(`rlhf-${name}`, value);
  } catch {
    // The page works without it.
  }
  return null;
}

// --- keys ----------------------------------------------------------------------------------------

const COMMANDS = {
  s: () => choose("skip", null),
  "=": () => choose("tie", null),
  r: () => {
    view.at("more").open = true;
    view.at("reason").focus();
  },
  c: () => isRating(card) || tools.take("confidence"),
  d: () => isRating(card) || tools.take("rubric"),
  h: () => isRating(card) || tools.take("highlighting"),
  "+": () => isRating(card) || tools.highlight("+"),
  "-": () => isRating(card) || tools.highlight("-"),
  f: () => tools.toggleFlag("pii"),
  i: () => tools.toggleFlag("identity"),
  x: () => tools.toggleFlag("broken"),
  u: undo,
  Backspace: undo,
  g: () => guidelines.open(),
  m: () => setRaw(!isRaw),
  p: () => pause(!isPaused),
  v: () => setCareful(!isCareful),
  w: () => view.at("differences").disabled || setDifferences(!view.showsDifferences),
  t: () => isRating(card) || showSide(view.at("sides").dataset.shown === "a" ? "b" : "a"),
  o: () => view.at("unfold").hidden || view.at("unfold").click(),
  "?": () => view.at("keys").showModal(),
  Enter: cast,
  Escape: () => {
    tools.leave();
    view.notice(null);
    document.getSelection().removeAllRanges();
  },
  ArrowDown: () => scroll(60),
  ArrowUp: () => scroll(-60),
  PageDown: () => scroll(view.panes.a.clientHeight * 0.9),
  PageUp: () => scroll(view.panes.a.clientHeight * -0.9),
  " ": (event) => scroll(view.panes.a.clientHeight * (event.shiftKey ? -0.9 : 0.9)),
};

new Keys(COMMANDS, {
  isPaused: () => isPaused,
  noteInput: () => (lastInput = performance.now()),
  useTool: (pressed, digit) => tools.onKey(pressed, digit),
  marksText: (key) => (key === "+" || key === "-") && tools.canHighlight,
  isTooEarly,
  chooseByDigit,
  castChosen: () => draft?.choice && cast(),
});

function chooseByDigit(digit) {
  if (isRating(card)) return RATINGS[digit] && choose("rate", digit);
  if (digit === 0) choose("both_bad", null);
  else if (digit === 5) choose("tie", null);
  else if (digit < 5) choose("a", 5 - digit);
  else choose("b", digit - 5);
}

function scroll(by) {
  view.panes.a.scrollTop += by;
  if (view.panes.a.scrollHeight <= view.panes.a.clientHeight) view.panes.b.scrollTop += by;
}

// --- clicks and the rest -------------------------------------------------------------------------

const CLICKS = {
  undo,
  cast,
  raw: () => setRaw(!isRaw),
  mode: () => setCareful(!isCareful),
  differences: () => setDifferences(!view.showsDifferences),
  "show-a": () => showSide("a"),
  "show-b": () => showSide("b"),
  pause: () => pause(!isPaused),
  resume: () => pause(false),
  help: () => view.at("keys").showModal(),
  "guidelines-open": () => guidelines.open(),
  outbox: () => waiting.open(),
  "waiting-open": () => waiting.open(),
  "notice-close": () => view.notice(null),
  "mark-plus": () => tools.highlight("+"),
  "mark-minus": () => tools.highlight("-"),
  unfold: () => view.unfold(view.at("unfold").textContent === "Show all"),
};

root.addEventListener("click", (event) => {
  lastInput = performance.now();
  const button = event.target.closest("button");
  if (!button) return;
  const { choice, strength, confidence, dimension: name, side, flag } = button.dataset;
  if ((choice || button.id === "cast") && isTooEarly(event)) return;
  if (choice) choose(choice, strength ? Number(strength) : null);
  else if (confidence) tools.setConfidence(Number(confidence));
  else if (name) tools.setDimension(name, side);
  else if (flag) tools.toggleFlag(flag);
  else CLICKS[button.id]?.();
});
// A click on a button would clear the selection before it can be marked.
for (const id of ["mark-plus", "mark-minus"])
  view.at(id).addEventListener("mousedown", (event) => event.preventDefault());
view.at("reason").addEventListener("input", ({ target }) => {
  if (!draft) return;
  draft.reason = target.value;
  draft.keep();
});
document.addEventListener("pointerdown", () => (lastInput = performance.now()), { passive: true });

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") {
    if (!isPaused) draft?.see();
    outbox.hurry();
    queue.refill();
  } else if (draft) {
    draft.lookAway();
    draft.keep();
  }
});
addEventListener("pagehide", () => {
  draft?.lookAway();
  draft?.keep();
  queue.release();
});
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload(); // what this page held was given back when it was left
});
addEventListener("beforeunload", (event) => {
  if (!outbox.isDurable && outbox.unsent.length) event.preventDefault();
});

setInterval(paintUndo, 1000);
setInterval(() => {
  const lease = (queue.rules?.lease_minutes ?? 10) * 60_000;
  const isHere =
    document.visibilityState === "visible" && !isPaused && performance.now() - lastInput < lease;
  if (!card || !isHere) return;
  const left = Date.parse(card.leased_until) - (Date.now() + queue.skew);
  if (left < (lease * 2) / 3) queue.extend();
}, 5_000);

view.at("more").open = innerHeight >= 680 && innerWidth >= 900;
setCareful(isCareful);
setRaw(isRaw);
setDifferences(setting("differences") === "yes");
view.say("");
view.paintEmpty(null);
outbox.addEventListener(
  "opened",
  () => {
    // Votes that wait since an earlier visit: their cards are judged, those taken back are not.
    for (const entry of outbox.unsent) {
      if (entry.isUndo) queue.judgedIds.delete(entry.card.card_id);
      else queue.judgedIds.add(entry.card.card_id);
    }
    readFigures();
    welcome().then(() => queue.refill());
  },
  { once: true },
);
outbox.open();
