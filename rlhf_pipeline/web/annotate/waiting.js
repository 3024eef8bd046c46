// The dialog of votes that wait on this device: lists them, and offers what can be done with those
// that the server refuses.

import { judgementOf } from "./draft.js";
import { withCode } from "./view.js";

const IN_A_BATCH = 50; // votes, the most that the server takes at once

export class Waiting {
  /** `describeVote` returns an entry's vote in words. */
  constructor(view, outbox, describeVote) {
    this.view = view;
    this.outbox = outbox;
    this.describeVote = describeVote;
    this.asked = null; // key of the entry whose discarding is to be confirmed
    this.dialog = view.at("waiting");
    this.list = view.at("waiting-list");
    this.list.addEventListener("click", ({ target }) => this.pressed(target.closest("button")));
    view.at("waiting-download").addEventListener("click", () => this.download());
    outbox.addEventListener("state", () => this.paint());
  }

  open() {
    this.asked = null;
    this.dialog.showModal();
    this.paint();
  }

  paint() {
    if (!this.dialog.open) return;
    const { unsent, refusals } = this.outbox;
    const shows = JSON.stringify([this.asked, unsent.map(({ key }) => [key, refusals.get(key)])]);
    // a redrawn button would lose the focus
    if (this.list.dataset.shows === shows) return;
    this.list.dataset.shows = shows;
    const focused = document.activeElement?.dataset.key;
    this.list.replaceChildren(...unsent.map((entry) => this.row(entry, refusals.get(entry.key))));
    if (focused) this.list.querySelector(`button[data-key="${CSS.escape(focused)}"]`)?.focus();
    this.view.at("waiting-none").hidden = unsent.length > 0;
    this.view.at("waiting-download").hidden = unsent.length === 0;
  }

  row(entry, refusal) {
    const row = this.view.at("waiting-row").content.cloneNode(true);
    const [what, prompt, why, button] = row.firstElementChild.children;
    const { choice, strength } = judgementOf(entry);
    what.textContent = entry.isUndo ? "Undone" : this.describeVote(choice, strength);
    prompt.textContent = entry.card.prompt;
    const said = refusal && `Refused by the server (${refusal.status}): ${refusal.detail}`;
    why.append(...withCode(said || "Waiting to be sent."));
    button.hidden = !refusal;
    button.dataset.key = entry.key;
    button.textContent = this.asked === entry.key ? "Discard permanently" : "Discard";
    return row;
  }

  /** The second press on the same button discards. */
  async pressed(button) {
    if (!button) return;
    const { key } = button.dataset;
    const isSecond = this.asked === key;
    this.asked = isSecond ? null : key;
    if (isSecond) await this.outbox.discard(key);
    this.paint();
  }

  /** As `POST votes:batch` takes them, so that whoever runs the server can send them; whose they
   * are stands in the files' names. */
  async download() {
    const votes = await this.outbox.votes();
    for (let n = 0; n * IN_A_BATCH < Math.max(1, votes.length); n += 1) {
      const some = votes.slice(n * IN_A_BATCH, (n + 1) * IN_A_BATCH);
      this.save(`unsent-votes-of-${this.outbox.user}${n ? `-${n + 1}` : ""}.json`, { votes: some });
    }
    const { ratings, user } = this.outbox;
    if (ratings.length) this.save(`unsent-ratings-of-${user}.json`, { ratings });
  }

  save(download, content) {
    const href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)]));
    const link = Object.assign(document.createElement("a"), { href, download });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }
}
