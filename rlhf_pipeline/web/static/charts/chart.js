// Draws each <figure data-chart="address of a chart record"> and keeps it current.

import { init } from "../vendor/echarts.min.js";
import { isLong, isoDay, nameOf, optionOf, rangeOf, shownDays } from "./panel.js";
import { glyphOf } from "./series.js";

const EVERY = 8_000; // milliseconds between two requests for a chart: changes show within 10 s
// parameters of the page's address that its charts take over
const FILTERS =
  "by since until day space category source group model version dimension".split(" ");
const UNREACHABLE = "The server does not respond; the chart is loaded again soon.";
const dark = matchMedia("(prefers-color-scheme: dark)");
let charts = [];
let followed = 0; // when a link was
let zoom = readZoom(); // first and last day shown by all charts of the page; null: all

class LiveChart {
  constructor(figure) {
    this.figure = figure;
    this.part = (name) => figure.querySelector(`.chart-${name}`);
    this.selected = {}; // by name: false where the legend turned it off
    this.instances = []; // of ECharts, one for each panel
    this.pointed = new Map(); // by the drawing of a panel: what its tooltip shows of a curve
    this.part("table").addEventListener("toggle", () => this.showTable());
    this.part("reset").addEventListener("click", () => setZoom(null));
    new ResizeObserver(() => this.instances.forEach((one) => one.resize())).observe(figure);
    this.refresh();
  }

  /** With the filters of the page; in `format`, if given. */
  addressOf(format) {
    const url = new URL(this.figure.dataset.chart, location.href);
    const page = new URLSearchParams(location.search);
    for (const name of FILTERS) if (page.get(name)) url.searchParams.set(name, page.get(name));
    if (format) url.searchParams.set("format", format);
    return url;
  }

  async refresh() {
    this.askedAt = Date.now();
    try {
      const answer = await fetch(this.addressOf(), { cache: "no-store" });
      if (answer.status === 401) throw new Error("You are logged out. Log in and reload the page.");
      const found = await answer.json();
      const wait = answer.headers.get("retry-after"); // figures are still being counted
      if (wait) this.askedAt += 1000 * wait - EVERY;
      else if (!answer.ok) throw new Error(found.detail ?? `The server answered ${answer.status}.`);
      else this.chart = found;
      if (this.chart) this.draw();
      else this.say(found.detail);
    } catch (error) {
      this.say(error instanceof TypeError ? UNREACHABLE : error.message, "problem");
    }
  }

  /** Above the last drawing, which stays. */
  say(text, look = "hint") {
    const status = { textContent: text, hidden: !text, className: `chart-status ${look}` };
    Object.assign(this.part("status"), status);
  }

  draw() {
    const { chart } = this;
    const panels = chart.panels.filter(Boolean);
    const series = panels.flatMap((panel) => panel.series);
    const isEmpty = !series.some(({ x }) => x.length);
    this.say(isEmpty ? chart.notes.join(" ") || "No data for these filters." : "");
    this.part("title").textContent = chart.title;
    this.part("actions").hidden = this.part("body").hidden = isEmpty;
    if (isEmpty) return;
    const probe = this.part("legend"); // its entries have colours of their own
    this.colour = (role) => {
      probe.style.color = `var(--chart-${role})`;
      return getComputedStyle(probe).color;
    };
    this.drawPanels(panels);
    const isLinked = series.some(({ links }) => links.length);
    const notes = isLinked ? [...chart.notes, "click a point for its rows"] : chart.notes;
    this.part("notes").textContent = notes.join(" · ");
    this.part("reset").hidden = !(zoom && panels.some(isLong));
    for (const format of ["png", "csv"]) this.part(format).href = this.addressOf(format);
    this.showTable();
  }

