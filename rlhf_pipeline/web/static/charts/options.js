// Translates a chart record (rlhf_pipeline/reports/chart.py) into options of ECharts.

import { CHARACTER, POINTS, SMALL, groupMarks, intervalsOf, marksOf } from "./shapes.js";
import {
  DAY, countWords, hasNames, isoDay, nameOf, place, pointWords, titleOf, words
} from "./values.js";

const NARROW = 640; // pixels: below, panels stand one above the other
const LINE = 18; // pixels between lines of text
const BOLD = 8; // pixels of an average character of a bold line of 13 px
const NAME_LINE = 14; // pixels between lines of the name of an axis
const NEAR = 20; // pixels
const DAY_WIDTH = 38; // pixels of the label of a day, with its gap
const LONG = 14; // days beyond which a chart can be zoomed
const DAY_LABELS = { year: "{MMM} {yyyy}", month: "{MMM} {yyyy}", day: "{d} {MMM}", hour: "" };

export const canZoom = (chart) =>
  chart.panels.some((panel) => panel?.x.scale === "day" && panel.x.high - panel.x.low > LONG);

// The options, and the height in pixels that they need. `colour(role)` is a CSS colour; `zoom` the
// days that are shown, or null.
export function optionsOf(chart, { width, colour, zoom }) {
  const columns = width < NARROW ? 1 : chart.columns;
  const options = {
    animation: false, useUTC: true, title: [], grid: [], xAxis: [], yAxis: [], series: [],
    aria: { enabled: true, label: { description: chart.alt } },
    legend: { show: false, data: [] },
    textStyle: { fontFamily: "system-ui, sans-serif", color: colour("ink") },
  };
  const panels = columns === 1 ? chart.panels.filter(Boolean) : chart.panels;
  const cell = width / columns;
  const margins = Array.from({ length: columns }, (_, column) =>
    marginOf(panels.filter((panel, i) => panel && i % columns === column), cell),
  );
  let top = 4;
  for (let start = 0; start < panels.length; start += columns) {
    const row = panels.slice(start, start + columns);
    const shown = row.filter(Boolean);
    top += LINE * Math.max(...shown.map((panel) => headerOf(panel, cell).length)) + 8;
    for (const [column, panel] of row.entries()) {
      const margin = margins[column];
      if (panel) addPanel(options, panel, { left: column * cell, top, cell, margin, colour });
    }
    top += Math.max(...shown.map((panel) => heightOf(panel)));
    top += 14 + LINE * Math.max(...shown.map((panel) => 2 * hasTicks(panel.x)));
  }
  const names = options.series.map((one) => one.name).filter(Boolean);
  options.legend.data = [...new Set(names)];
  addTooltip(options, chart, colour);
  if (canZoom(chart)) top = addZoom(options, { top, zoom, colour });
  return { options, height: top };
}

const headerOf = (panel, cell) =>
  [panel.title, ...panel.notes].filter(Boolean).flatMap((text) => wrap(text, cell));
const heightOf = (panel) => Math.max(panel.height, 60);
const hasTicks = (axis) => axis.ticks.length > 0;

// The name of the vertical axis, in lines that are no longer than the axis.
const linesOf = (panel) => wrap(nameOf(panel.y), heightOf(panel), SMALL);

// Room for names and labels of the vertical axes, so that the panels of a column are aligned.
function marginOf(panels, cell) {
  const names = NAME_LINE * Math.max(0, ...panels.map((panel) => linesOf(panel).length));
  const lengths = panels.flatMap((panel) => panel.y.ticks.map((tick) => tick.label.length));
  const most = cell * (cell < NARROW ? 0.46 : 0.4);
  const labels = Math.min(20 + CHARACTER * Math.max(0, ...lengths), most);
  return { names, labels, all: names + labels };
}

function wrap(text, width, character = BOLD) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length * character <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

