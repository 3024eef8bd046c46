// The numbers behind a chart: as a table, as CSV, and its picture as PNG.

import { drawKeyAt } from "./keys.js";
import { hasNames, isoDay, titleOf, words } from "./values.js";

const COLUMNS = ["panel", "series", "x", "y", "low", "high", "n", "evidence"];
const SCALE = 2; // pixels of the PNG per pixel of the screen
const EDGE = 12; // pixels

function rowsOf(chart) {
  return chart.panels.filter(Boolean).flatMap((panel) =>
    panel.series.flatMap((series) => series.x.map((_, i) => ({ panel, series, i }))),
  );
}

// Changes and words that are drawn beside the points, those of several panels once. `write` puts a
// value of an axis in words.
function markRowsOf(chart, write) {
  const found = new Map();
  for (const panel of chart.panels.filter(Boolean)) {
    for (const { style, x, y, name, label } of panel.marks) {
      if (style === "area" || !(name || label) || (x ? y : !label)) continue;
      const key = JSON.stringify([name, x, y]);
      const known = found.get(key);
      found.set(key, {
        panel: known ? "" : titleOf(panel),
        series: known?.label ? known.series : [name, label].filter(Boolean).join(": "),
        label: known?.label || label,
        x: x ? spanOf(x, panel.x, write) : "", y: y ? spanOf(y, panel.y, write) : "",
      });
    }
  }
  return [...found.values()];
}

const spanOf = (ends, axis, write) =>
  [...new Set(ends.map((value) => write(value, axis)))].join(" to ");

const hasEvidence = (row) => row.series.evidence.length > 0;

export const countPoints = (chart) => rowsOf(chart).length;

export function fillTable(table, chart) {
  const rows = rowsOf(chart);
  const marks = markRowsOf(chart, words);
  const panels = chart.panels.filter(Boolean);
  const used = {
    panel: panels.length > 1, x: true, y: true,
    series: marks.length > 0 || rows.some((row) => row.series.name),
    low: rows.some((row) => row.series.low.length), high: rows.some((r) => r.series.high.length),
    n: rows.some((row) => row.series.n.length), evidence: rows.some(hasEvidence),
  };
  const names = COLUMNS.filter((name) => used[name]);
  const first = panels[0];
  const heads = {
    panel: "Panel", series: "Series", x: panels.at(-1)?.x.label || "x",
    y: panels.length === 1 ? first.y.label || first.title || "value" : "value",
    low: "95% low", high: "95% high", n: "n", evidence: "Evidence",
  };
  const head = table.createTHead().insertRow();
  for (const name of names) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = heads[name];
    head.append(cell);
  }
  const body = table.createTBody();
  for (const { panel, series, i } of rows) {
    const measured = series.along === "x" ? panel.x : panel.y;
    const texts = {
      panel: panel.title || panel.y.label, series: series.name, x: words(series.x[i], panel.x),
      y: words(series.y[i], panel.y),
      low: Number.isFinite(series.low[i]) ? words(series.low[i], measured) : "",
      high: Number.isFinite(series.high[i]) ? words(series.high[i], measured) : "",
      n: series.n.length ? series.n[i].toLocaleString("en") : "",
      evidence: series.evidence[i] ?? "",
    };
    const row = body.insertRow();
    for (const name of names) {
      const cell = row.insertCell();
      if (name === "y" && series.links[i]) {
        const link = document.createElement("a");
        link.href = series.links[i];
        link.textContent = texts.y;
        cell.append(link);
      } else cell.textContent = texts[name];
    }
  }
  for (const mark of marks) {
    const row = body.insertRow();
    for (const name of names) row.insertCell().textContent = mark[name] ?? "";
  }
}

export function downloadCsv(chart) {
  const rows = rowsOf(chart);
  const names = rows.some(hasEvidence) ? COLUMNS : COLUMNS.slice(0, -1);
  const lines = rows.map(({ panel, series, i }) => [
    panel.title || panel.y.label, series.name, exact(series.x[i], panel.x),
    exact(series.y[i], panel.y), series.low[i], series.high[i], series.n[i],
    series.evidence[i],
  ].slice(0, names.length));
  for (const mark of markRowsOf(chart, exact)) lines.push(names.map((name) => mark[name] ?? ""));
  const text = [names, ...lines].map((line) => line.map(csvCell).join(",")).join("\r\n");
  save(new Blob([`${text}\r\n`], { type: "text/csv" }), `${fileName(chart)}.csv`);
}

function exact(value, axis) {
  if (axis.scale === "day") return isoDay(value);
  const tick = axis.ticks.find((one) => one.value === value);
  return tick && hasNames(axis) ? tick.label : value;
}

function csvCell(value) {
  if (typeof value === "number") return String(value);
  // a spreadsheet would run text that begins like a formula
  const text = (value ?? "").replace(/^(?=[=+\-@\t\r])/, "'");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// The drawing with its title and legend, which the page shows as text.
export function downloadPng(chart, drawing, { legend, colour }) {
  const [width, height] = [drawing.width / SCALE, drawing.height / SCALE];
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  const font = "12px system-ui, sans-serif";
  pen.font = font;
  const entries = [];
  let [x, y] = [EDGE, 0];
  for (const item of legend) {
    const wide = pen.measureText(item.name).width + 36;
    if (x > EDGE && x + wide > width) [x, y] = [EDGE, y + 18];
    entries.push({ item, x, y });
    x += wide;
  }
  const [top, below] = [30, y + 18 + EDGE + 18 * chart.notes.length];
  [canvas.width, canvas.height] = [width * SCALE, (top + height + below) * SCALE];
  pen.scale(SCALE, SCALE);
  pen.fillStyle = colour("paper");
  pen.fillRect(0, 0, width, top + height + below);
  pen.drawImage(drawing, 0, top, width, height);
  pen.fillStyle = colour("ink");
  pen.font = "600 15px system-ui, sans-serif";
  pen.fillText(chart.title, EDGE, 20, width - 2 * EDGE);
  pen.font = font;
  for (const entry of entries) {
    const line = top + height + 12 + entry.y;
    drawKeyAt(pen, entry.item, colour, [entry.x, line - 11]);
    pen.fillStyle = colour("ink");
    pen.fillText(entry.item.name, entry.x + 20, line);
  }
  pen.fillStyle = colour("muted");
  for (const [i, note] of chart.notes.entries()) {
    pen.fillText(note, EDGE, top + height + 30 + y + 18 * i, width - 2 * EDGE);
  }
  canvas.toBlob((blob) => save(blob, `${fileName(chart)}.png`));
}

const fileName = (chart) => chart.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "_").slice(0, 60);

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
