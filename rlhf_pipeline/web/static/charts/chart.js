// Draws each <figure data-chart="address of a chart record"> and keeps it current.

import { init } from "../vendor/echarts.min.js";
import { countPoints, downloadCsv, downloadPng, fillTable } from "./files.js";
import { drawKey } from "./keys.js";
import { findLabel } from "./labels.js";
import { canZoom, findLink, optionsOf, shownDays, zoomAction } from "./options.js";
import { isoDay } from "./values.js";

const EVERY = 8_000; // milliseconds between two requests for a chart: changes show within 10 s
// parameters of the page's address that its charts take over
const FILTERS = [
  "by", "since", "until", "day", "space", "category", "source", "group", "model", "version",
  "dimension"
];
const UNREACHABLE = "The server does not respond; the chart is loaded again soon.";
const charts = new Set();
let zoom = readZoom(); // first and last day shown by all charts of the page; null: all

class LiveChart {
  constructor(figure) {
    this.figure = figure;
    this.hidden = new Set(); // names that the legend turned off
    this.status = element("p", { role: "status", className: "hint" }, "Loading the chart…");
    this.title = element("figcaption");
    this.actions = element("div", { className: "chart-actions" });
    this.legend = element("div", { className: "chart-legend" });
    this.drawing = element("div", { className: "chart-drawing" });
    this.notes = element("p", { className: "hint" });
    this.table = element("details", {}, element("summary", {}, "Table"));
    this.reset = button("Reset zoom", () => setZoom(null));
    this.actions.append(
      this.reset,
      button("PNG", () => this.savePng()),
      button("CSV", () => downloadCsv(this.chart)),
    );
    this.head = element("div", { className: "chart-head" });
    this.head.append(this.title, this.actions);
    this.body = [this.legend, this.drawing, this.notes, this.table];
    figure.replaceChildren(this.head, this.status, ...this.body);
    this.table.addEventListener("toggle", () => this.showTable());
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.drawing);
    this.showState("Loading the chart…");
  }

  async refresh() {
    const url = new URL(this.figure.dataset.chart, location.href);
    const page = new URLSearchParams(location.search);
    for (const name of FILTERS) {
      if (page.get(name)) url.searchParams.set(name, page.get(name));
    }
    this.askedAt = Date.now();
    try {
      const answer = await fetch(url, { cache: "no-store" });
      if (answer.status === 401) throw new Error("You are logged out. Log in and reload the page.");
      const found = await answer.json();
      if (answer.headers.has("retry-after")) return this.waitFor(answer, found.detail);
      if (!answer.ok) throw new Error(found.detail ?? `The server answered ${answer.status}.`);
      this.chart = found;
      this.showError("");
      this.draw();
    } catch (error) {
      this.showError(error instanceof TypeError ? UNREACHABLE : error.message);
    }
  }

  // Figures that are still being counted are asked for again as soon as the server says.
  waitFor(answer, text) {
    this.askedAt += 1000 * Number(answer.headers.get("retry-after")) - EVERY;
    if (!this.chart) this.showState(text);
  }

  draw() {
    const { chart } = this;
    this.title.textContent = chart.title;
    const label = findLabel(chart.title);
    if (label) this.title.append(element("small", { className: "gloss" }, ` ${label}`));
    if (!countPoints(chart)) {
      this.instance?.dispose();
      this.instance = null;
      this.showState(chart.notes.join(" ") || "No data for these filters.");
      return;
    }
    this.showState("");
    this.width = this.drawing.clientWidth;
    this.roles = readRoles(this.figure);
    const colour = (role) => this.roles(role);
    const { options, height } = optionsOf(chart, { width: this.width, colour, zoom });
    options.legend.selected = Object.fromEntries([...this.hidden].map((name) => [name, false]));
    this.drawing.style.height = `${height}px`;
    if (!this.instance) {
      this.instance = init(this.drawing, null, { renderer: "canvas" });
      let hit = ""; // link of the item itself, which is reported after the click on the canvas
      this.instance.on("click", ({ data }) => (hit = data?.link ?? ""));
      this.instance.getZr().on("click", ({ offsetX, offsetY }) => {
        hit = "";
        queueMicrotask(() => {
          follow(hit || findLink(this.instance, this.chart, [offsetX, offsetY]));
        });
      });
      this.instance.on("datazoom", ({ batch }) => batch?.length !== 0 && this.zoomed());
    }
    this.instance.resize({ width: this.width, height });
    this.instance.setOption(options, { notMerge: true });
    this.showLegend();
    const notes = hasLinks(chart) ? [...chart.notes, "click a point for its rows"] : chart.notes;
    this.notes.textContent = notes.join(" · ");
    this.notes.hidden = !notes.length;
    this.reset.hidden = !(zoom && canZoom(chart));
    this.showTable();
  }

  zoomed() {
    if (this.isFollowing) return;
    setZoom(shownDays(this.instance), this);
  }

  // Show the days that another chart of the page was zoomed to.
  followZoom() {
    if (!this.instance || !canZoom(this.chart)) return;
    this.isFollowing = true;
    this.instance.dispatchAction(zoomAction(zoom));
    this.isFollowing = false;
  }

  fit() {
    if (this.instance && ![0, this.width].includes(this.drawing.clientWidth)) this.draw();
  }

  showLegend() {
    const entries = legendOf(this.chart);
    this.legend.replaceChildren(
      ...entries.map((entry) => {
        const { name } = entry;
        const key = element("img", { className: "key", alt: "", src: drawKey(entry, this.roles) });
        const one = button(name, () => this.toggle(name));
        one.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        one.prepend(key);
        return one;
      }),
    );
    this.legend.hidden = !entries.length;
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.instance.dispatchAction({ type: "legendToggleSelect", name });
    this.showLegend();
  }

  showTable() {
    if (!this.table.open || !this.chart) return;
    const box = element("div", { className: "scroll", tabIndex: 0, role: "region" });
    box.setAttribute("aria-label", `Numbers of: ${this.chart.title}`);
    const table = element("table");
    fillTable(table, this.chart);
    box.append(table);
    this.table.replaceChildren(this.table.firstElementChild, box);
  }

  savePng() {
    const drawing = this.instance.renderToCanvas({ pixelRatio: 2 });
    const legend = legendOf(this.chart).filter(({ name }) => !this.hidden.has(name));
    downloadPng(this.chart, drawing, { legend, colour: this.roles });
  }

  // An empty text shows the drawing, any other hides it.
  showState(text) {
    this.status.textContent = text;
    this.status.className = "hint";
    this.status.hidden = !text;
    this.actions.hidden = Boolean(text);
    for (const part of this.body) part.hidden = Boolean(text);
  }

  showError(text) {
    if (!text && this.status.className !== "problem") return;
    this.status.textContent = text;
    this.status.className = text ? "problem" : "hint";
    this.status.hidden = !text;
    if (!text && this.chart) this.draw();
  }
}

