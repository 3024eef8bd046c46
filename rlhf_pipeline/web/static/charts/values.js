// Values of a chart record in words, and their places on an axis of ECharts.

export const DAY = 86_400_000; // milliseconds

export const place = (value, axis) => (axis.scale === "day" ? value * DAY : value);
export const isoDay = (value) => new Date(value * DAY).toISOString().slice(0, 10);
export const titleOf = (panel) => panel.title || panel.y.label;

const isName = (label) => Number.isNaN(Number.parseFloat(label));
export const hasNames = (axis) =>
  axis.unit !== "share" && axis.ticks.some((tick) => isName(tick.label));

// The label of an axis, with its unit where the label does not have it.
export function nameOf(axis) {
  const unit = axis.unit === "share" ? "%" : axis.unit;
  const isPlain = axis.scale === "day" || hasNames(axis) || axis.label.includes(unit);
  return isPlain ? axis.label : `${axis.label} (${unit})`;
}

// A value in words: the label of its tick, its day, a percentage, or a number with its unit.
export function words(value, axis) {
  if (axis.scale === "day") return isoDay(value);
  const tick = axis.ticks.find((one) => one.value === value);
  if (axis.unit === "share") return `${(value * 100).toFixed(1)}%`;
  if (tick && hasNames(axis)) return tick.label;
  if (axis.unit === "version") return `version ${value}`;
  const number = value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return axis.unit ? `${number} ${axis.unit}` : number;
}

export function pointWords(series, i, panel) {
  const measured = series.along === "x" ? panel.x : panel.y;
  const parts = [words(series.along === "x" ? series.x[i] : series.y[i], measured)];
  if (Number.isFinite(series.low[i])) {
    parts.push(`(${words(series.low[i], measured)} to ${words(series.high[i], measured)})`);
  }
  return parts.join(" ");
}

export const countWords = (series, i) =>
  (series.n.length ? `, n = ${series.n[i].toLocaleString("en")}` : "") +
  (series.evidence[i] ? `, ${series.evidence[i]}` : "");
