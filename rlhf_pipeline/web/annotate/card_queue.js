// The annotator's card queue: leases cards ahead, renews them while the page is open, and gives
// them back.

const LEAST_AHEAD = 3;
const MOST_AT_ONCE = 20;
const LOOK_AGAIN = 20_000; // milliseconds, where there is nothing to judge
const TRY_AGAIN = 2_000;

/** Tells by events: `dealt` (cards came), `empty` (none are left, and why), `trouble` (no answer),
 * `gone` (another tab judged a card). */
export class CardQueue extends EventTarget {
  constructor(user, unsentCards) {
    super();
    this.user = user;
    this.cards = []; // ahead of the one that is shown
    this.shown = null;
    this.judgedIds = new Set(); // card ids, whether or not their votes arrived yet
    this.elsewhere = new Set(); // shown in other tabs
    this.unsentCards = unsentCards; // how many judged cards the server still counts as held
    this.rules = null;
    this.guidelineVersion = null;
    this.remaining = null;
    this.skew = 0; // milliseconds by which the server's clock is ahead of ours
    this.isLeasing = false;
    this.timer = 0;
    this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("rlhf-annotate") : null;
    this.channel?.addEventListener("message", ({ data }) => this.onMessage(data));
    this.say({ what: "hello" });
  }

  get ahead() {
    return Math.max(LEAST_AHEAD, this.rules?.prefetch ?? 0);
  }

  /** The next card, marked as shown; null if none is loaded. */
  next() {
    this.shown = this.cards.shift() ?? null;
    if (this.shown) this.say({ what: "shown", id: this.shown.card_id });
    return this.shown;
  }

  putBack(card) {
    this.cards.unshift(card);
  }

  judge(card) {
    this.judgedIds.add(card.card_id);
    this.say({ what: "judged", id: card.card_id });
  }

  /** Drop a card whose vote stands after all, if it is queued. */
  stand(card) {
    this.judge(card);
    this.cards = this.cards.filter((one) => one.card_id !== card.card_id);
  }

  /** Allow a card to be dealt again whose vote will never arrive. */
  unjudge(card) {
    this.judgedIds.delete(card.card_id);
    this.refill();
  }

  takeBack(card) {
    this.judgedIds.delete(card.card_id);
    this.cards = this.cards.filter((one) => one.card_id !== card.card_id);
    this.shown = card;
    this.say({ what: "shown", id: card.card_id });
  }

  /** Lease more cards if fewer than wanted are queued. */
  async refill() {
    const enough = this.cards.length >= this.ahead || this.cards.length > LEAST_AHEAD;
    if (this.isLeasing || (this.shown && enough)) return;
    this.isLeasing = true;
    clearTimeout(this.timer);
    const n = Math.min(MOST_AT_ONCE, this.ahead + 1 + this.unsentCards());
    const asked = Date.now();
    const response = await this.post("/api/v1/cards:lease", { n, ratings: true }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    this.isLeasing = false;
    if (!response?.ok || !answer) {
      const detail = { status: response?.ok ? 0 : response?.status ?? 0, kind: answer?.type };
      this.dispatchEvent(new CustomEvent("trouble", { detail }));
      this.timer = setTimeout(() => this.refill(), TRY_AGAIN);
      return;
    }
    const told = Date.parse(response.headers.get("Date") ?? "");
    // The header has whole seconds, so small differences of the clocks are ignored.
    const skew = told + 500 - (asked + Date.now()) / 2;
    this.skew = Math.abs(skew) > 3000 ? skew : 0;
    const isMore = this.take(answer) > 0 && answer.cards.length === n;
    if (isMore) await this.refill(); // the rules may want more ahead than was known
  }

  /** Queue cards that are not known yet. */
  take(lease) {
    this.rules = lease.rules;
    this.guidelineVersion = lease.guideline_version;
    this.remaining = lease.remaining;
    const known = new Set(this.cards.map((card) => card.card_id));
    if (this.shown) known.add(this.shown.card_id);
    const fresh = lease.cards.filter(
      (card) => !known.has(card.card_id) && !this.judgedIds.has(card.card_id),
    );
    // A card that another tab shows comes last: it will be judged there.
    const isElsewhere = (card) => this.elsewhere.has(card.card_id);
    this.cards.push(...fresh.filter((card) => !isElsewhere(card)), ...fresh.filter(isElsewhere));
    for (const card of this.cards) {
      const again = lease.cards.find((one) => one.card_id === card.card_id);
      if (again) card.leased_until = again.leased_until;
    }
    const isEmpty = !this.shown && this.cards.length === 0;
    this.dispatchEvent(new CustomEvent("dealt"));
    if (isEmpty) {
      const detail = { reason: lease.cards.length ? "sending" : lease.reason_empty };
      this.dispatchEvent(new CustomEvent("empty", { detail }));
      this.timer = setTimeout(() => this.refill(), lease.cards.length ? TRY_AGAIN : LOOK_AGAIN);
    }
    return fresh.length;
  }

  /** Extend all leases while a card is shown. */
  async extend() {
    // A vote after the end of its lease is kept as well.
    const response = await this.post("/api/v1/cards:extend").catch(() => null);
    if (!response?.ok || !this.rules) return;
    const end = Date.now() + this.skew + this.rules.lease_minutes * 60_000;
    for (const card of [this.shown, ...this.cards])
      if (card) card.leased_until = new Date(end).toISOString();
  }

  /** Release all cards when the page is left. */
  release() {
    for (const card of [this.shown, ...this.cards]) {
      if (!card || this.judgedIds.has(card.card_id) || this.elsewhere.has(card.card_id)) continue;
      const path = `/api/v1/cards/${encodeURIComponent(card.card_id)}:release`;
      this.post(path, undefined, { keepalive: true }).catch(() => {});
    }
    if (this.shown) this.say({ what: "left", id: this.shown.card_id });
    this.cards = [];
  }

  /** Request for this user, even if another user logged in by another tab. */
  post(path, body, more = {}) {
    const headers = { "X-Annotator": this.user, "Content-Type": "application/json" };
    return fetch(path, { method: "POST", headers, body: JSON.stringify(body), ...more });
  }

  say(message) {
    this.channel?.postMessage(message);
  }

  onMessage({ what, id }) {
    if (what === "hello" && this.shown) this.say({ what: "shown", id: this.shown.card_id });
    if (what === "left") this.elsewhere.delete(id);
    if (what === "shown") {
      this.elsewhere.add(id);
      this.judgedIds.delete(id);
      const at = this.cards.findIndex((card) => card.card_id === id);
      if (at >= 0) this.cards.push(...this.cards.splice(at, 1));
    }
    if (what === "judged") {
      this.elsewhere.delete(id);
      this.judgedIds.add(id);
      this.cards = this.cards.filter((card) => card.card_id !== id);
      if (this.shown?.card_id === id) this.dispatchEvent(new CustomEvent("gone"));
    }
  }
}