function addPanel(options, panel, { left, top, cell, margin, colour }) {
  const index = options.grid.length;
  const title = panel.title ? wrap(panel.title, cell) : [];
  options.title.push({
    text: title.join("\n"), subtext: headerOf(panel, cell).slice(title.length).join("\n"),
    itemGap: 0, padding: 0, left,
    top: top - 8 - LINE * headerOf(panel, cell).length,
    textStyle: { color: colour("ink"), fontSize: 13, lineHeight: LINE },
    subtextStyle: { color: colour("muted"), fontSize: 12, lineHeight: LINE },
  });
  options.grid.push({
    left: left + margin.all, top, width: cell - margin.all - 18, height: heightOf(panel),
    outerBoundsMode: "none",
  });
  const nameTextStyle = { color: colour("muted"), fontSize: 11, lineHeight: NAME_LINE };
  const name = { nameLocation: "middle", nameMoveOverlap: false, nameTextStyle };
  options.xAxis.push({
    ...axisOf(panel.x, colour, cell - margin.all - 18), gridIndex: index, ...name,
    name: hasTicks(panel.x) ? withYear(panel.x) : "", nameGap: 24,
  });
  options.yAxis.push({
    ...axisOf(panel.y, colour, margin.labels - 10), gridIndex: index, ...name,
    name: linesOf(panel).join("\n"), nameGap: margin.labels, nameRotate: 90,
  });
  const own = { xAxisIndex: index, yAxisIndex: index };
  const taken = new Map();
  for (const marks of groupMarks(panel.marks)) {
    options.series.push(marksOf(marks, panel, own, { colour, taken }));
  }
  for (const [n, series] of panel.series.entries()) {
    const id = `${index}.${n}`;
    const data = series.x.map((x, i) => ({
      value: [place(x, panel.x), place(series.y[i], panel.y)],
      link: series.links[i],
      itemStyle: series.faint[i] ? { opacity: 0.45 } : {},
    }));
    const common = { ...own, name: series.name || undefined, data };
    if (series.low.length) options.series.push(intervalsOf(series, panel, common, colour));
    options.series.push({ ...POINTS[series.style](series, panel, colour), ...common, id });
  }
}

// The name of an axis; with the year of its days, which their labels leave out.
function withYear(axis) {
  if (axis.scale !== "day") return nameOf(axis);
  const years = new Set(axis.ticks.map((tick) => isoDay(tick.value).slice(0, 4)));
  return years.size === 1 ? `${nameOf(axis)}, ${[...years]}` : nameOf(axis);
}

// Of days that fit on the screen at once, and of weeks, the days of the record are labelled, as
// many as fit up to the last one; ECharts would leave out any of them.
function tickValues(axis, width) {
  if (axis.scale !== "day") return axis.ticks.map((tick) => tick.value);
  const isWeeks = axis.ticks.length > 1 && axis.ticks[1].value - axis.ticks[0].value >= 7;
  const [first] = axis.ticks;
  if (!first || (axis.high - axis.low > LONG && !(isWeeks && first.value === axis.low + 0.5))) {
    return null;
  }
  const step = Math.ceil((DAY_WIDTH * axis.ticks.length) / width);
  const last = axis.ticks.length - 1;
  return axis.ticks.map((tick) => tick.value).filter((_, i) => (last - i) % step === 0);
}

// `width` is that of the axis across, or of the labels of the other one.
function axisOf(axis, colour, width) {
  const found = tickValues(axis, width);
  const values = found?.map((value) => place(value, axis));
  const ends = [place(axis.low, axis), place(axis.high, axis)];
  const isDay = axis.scale === "day";
  const ticks = values ? { customValues: values } : {};
  const label = (value) => axis.ticks.find((tick) => tick.value === value)?.label ?? "";
  return {
    type: isDay ? "time" : "value", min: Math.min(...ends), max: Math.max(...ends),
    inverse: axis.low > axis.high, minInterval: isDay ? DAY : undefined, splitNumber: 5,
    axisLine: { show: false }, axisTick: { show: false, ...ticks }, // the grid follows the ticks
    splitLine: { show: axis.has_grid, lineStyle: { color: colour("rule") } },
    axisLabel: {
      show: hasTicks(axis), color: colour("muted"), hideOverlap: !values,
      ...(isDay ? {} : { width, overflow: "truncate" }),
      formatter: isDay ? (values ? "{d} {MMM}" : DAY_LABELS) : label, ...ticks,
    },
  };
}

