// The unsent judgement of one card: choice, strength, reason, rubric and highlights.

import { asSent } from "./highlights.js";

const PREFIX = "rlhf-draft:";

/** Whether a card asks for a rating of one completion; on others one of two is chosen. */
export const isRating = (card) => card?.kind === "rating";

/** Choice and strength of an entry; the strength of a rating is its value. */
export function judgementOf({ body }) {
  if (!("value" in body)) return body;
  return { choice: body.value === null ? "skip" : "rate", strength: body.value };
}

export class Draft {
  constructor(card, kept = {}) {
    this.card = card;
    this.choice = null; // chosen, not cast yet
    this.strength = null;
    this.reason = kept.reason ?? "";
    this.confidence = kept.confidence ?? null;
    this.dimensions = kept.dimensions ?? {};
    this.marks = kept.marks ?? { a: [], b: [] };
    this.flags = kept.flags ?? [];
    this.after = kept.after ?? null; // key of the entry that this vote replaces
    this.visible = kept.visible ?? 0; // milliseconds for which the card could be seen
    this.since = null; // when it came into sight, by performance.now()
  }

  /** Restore the judgement of this card from before a reload. */
  static of(card) {
    try {
      return new Draft(card, JSON.parse(sessionStorage.getItem(PREFIX + card.card_id) ?? "{}"));
    } catch {
      return new Draft(card);
    }
  }

  see() {
    this.since ??= performance.now();
  }

  lookAway() {
    if (this.since !== null) this.visible += performance.now() - this.since;
    this.since = null;
  }

  keep() {
    try {
      sessionStorage.setItem(PREFIX + this.card.card_id, JSON.stringify(this.copy()));
    } catch {
      // Without storage a draft lives as long as the page.
    }
  }

  forget() {
    try {
      sessionStorage.removeItem(PREFIX + this.card.card_id);
    } catch {
      // as above
    }
  }

  /** A copy to edit again, after a reload or when the vote is undone. */
  copy() {
    const { reason, confidence, dimensions, marks, flags, after } = this;
    const visible = this.visible + (this.since === null ? 0 : performance.now() - this.since);
    return structuredClone({ reason, confidence, dimensions, marks, flags, after, visible });
  }

  /** The vote or rating in the form of the API. */
  body(votedAt) {
    const { card, choice, strength } = this;
    if (isRating(card)) {
      const text = this.reason.trim() || null;
      const flags = this.flags;
      return { card_id: card.card_id, value: strength, text, flags, rated_at: votedAt };
    }
    const highlights = [
      ...asSent(card.left, this.marks.a, "a"),
      ...asSent(card.right, this.marks.b, "b"),
    ];
    return {
      card_id: card.card_id,
      choice,
      strength,
      reason: this.reason.trim() || null,
      stated_confidence: this.confidence,
      duration_s: Math.min(86_400, Math.round(this.visible) / 1000),
      voted_at: votedAt,
      dimensions: this.dimensions,
      highlights: highlights.slice(0, 200),
      flags: this.flags,
    };
  }
}
