// What every page does beside its HTML: theme, glossary, menu, charts, live figures, Markdown,
// copying. All pages but annotate work without it.

const MOMENT = 5_000; // milliseconds between two looks at the state of the moment

const theme = document.querySelector("#theme");
if (theme) {
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const name = () => (theme.querySelector(".word").textContent = isDark() ? "Light" : "Dark");
  name();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    // read by the server, which renders the next page in it
    document.cookie = `theme=${chosen};path=/;max-age=31536000;samesite=lax`;
    name();
  });
}

const glossary = document.querySelector("#glossary-switch");
if (glossary) {
  glossary.hidden = false;
  glossary.addEventListener("click", () => {
    const wanted = glossary.getAttribute("aria-pressed") === "true" ? "off" : "on";
    // read by the server, which writes the labels
    document.cookie = `glossary=${wanted};path=/;max-age=31536000;samesite=lax`;
    location.reload();
  });
}

const menu = document.querySelector("#menu");
menu?.addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("menu-open");
  menu.setAttribute("aria-expanded", String(isOpen));
});

// now, and for what is loaded later
function onContent(act) {
  act();
  document.addEventListener("htmx:after:swap", act);
}

// 60 kB that only pages with texts load
async function showMarkdown() {
  if (!document.querySelector("[data-markdown], [data-preview]")) return;
  const { render } = await import("./markdown.js");
  for (const pair of document.querySelectorAll("[data-differences]")) await showDifferences(pair);
  for (const box of document.querySelectorAll("[data-markdown]")) {
    const level = Number(box.dataset.markdown) || 2;
    box.removeAttribute("data-markdown");
    box.replaceChildren(render(box.textContent, { level }));
  }
  for (const area of document.querySelectorAll("[data-preview]")) {
    const preview = document.getElementById(area.dataset.preview);
    area.oninput = () => preview.replaceChildren(render(area.value));
    area.oninput();
  }
}
onContent(showMarkdown);

// the words in which a text and its correction differ
async function showDifferences(pair) {
  const { findDifferences } = await import("./annotate/differences.js");
  const { render } = await import("./markdown.js");
  const boxes = [...pair.querySelectorAll("[data-markdown]")];
  pair.removeAttribute("data-differences");
  const texts = boxes.map((box) => box.textContent);
  const found = boxes.length === 2 && findDifferences(...texts);
  if (!found) return;
  boxes.forEach((box, side) => {
    const sign = "-+"[side];
    const marks = found["ab"[side]].map((span) => ({ ...span, sign }));
    box.removeAttribute("data-markdown");
    box.replaceChildren(render(texts[side], { marks }));
  });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// one box ticks all rows of a list, those loaded later too
const tickRows = (all) => {
  const boxes = document.querySelectorAll("input[name=id]");
  for (const box of boxes) box.checked = all.control.checked;
};
const setUpTicks = () => {
  for (const all of document.querySelectorAll("[data-tick-all]")) {
    all.hidden = false;
    if (all.control.checked) tickRows(all);
  }
};
onContent(setUpTicks);
document.addEventListener("change", ({ target }) => {
  const all = target.closest("[data-tick-all]");
  if (all) tickRows(all);
});

// a change of a filter applies at once, and stands in the address; charts read theirs there
document.addEventListener("change", ({ target }) => {
  const form = target.closest("form[data-filters]");
  if (form) applyFilters(form);
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-filters]")) return;
  event.preventDefault();
  applyFilters(event.target);
});
async function applyFilters(form) {
  if (!form.reportValidity()) return;
  const chosen = [...new FormData(form)].filter(([, value]) => value !== "");
  for (const chip of form.querySelectorAll(".chip")) {
    const controls = [...chip.querySelectorAll("input, select")];
    const isSet = ({ value, selectedIndex }) => (selectedIndex ?? Number(value !== "")) > 0;
    chip.classList.toggle("on", controls.some(isSet));
  }
  const address = chosen.length ? `${form.action}?${new URLSearchParams(chosen)}` : form.action;
  // figures above the list change with it
  const list = document.querySelector("main:not(:has([data-whole])) #list");
  if (!list || !globalThis.htmx) return location.assign(address);
  history.pushState({}, "", address);
  await globalThis.htmx.ajax("GET", address, {
    target: "#list", select: "#list", selectOOB: "#list-head", swap: "outerHTML",
  });
}
addEventListener("popstate", () => {
  if (document.querySelector("form[data-filters]")) location.reload();
});