function addTooltip(options, chart, colour) {
  const panels = chart.panels.filter(Boolean);
  const [first] = panels;
  const isShared = panels.every(({ x }) => x.low === first.x.low && x.high === first.x.high);
  const hasCurves = panels.some((p) => p.series.some((one) => one.style === "curve"));
  const describe = (found) => {
    const items = Array.isArray(found) ? found : [found];
    const lines = [];
    for (const { seriesId, dataIndex } of items) {
      const [panel, series] = find(panels, seriesId);
      if (!series) continue;
      const x = series.x[dataIndex];
      const title = series.along === "x" ? words(series.y[dataIndex], panel.y) : words(x, panel.x);
      if (!lines.length) lines.push(title, ...marksAt(panels, x));
      const name = series.name || titleOf(panel);
      const value = pointWords(series, dataIndex, panel);
      // on an axis that lists names, the place is the name
      const line = hasNames(panel.y) ? `${value}: ${name}` : `${name}: ${value}`;
      lines.push(line + countWords(series, dataIndex));
    }
    return lines.join("\n");
  };
  options.tooltip = {
    trigger: hasCurves ? "axis" : "item", renderMode: "richText", confine: true,
    formatter: describe, backgroundColor: colour("paper"), borderColor: colour("rule"),
    textStyle: { color: colour("ink"), fontSize: 12, lineHeight: 17 },
    axisPointer: { type: "line", lineStyle: { color: colour("muted") } },
  };
  if (hasCurves && isShared) options.axisPointer = { link: [{ xAxisIndex: "all" }] };
}

function find(panels, id) {
  const [index, n] = String(id).split(".").map(Number);
  return [panels[index], panels[index]?.series[n]];
}

function marksAt(panels, x) {
  const marks = panels.flatMap((panel) => panel.marks);
  const here = marks.filter((one) => one.label && one.x && one.x[0] <= x && x <= one.x[1]);
  return [...new Set(here.map((one) => [one.name, one.label].filter(Boolean).join(": ")))];
}

function addZoom(options, { top, zoom, colour }) {
  const xAxisIndex = [...options.xAxis.keys()].filter((i) => options.xAxis[i].type === "time");
  const [startValue, endValue] = (zoom ?? []).map((day) => day * DAY);
  const range = zoom ? { startValue, endValue } : {};
  const common = { xAxisIndex, filterMode: "none", minValueSpan: 2 * DAY, ...range };
  options.dataZoom = [
    {
      ...common, type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false,
      preventDefaultMouseMove: false,
    },
    {
      ...common, type: "slider", top: top + 2, height: 16, showDetail: false, brushSelect: true,
      left: options.grid[0].left, width: options.grid[0].width, showDataShadow: false,
      borderColor: colour("rule"), fillerColor: "transparent", backgroundColor: "transparent",
      handleStyle: { color: colour("paper"), borderColor: colour("muted") },
      moveHandleStyle: { color: colour("muted") }, moveHandleSize: 6,
    },
  ];
  return top + 32;
}

// The link of the nearest point that is less than NEAR pixels away across and in a panel of the
// place; a curve of many points has no symbols to hit.
export function findLink(instance, chart, [left, up]) {
  let best = { distance: NEAR, link: "" };
  for (const [gridIndex, panel] of chart.panels.filter(Boolean).entries()) {
    if (!instance.containPixel({ gridIndex }, [left, up])) continue;
    for (const series of panel.series) {
      for (const [i, link] of series.links.entries()) {
        const point = [place(series.x[i], panel.x), place(series.y[i], panel.y)];
        const [x, y] = instance.convertToPixel({ gridIndex }, point);
        const distance = Math.abs(x - left) + Math.abs(y - up) / 100;
        if (distance < best.distance) best = { distance, link };
      }
    }
  }
  return best.link;
}

export const shownDays = (instance) => {
  const [zoom] = instance.getOption().dataZoom ?? [];
  if (!zoom || (zoom.start <= 0 && zoom.end >= 100)) return null;
  return [zoom.startValue / DAY, zoom.endValue / DAY];
};
export const zoomAction = (zoom) =>
  zoom
    ? { type: "dataZoom", startValue: zoom[0] * DAY, endValue: zoom[1] * DAY }
    : { type: "dataZoom", start: 0, end: 100 };