  drawPanels(panels) {
    const box = this.part("drawing");
    box.setAttribute("aria-label", this.chart.alt);
    box.style.setProperty("--columns", this.chart.columns);
    const items = panels.flatMap((panel) => [...panel.series, ...panel.marks]);
    const named = new Map(items.map((one) => [one.name, one]));
    named.delete("");
    // all is made anew for other panels or series, and in another theme
    const heads = panels.map(({ title, notes }) => [title, notes]);
    const theme = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
    const shape = JSON.stringify([theme, heads, ...named.keys()]);
    if (box.dataset.shape !== shape) {
      for (const one of this.instances) one.dispose();
      box.replaceChildren(...this.chart.panels.map(frameOf));
      const frames = [...box.querySelectorAll(".panel-drawing")];
      this.instances = frames.map((frame) => this.start(frame, theme));
      this.part("legend").replaceChildren(...[...named].map(this.makeLegendEntry, this));
      box.dataset.shape = shape;
    }
    const lengths = panels.flatMap(({ y }) => y.ticks.map(({ label }) => label.length));
    const width = this.instances[0].getDom().clientWidth;
    const left = Math.min(20 + 7.2 * Math.max(0, ...lengths), width * 0.4);
    const last = panels.findLastIndex(isLong);
    for (const [i, panel] of panels.entries()) {
      const { option, height } = optionOf(panel, {
        left, zoom, hasSlider: i === last, colour: this.colour,
        onPoint: (point) => this.pointed.set(this.instances[i].getDom(), point),
      });
      option.legend.selected = this.selected;
      this.instances[i].getDom().style.height = `${height}px`;
      this.instances[i].resize();
      this.instances[i].setOption(option, { notMerge: true });
    }
  }

  start(frame, theme) {
    const instance = init(frame, theme);
    instance.on("click", ({ data }) => follow(data?.link));
    // a curve of many points has no symbols to hit: a click leads where the tooltip points
    instance.getZr().on("click", ({ offsetX, offsetY }) => {
      const { series, i } = this.pointed.get(frame) ?? {};
      if (instance.containPixel("grid", [offsetX, offsetY])) follow(series?.links[i]);
    });
    instance.on("datazoom", () => setZoom(shownDays(instance)));
    return instance;
  }

  makeLegendEntry([name, item]) {
    const key = make("span", { ariaHidden: "true" }, glyphOf(item));
    key.style.color = this.colour(item.role);
    const entry = make("button", { ariaPressed: String(this.selected[name] ?? true) }, key, name);
    entry.addEventListener("click", () => {
      this.selected[name] = entry.ariaPressed === "false";
      entry.ariaPressed = String(this.selected[name]);
      this.draw();
    });
    return entry;
  }

  async showTable() {
    if (!this.part("table").open) return;
    const answer = await fetch(this.addressOf("html"), { cache: "no-store" }).catch(() => null);
    if (answer?.ok) this.part("numbers").innerHTML = await answer.text();
  }
}

/** A place for a panel; empty for none. */
function frameOf(panel) {
  const box = make("div", { className: "chart-panel" });
  if (!panel) return box;
  const notes = [...panel.notes, nameOf(panel.y)].join("; ");
  if (panel.title) box.append(make("b", {}, panel.title));
  box.append(make("small", {}, notes), make("div", { className: "panel-drawing" }));
  return box;
}

function make(name, values, ...children) {
  const made = Object.assign(document.createElement(name), values);
  made.append(...children);
  return made;
}

/** Once, also for a double click and for a point that both listeners hear. */
function follow(link) {
  if (!link?.startsWith("/") || link.startsWith("//") || Date.now() < followed + 1000) return;
  followed = Date.now();
  location.assign(link);
}

function setZoom(days) {
  zoom = days;
  const address = new URL(location.href);
  if (zoom) address.searchParams.set("zoom", zoom.map((day) => isoDay(day)).join(".."));
  else address.searchParams.delete("zoom");
  history.replaceState(history.state, "", address);
  for (const { chart, instances, part } of charts) {
    const action = { type: "dataZoom", ...rangeOf(zoom) };
    for (const one of instances) one.dispatchAction(action, { silent: true });
    part("reset").hidden = !(zoom && chart?.panels.some((panel) => panel && isLong(panel)));
  }
}

function readZoom() {
  const text = new URLSearchParams(location.search).get("zoom") ?? "";
  const days = text.split("..").map((day) => Date.parse(`${day}T00:00:00Z`) / 86_400_000);
  return days.length === 2 && days.every(Number.isFinite) && days[0] < days[1] ? days : null;
}

function start() {
  for (const { figure, instances } of charts)
    if (!figure.isConnected) instances.forEach((one) => one.dispose());
  charts = charts.filter(({ figure }) => figure.isConnected);
  for (const figure of document.querySelectorAll("[data-chart]"))
    if (!charts.some((one) => one.figure === figure)) charts.push(new LiveChart(figure));
}

function refreshOld() {
  if (document.visibilityState !== "visible") return;
  for (const one of charts) if (Date.now() - one.askedAt >= EVERY) one.refresh();
}

const redraw = () => charts.forEach((one) => one.chart && one.draw());
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
dark.addEventListener("change", redraw);
document.addEventListener("htmx:after:swap", start);
setInterval(refreshOld, 1_000);
start();