// rows: a click opens the details of a row, j and k go through the rows, / goes to the search
document.addEventListener("click", ({ target }) => {
  const row = target.closest(".list tbody tr");
  if (!row || target.closest("a, button, input, select, label, summary, .aside")) return;
  row.querySelector("summary")?.click();
});
// an address with an anchor opens that row
const anchored = document.getElementById(location.hash.slice(1))?.querySelector("details");
anchored?.setAttribute("open", "");
anchored?.querySelector("summary").focus();
const summaries = () => [...document.querySelectorAll(".list summary")];
function moveTo(step) {
  const rows = summaries();
  const here = document.activeElement.closest(".list tr")?.querySelector("summary");
  const next = rows[rows.indexOf(here) + step] ?? (here ? null : rows[0]);
  if (!next) return;
  next.focus();
  if (document.querySelector(".list details[open]")) next.parentElement.open = true;
}
const KEYS = {
  j: () => moveTo(1),
  k: () => moveTo(-1),
  "/": () => document.querySelector("form[data-filters] [type=search]")?.focus(),
  Escape: () => {
    const open = document.querySelector(".list details[open]");
    open?.removeAttribute("open");
    open?.querySelector("summary").focus();
  },
};
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !summaries().length) return;
  // buttons of the open row name their key
  const key = CSS.escape(event.key);
  const button = document.querySelector(`.list details[open] [data-key="${key}"]`);
  if (!button && !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  if (button) button.click();
  else KEYS[event.key]();
});

// 0.7 MB that only pages with charts load
onContent(() => document.querySelector("[data-chart]") && import("./charts/chart.js"));

// a list to which a person asked for more keeps what they read
document.addEventListener("click", ({ target }) => {
  target.closest(".more a")?.closest("[data-refresh]")?.removeAttribute("data-refresh");
});

// Back leads to as much of a list as was read, and to the place in it
const remember = (values) => history.replaceState({ ...history.state, ...values }, "");
document.addEventListener("click", ({ isTrusted, target }) => {
  if (!isTrusted || !target.closest("a")) return;
  const { more = 0 } = history.state ?? {};
  if (target.closest(".more")) remember({ more: more + 1 });
  else if (more) remember({ top: scrollY });
});
let { more: unread = 0 } = history.state ?? {};
function readOn() {
  const next = document.querySelector(".more a");
  if (next && unread > 0) {
    unread -= 1;
    globalThis.htmx.process(next); // else the click leads to another page
    next.click();
  } else {
    document.removeEventListener("htmx:after:swap", onRead);
    scrollTo(0, history.state.top ?? 0);
  }
}
const onRead = ({ detail }) => detail.ctx.select?.startsWith(".list-more") && readOn();
if (unread && globalThis.htmx) {
  addEventListener("load", readOn);
  document.addEventListener("htmx:after:swap", onRead);
}

// parts of a page that show the state of the moment: none changes in which a person reads details,
// ticked a box, fills a field or asked for more
const BUSY = "details[open], input:checked, :is(input, select, textarea):focus";
const isLive = (part) => part.matches("[data-refresh]") && !part.querySelector(BUSY);
setInterval(() => {
  if (document.visibilityState !== "visible") return;
  for (const part of document.querySelectorAll("[data-refresh]")) {
    if (isLive(part)) globalThis.htmx?.trigger(part, "refresh");
  }
}, MOMENT);

// figures that cannot be read again look as if they were of this moment
function showOutage(text) {
  let words = document.querySelector("#outage");
  if (!text) return words?.remove();
  if (!words) {
    words = Object.assign(document.createElement("p"), { id: "outage", className: "problem" });
    words.setAttribute("role", "status");
    document.querySelector("main").prepend(words);
  }
  if (words.textContent !== text) words.textContent = text; // else it is read aloud again
}
const SOON = "the page is loaded again soon.";
const isRefresh = (context) => context?.sourceElement.matches('[hx-trigger="refresh"]');
document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
  if (isRefresh(ctx) && !ctx.response) showOutage(`The server does not respond; ${SOON}`);
});
document.addEventListener("htmx:before:response", (event) => {
  const { ctx } = event.detail;
  if (!isRefresh(ctx)) return;
  const { raw, status } = ctx.response;
  const isLoggedOut = raw.redirected && new URL(raw.url).pathname === "/login";
  if (isLoggedOut) event.preventDefault(); // the login page lacks this part
  if (isLoggedOut) showOutage("You are logged out. Log in and reload the page.");
  else showOutage(status < 500 ? "" : `The server answered ${status}; ${SOON}`);
});
// an answer that comes after a person began to read replaces nothing
document.addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail;
  if (isRefresh(ctx) && !isLive(ctx.sourceElement)) event.preventDefault();
});