function legendOf(chart) {
  const items = chart.panels.filter(Boolean).flatMap((panel) => [...panel.series, ...panel.marks]);
  const named = new Map();
  for (const item of items) if (item.name && !named.has(item.name)) named.set(item.name, item);
  return [...named.values()];
}

const hasLinks = (chart) =>
  chart.panels.some((panel) => panel?.series.some((series) => series.links.length));

// Colours by role, from the style sheet, as the theme has them now.
function readRoles(figure) {
  const style = getComputedStyle(figure);
  return (role) => style.getPropertyValue(`--chart-${role}`).trim();
}

function follow(link) {
  if (link?.startsWith("/") && !link.startsWith("//")) location.assign(link);
}

function setZoom(days, source = null) {
  zoom = days;
  const address = new URL(location.href);
  if (zoom) address.searchParams.set("zoom", zoom.map((day) => isoDay(day)).join(".."));
  else address.searchParams.delete("zoom");
  history.replaceState(history.state, "", address);
  for (const one of charts) {
    if (one !== source) one.followZoom();
    if (one.chart) one.reset.hidden = !(zoom && canZoom(one.chart));
  }
}

function readZoom() {
  const text = new URLSearchParams(location.search).get("zoom") ?? "";
  const days = text.split("..").map((day) => Date.parse(`${day}T00:00:00Z`) / 86_400_000);
  return days.length === 2 && days.every(Number.isFinite) && days[0] < days[1] ? days : null;
}

function element(name, values = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, values);
  made.append(...children);
  return made;
}

function button(text, act) {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", act);
  return made;
}

function start() {
  for (const one of charts) {
    if (one.figure.isConnected) continue;
    one.instance?.dispose();
    one.sizes.disconnect();
    charts.delete(one);
  }
  const known = new Set([...charts].map((one) => one.figure));
  for (const figure of document.querySelectorAll("[data-chart]")) {
    if (known.has(figure)) continue;
    const one = new LiveChart(figure);
    charts.add(one);
    one.refresh();
  }
}

function refreshOld() {
  if (document.visibilityState !== "visible") return;
  for (const one of charts) if (Date.now() - one.askedAt >= EVERY) one.refresh();
}

const redraw = () => {
  for (const one of charts) if (one.instance) one.draw();
};
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("htmx:after:swap", start);
document.addEventListener("visibilitychange", refreshOld);
setInterval(refreshOld, 1_000);
start();
