// Shapes of a chart: points, their intervals, and marks, as series of ECharts.

import { place } from "./values.js";

export const CHARACTER = 7.2; // pixels of an average character of 12 px
export const SMALL = 6.2; // of a character of 11 px
const MANY = 60; // points of a curve beyond which they get no symbol
const SHAPES = { triangles: "triangle", diamonds: "diamond" }; // of points that are no dots
const SYMBOLS = { group2: "rect", group3: "triangle", group4: "diamond", group5: "pin" };
const DASHES = {
  ceiling: [6, 4], perfect: [5, 4], model: [7, 3, 2, 3],
  group2: [8, 3], group3: [2, 3], group4: [8, 3, 2, 3], group5: [12, 4], group6: [4, 4],
};

export const POINTS = {
  dots: (series, panel, colour) => scatter(series, colour),
  triangles: (series, panel, colour) => scatter(series, colour),
  diamonds: (series, panel, colour) => scatter(series, colour),
  curve: (series, panel, colour) => ({
    type: "line", z: 4, showSymbol: series.x.length <= MANY, showAllSymbol: true,
    symbol: SYMBOLS[series.role] ?? "circle", symbolSize: series.x.length === 1 ? 6 : 4,
    color: colour(series.role),
    lineStyle: {
      width: 2, type: DASHES[series.role] ?? "solid", opacity: series.role === "ref" ? 0.5 : 1,
    },
  }),
  bars: (series, panel, colour) => ({
    type: "custom", z: 3, clip: true, itemStyle: { color: colour(series.role) },
    renderItem: (params, api) => {
      const [x, y] = [series.x[params.dataIndex], series.y[params.dataIndex]];
      const half = series.width / 2;
      const [left, up] = api.coord([place(x - half, panel.x), y]);
      const [right, foot] = api.coord([place(x + half, panel.x), Math.max(0, panel.y.low)]);
      const rectangle = {
        type: "rect", style: { fill: colour(series.role) },
        shape: { x: left + series.offset, y: up, width: right - left, height: foot - up },
      };
      const text = series.labels[params.dataIndex];
      if (!text) return rectangle;
      const y0 = Math.max(params.coordSys.y, up - 14);
      const style = { text, x: (left + right) / 2, y: y0, align: "center", fontSize: 11 };
      const label = { type: "text", style: { ...style, fill: colour("muted") } };
      return { type: "group", children: [rectangle, label] };
    },
  }),
};

export const isPoints = ({ style }) => style === "dots" || style in SHAPES;
// A point of it is an outline.
export const isHollow = (series) =>
  isPoints(series) && (series.role === "ref" || series.role === "warned");
export const symbolOf = ({ style, role }) => SHAPES[style] ?? SYMBOLS[role] ?? "circle";
export const dashOf = ({ role }) => DASHES[role] ?? [];

function scatter(series, colour) {
  const symbol = symbolOf(series);
  const shift = series.along === "x" ? [0, series.offset] : [series.offset, 0];
  return {
    type: "scatter", z: 4, symbol, symbolOffset: shift,
    symbolSize: series.x.length > MANY && symbol === "circle" ? 5 : 9,
    itemStyle: {
      color: isHollow(series) ? colour("paper") : colour(series.role),
      borderColor: colour(series.role), borderWidth: isHollow(series) ? 2 : 0,
    },
  };
}

// A whisker per point, or the band of a curve.
export function intervalsOf(series, panel, common, colour) {
  const isAcross = series.along === "x";
  const end = (api, i, value) =>
    isAcross
      ? api.coord([place(value, panel.x), place(series.y[i], panel.y)])
      : api.coord([place(series.x[i], panel.x), place(value, panel.y)]);
  const value = isAcross ? series.x : series.y; // where an interval is unknown
  const band = (api) => {
    const upper = series.x.map((_, i) => end(api, i, series.high[i] ?? value[i]));
    const lower = series.x.map((_, i) => end(api, i, series.low[i] ?? value[i]));
    if (series.x.length === 1) return line([upper[0], lower[0]], { lineWidth: 2 });
    const points = [...upper, ...lower.reverse()];
    const style = { fill: colour(series.role), opacity: 0.15 };
    return { type: "polygon", silent: true, style, shape: { points } };
  };
  const line = ([[x1, y1], [x2, y2]], style) => ({
    type: "line", silent: true, shape: { x1, y1, x2, y2 },
    style: { stroke: colour(series.role), lineWidth: 2, ...style },
  });
  return {
    ...common, type: "custom", z: series.style === "curve" ? 2 : 3, clip: true, silent: true,
    tooltip: { show: false },
    renderItem: ({ dataIndex: i }, api) => {
      if (series.style === "curve") return i === 0 ? band(api) : null;
      if (series.low[i] === null) return null;
      const shape = line([end(api, i, series.low[i]), end(api, i, series.high[i])], {
        opacity: series.faint[i] ? 0.45 : 1,
      });
      return { ...shape, [isAcross ? "y" : "x"]: series.offset };
    },
  };
}

