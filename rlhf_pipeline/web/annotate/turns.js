// Shows a prompt that is a conversation as its turns, which the server reads from it.

import { render } from "../markdown.js";

const ROLES = new Set(["user", "assistant", "system"]);

/** A fragment of a card's prompt. */
export function renderPrompt({ prompt, turns }, isRaw) {
  if (!turns.length) return render(prompt, { isRaw });
  const fragment = document.createDocumentFragment();
  for (const { speaker, text } of turns) {
    const role = speaker.toLowerCase();
    const turn = document.createElement("div");
    turn.className = `turn ${ROLES.has(role) ? role : ""}`;
    const name = document.createElement("p");
    name.className = "speaker";
    name.textContent = speaker;
    turn.append(name, render(text, { isRaw }));
    fragment.append(turn);
  }
  return fragment;
}
