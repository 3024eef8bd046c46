// Translates a panel of a chart record (rlhf_pipeline/reports/chart.py) into an option of ECharts.

import { DAY, seriesOf } from "./series.js";

const LONG = 14; // days beyond which a panel can be zoomed
const DAY_LABELS = { year: "{MMM} {yyyy}", month: "{MMM} {yyyy}", day: "{d} {MMM}", hour: "" };

export const isoDay = (value) => new Date(value * DAY).toISOString().slice(0, 10);
export const isLong = ({ x: { scale, low, high } }) => scale === "day" && high - low > LONG;

/** The option, and the height in pixels that it needs. `colour(role)` is a CSS colour, `left` the
 * width of the labels, `zoom` the days that are shown or null; with `hasSlider`, a slider below
 * moves them. `onPoint` gets the point of a curve that the tooltip shows. */
export function optionOf(panel, { colour, left, zoom, hasSlider, onPoint }) {
  const height = Math.max(panel.height, 60);
  const below = panel.x.ticks.length ? 46 : 12;
  const option = {
    animation: false, useUTC: true, backgroundColor: "transparent",
    legend: { show: false }, textStyle: { fontFamily: "system-ui, sans-serif" },
    grid: { left, right: 18, top: 8, height, outerBoundsMode: "none" },
    xAxis: axisOf(panel.x), yAxis: { ...axisOf(panel.y, left - 10), name: "" },
    series: seriesOf(panel, colour),
    tooltip: {
      trigger: panel.series.some(({ style }) => style === "curve") ? "axis" : "item",
      confine: true, formatter: (found) => describe(panel, [found].flat(), onPoint),
    },
  };
  if (!isLong(panel)) return { option, height: height + below };
  const common = { filterMode: "none", minValueSpan: 2 * DAY, ...rangeOf(zoom) };
  const slider = { type: "slider", left, right: 18, bottom: 4, height: 16, show: hasSlider };
  const wheel = { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false };
  option.dataZoom = [
    { ...common, ...wheel, preventDefaultMouseMove: false },
    { ...common, ...slider, showDetail: false, showDataShadow: false },
  ];
  return { option, height: height + below + (hasSlider ? 26 : 0) };
}

function axisOf(axis, width) {
  const isDay = axis.scale === "day";
  const unit = isDay ? DAY : 1;
  // of days that are shown at once, ECharts would leave out any
  const isFixed = !isLong({ x: axis });
  const ticks = isFixed ? { customValues: axis.ticks.map(({ value }) => value * unit) } : {};
  const label = (value) => axis.ticks.find((tick) => tick.value === value)?.label ?? "";
  // the year of days, which their labels leave out
  const years = isDay ? new Set(axis.ticks.map(({ value }) => isoDay(value).slice(0, 4))) : [];
  return {
    type: isDay ? "time" : "value", inverse: axis.low > axis.high, splitNumber: 5,
    min: Math.min(axis.low, axis.high) * unit, max: Math.max(axis.low, axis.high) * unit,
    minInterval: isDay ? DAY : undefined, nameLocation: "middle", nameGap: 24,
    name: axis.ticks.length ? [nameOf(axis), ...(years.size === 1 ? years : [])].join(", ") : "",
    axisLine: { show: false }, axisTick: { show: false, ...ticks }, // the grid follows the ticks
    splitLine: { show: axis.has_grid },
    axisLabel: {
      show: axis.ticks.length > 0, hideOverlap: !width, ...ticks,
      formatter: isDay ? (isFixed ? "{d} {MMM}" : DAY_LABELS) : label, width, overflow: "truncate",
    },
  };
}

/** The words of the points under the pointer, and of the changes there. */
function describe(panel, found, onPoint) {
  const points = found
    .filter(({ seriesId }) => panel.series[seriesId])
    .map(({ seriesId, dataIndex: i }) => ({ series: panel.series[seriesId], i }));
  onPoint(points.find((one) => one.series.style === "curve"));
  if (!points.length) return "";
  const [{ series, i }] = points;
  const across = series.along === "x" ? "y" : "x";
  const changes = panel.marks
    .filter(({ label, x }) => label && x?.[0] <= series.x[i] && series.x[i] <= x[1])
    .map((mark) => [mark.name, mark.label].filter(Boolean).join(": "));
  const lines = points.map((point) => describePoint(panel, point));
  const text = [inWords(series[across][i], panel[across]), ...changes, ...lines].join("\n");
  return Object.assign(document.createElement("div"), { className: "chart-tip", innerText: text });
}

/** Days as the ends of a zoom; all where there are none. */
export const rangeOf = (days) =>
  days ? { startValue: days[0] * DAY, endValue: days[1] * DAY } : { start: 0, end: 100 };

/** The days that a zoomed panel shows; null where it shows all. */
export function shownDays(instance) {
  const [{ start, end, startValue, endValue }] = instance.getOption().dataZoom;
  return start > 0 || end < 100 ? [startValue / DAY, endValue / DAY] : null;
}

const hasNames = (axis) =>
  axis.unit !== "share" && axis.ticks.some(({ label }) => Number.isNaN(Number.parseFloat(label)));

/** The label of an axis, with its unit where the label does not have it. */
export function nameOf(axis) {
  const unit = axis.unit === "share" ? "%" : axis.unit;
  const isPlain = axis.scale === "day" || hasNames(axis) || axis.label.includes(unit);
  return isPlain ? axis.label : `${axis.label} (${unit})`;
}

/** A day, the name at a place, or the number with its unit. */
function inWords(value, axis) {
  if (axis.scale === "day") return isoDay(value);
  if (axis.unit === "share") return `${(value * 100).toFixed(1)}%`;
  const name = hasNames(axis) && axis.ticks.find((tick) => tick.value === value)?.label;
  if (name) return name;
  if (axis.unit === "version") return `version ${value}`;
  const number = value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return axis.unit ? `${number} ${axis.unit}` : number;
}

/** A point with its interval, count and evidence. */
function describePoint(panel, { series, i }) {
  const { name, along, n, low, high, evidence } = series;
  const write = (value) => inWords(value, panel[along]);
  const range = Number.isFinite(low[i]) ? ` (${write(low[i])} to ${write(high[i])})` : "";
  const count = n.length ? `, n = ${n[i].toLocaleString("en")}` : "";
  const pair = [name || panel.title || panel.y.label, write(series[along][i]) + range];
  // on an axis that lists names, the place is the name
  const said = (hasNames(panel.y) ? pair.reverse() : pair).join(": ") + count;
  return evidence[i] ? `${said}, ${evidence[i]}` : said;
}