// Marks that share a name and lie on one side of the points.
export function groupMarks(marks) {
  const groups = new Map();
  for (const mark of marks) {
    const key = `${mark.style === "band"}/${mark.name}`;
    groups.set(key, [...(groups.get(key) ?? []), mark]);
  }
  return groups.values();
}

// `taken` is shared by all marks of a panel: of the labels of each name, their
// first and last pixel, first row and number of rows.
export function marksOf(marks, panel, own, { colour, taken }) {
  const [mark] = marks;
  return {
    ...own, type: "custom", name: mark.name || undefined, z: mark.style === "band" ? 1 : 3,
    clip: true, tooltip: { show: false }, color: colour(mark.role),
    data: marks.map((one) => ({
      value: [
        place(one.x?.[0] ?? panel.x.low, panel.x), place(one.y?.[0] ?? panel.y.low, panel.y),
      ],
      link: one.link,
    })),
    renderItem: (params, api) => {
      if (params.dataIndex === 0) taken.set(mark.name, []);
      return drawMark(marks[params.dataIndex], panel, params, api, { colour, taken });
    },
  };
}

function drawMark(mark, panel, { coordSys: box }, api, { colour, taken }) {
  const at = (x, y) => api.coord([place(x, panel.x), place(y, panel.y)]);
  const [left, right] = mark.x
    ? mark.x.map((x) => at(x, panel.y.low)[0])
    : [box.x, box.x + box.width];
  const [low, high] = mark.y
    ? mark.y.map((y) => at(panel.x.low, y)[1])
    : [box.y + box.height, box.y];
  const rectangle = {
    x: Math.min(left, right), y: Math.min(low, high),
    width: Math.max(1, Math.abs(right - left)), height: Math.max(1, Math.abs(low - high)),
  };
  const text = (style) => ({
    type: "text", silent: true,
    style: { text: mark.label, fontSize: 11, lineHeight: 13, fill: colour("muted"), ...style },
  });
  if (mark.style === "word") {
    return text({ x: (left + right) / 2, y: (low + high) / 2 - 6, align: "center" });
  }
  if (mark.style === "band") {
    const style = { fill: colour(mark.role), opacity: mark.role === "today" ? 0.75 : 0.14 };
    return { type: "rect", silent: true, shape: rectangle, style };
  }
  if (mark.style === "area") {
    return {
      type: "rect", shape: rectangle, cursor: mark.link ? "pointer" : "default",
      style: { fill: colour("muted"), opacity: 0 }, emphasis: { style: { opacity: 0.2 } },
    };
  }
  const dash = DASHES[mark.role];
  const stroke = {
    type: "line", shape: { x1: left, y1: low, x2: right, y2: high },
    cursor: mark.link ? "pointer" : "default",
    style: { stroke: colour(mark.role), lineWidth: 1.5, lineDash: dash },
  };
  const lines = mark.label.split(", ");
  const width = SMALL * Math.max(...lines.map((words) => words.length));
  const isFree = ([start, end, row]) =>
    start >= box.x && end <= box.x + box.width &&
    [...taken.values()].flat().every(
      ([from, to, of, n]) =>
        end < from || start > to || row + lines.length <= of || row >= of + n,
    );
  const sides = [0, 1].flatMap((row) => [
    ["left", left + 4, [left + 4, left + 4 + width, row, lines.length]],
    ["right", left - 4, [left - 4 - width, left - 4, row, lines.length]],
  ]);
  const free = mark.label && sides.find(([, , span]) => isFree(span));
  if (!free) return stroke; // the tooltip has it
  const [align, x, span] = free;
  taken.get(mark.name).push(span);
  const words = text({ text: lines.join("\n"), x, y: high + 4 + 13 * span[2], align });
  return { type: "group", children: [stroke, words] };
}
