// The practice round of a new annotator: cards with known answers, judged as later ones are. What
// is chosen stays in the page.

const SIDES = { a: "A is better", b: "B is better", tie: "both are equally good" };

export class Practice {
  constructor(view, user) {
    this.view = view;
    this.user = user;
    this.cards = [];
    this.n = 0; // of the card that is shown
    this.isOn = false;
    this.known = null; // the answer, once it is shown
    this.isAsking = false;
  }

  /** What the server says of this visit; null if it does not answer: then there is no round. */
  async load() {
    const headers = { "X-Annotator": this.user };
    const response = await fetch("/api/v1/practice", { headers }).catch(() => null);
    return response?.ok ? response.json().catch(() => null) : null;
  }

  begin(cards) {
    this.cards = cards;
    this.n = 0;
    this.isOn = cards.length > 0;
  }

  /** The next card of the round; null after the last. */
  next() {
    this.known = null;
    const card = this.cards[this.n];
    if (!card) return this.end();
    this.n += 1;
    const place = `Practice ${this.n} of ${this.cards.length}`;
    this.paint(`${place}. Judge as you will later: this is not a vote.`);
    return card;
  }

  end() {
    this.isOn = false;
    this.known = null;
    this.view.at("practice").hidden = true;
    return null;
  }

  /** Show the known answer beside the choice. */
  async judge(card, choice) {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const id = encodeURIComponent(card.comparison_id);
      const response = await fetch(`/api/v1/practice/${id}:reveal`, {
        method: "POST",
        headers: { "X-Annotator": this.user },
      });
      if (!response.ok) throw new Error(String(response.status));
      const answer = await response.json();
      this.known = answer.choice;
      const verdict = choice === this.known ? "Right" : "Not the known answer";
      const reason = answer.reason ? `; ${answer.reason}` : "";
      this.paint(`${verdict}: ${SIDES[this.known]}${reason}.`);
    } catch {
      this.known = "unknown";
      this.paint("The known answer could not be loaded.");
    } finally {
      this.isAsking = false;
    }
  }

  paint(text) {
    this.view.at("practice").hidden = false;
    this.view.at("practice-text").textContent = text;
    this.view.at("practice-next").hidden = this.known === null;
  }
}

/** A card as the page takes it. */
export function cardOf(practised) {
  return { ...practised, card_id: `practice:${practised.comparison_id}` };
}
