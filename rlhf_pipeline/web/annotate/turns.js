// Shows a prompt that holds a dialogue as its turns.

import { render } from "../markdown.js";

const ROLES = {
  human: "user", user: "user", assistant: "assistant", ai: "assistant", system: "system",
};
const LABEL = /^(Human|User|Assistant|AI|System):[ \t]*/gm;

/** A fragment of the prompt; as it was written with `isRaw`, or where it holds no dialogue. */
export function renderPrompt(raw, isRaw) {
  const turns = isRaw ? null : splitTurns(raw);
  if (turns === null) return render(raw, { isRaw });
  const fragment = document.createDocumentFragment();
  for (const { name, text } of turns) {
    const turn = document.createElement("div");
    turn.className = `turn ${ROLES[name.toLowerCase()] ?? ""}`;
    const speaker = document.createElement("p");
    speaker.className = "speaker";
    speaker.textContent = name;
    turn.append(speaker, render(text));
    fragment.append(turn);
  }
  return fragment;
}

/** Turns {name, text} of a list of messages in JSON or of lines that begin with a speaker, as in
 * `Human: …`; null for any other text. A turn without text, as the one to be completed, is left
 * out. */
export function splitTurns(raw) {
  const turns = (readMessages(raw) ?? readTranscript(raw))?.filter(({ text }) => text);
  return turns?.length ? turns : null;
}

function readMessages(raw) {
  if (!raw.trimStart().startsWith("[")) return null;
  let messages;
  try {
    messages = JSON.parse(raw);
  } catch {
    return null;
  }
  const isDialogue = messages.every(
    (one) => typeof one?.role === "string" && typeof one.content === "string",
  );
  return isDialogue
    ? messages.map(({ role, content }) => ({ name: capitalise(role), text: content.trim() }))
    : null;
}

function readTranscript(raw) {
  const labels = [...raw.matchAll(LABEL)];
  if (!labels.length || raw.slice(0, labels[0].index).trim()) return null;
  const roles = labels.map(([, name]) => ROLES[name.toLowerCase()]);
  // A text with one speaker only is a list of fields, not a dialogue.
  if (!roles.includes("user") || !roles.includes("assistant")) return null;
  return labels.map((label, i) => ({
    name: label[1],
    text: raw.slice(label.index + label[0].length, labels[i + 1]?.index).trim(),
  }));
}

function capitalise(word) {
  return word.charAt(0).toUpperCase() + word.slice(1);
}
