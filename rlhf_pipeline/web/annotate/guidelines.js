// The guidelines: their dialog, and the notice that another version applies.

import { render } from "../markdown.js";

const NONE =
  "This project has no guidelines yet. Prefer the completion that helps the author of the " +
  "prompt most.";

export class Guidelines {
  constructor(view, queue) {
    this.view = view;
    this.queue = queue;
    this.dialog = view.at("guidelines");
    this.shown = null; // the version in the dialog
  }

  announce() {
    const version = String(this.queue.guidelineVersion);
    const label = this.view.at("guideline-version");
    if (label.textContent === `v${version}`) return;
    const isNew = label.textContent !== "";
    label.textContent = `v${version}`;
    if (isNew)
      this.view.notice(
        `The guidelines changed: version ${version} applies from now on. ` +
          "The button Guidelines opens it.",
      );
  }

  async open() {
    const body = this.view.at("guidelines-text");
    const version = this.queue.guidelineVersion;
    this.dialog.showModal();
    if (!version) body.textContent = NONE;
    if (!version || this.shown === version) return;
    try {
      const response = await fetch(`/api/v1/guidelines/${version}`);
      if (!response.ok) throw new Error(String(response.status));
      body.replaceChildren(render((await response.json()).text));
      this.shown = version;
    } catch {
      body.textContent = "Loading the guidelines failed. Check the connection and try again.";
    }
  }

  /** At the first visit; resolves when they are closed. */
  async openOnce() {
    this.view.at("guidelines-once").hidden = false;
    this.open();
    await new Promise((go) => this.dialog.addEventListener("close", go, { once: true }));
    this.view.at("guidelines-once").hidden = true;
  }
}
