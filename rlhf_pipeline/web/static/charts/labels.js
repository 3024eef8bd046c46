// The mission's words beside the terms of a chart's title, as web/glossary.py writes them.

/** `drift = …` for a text with a term, while the glossary is on; else an empty text. */
export function findLabel(text) {
  const source = document.querySelector("#glossary");
  const plain = text.toLowerCase();
  for (const [term, label] of Object.entries(source ? JSON.parse(source.textContent) : {})) {
    if (new RegExp(`\\b${term}\\b`).test(plain)) {
      return plain === term ? `= ${label}` : `${term} = ${label}`;
    }
  }
  return "";
}
