// The points, intervals and marks of a panel as series of ECharts.

export const DAY = 86_400_000; // milliseconds
const MANY = 60; // points of a curve beyond which they get no symbol
const CHARACTER = 6.2; // pixels of an average character of a label
const FAINT = 0.45; // opacity of points on little data
const SYMBOLS = {
  triangles: "triangle", diamonds: "diamond",
  group2: "rect", group3: "triangle", group4: "diamond", group5: "pin",
};
const DASHES = {
  ceiling: [6, 4], perfect: [5, 4], model: [7, 3, 2, 3],
  group2: [8, 3], group3: [2, 3], group4: [8, 3, 2, 3], group5: [12, 4], group6: [4, 4],
};
const GLYPHS = { circle: "●○", triangle: "▲△", diamond: "◆◇", rect: "■□", pin: "▼▽" };

const isHollow = ({ role }) => role === "ref" || role === "warned";
const symbolOf = ({ style, role }) => SYMBOLS[style] ?? SYMBOLS[role] ?? "circle";

/** A character that looks as the series or mark does. */
export function glyphOf(item) {
  if (item.style === "bars" || item.style === "band") return "■";
  if (item.style === "line" || item.style === "curve") return DASHES[item.role] ? "╌" : "—";
  return GLYPHS[symbolOf(item)][Number(isHollow(item))];
}

export function seriesOf(panel, colour) {
  const units = [panel.x, panel.y].map(({ scale }) => (scale === "day" ? DAY : 1));
  const at = (point) => point.map((value, k) => value * units[k]);
  // each item becomes a shape between two corners
  const draw = (items, findCorners, shape) => ({
    type: "custom", clip: true, tooltip: { show: false },
    data: items.map((item) => ({ value: at(findCorners(item)[0]), link: item.link })),
    renderItem: ({ dataIndex, coordSys }, { coord }) => {
      const item = items[dataIndex];
      return shape(findCorners(item).map((corner) => coord(at(corner))), item, coord, coordSys);
    },
  });
  const marks = panel.marks.map((mark) => {
    const [left, right] = mark.x ?? [panel.x.low, panel.x.high];
    const [low, high] = mark.y ?? [panel.y.low, panel.y.high];
    const shape = (corners, _, coord, box) => drawMark(mark, corners, colour, box);
    return {
      ...draw([mark], () => [[left, low], [right, high]], shape), silent: !mark.link,
      name: mark.name || undefined, z: mark.style === "band" ? 1 : 3, color: colour(mark.role),
      labelLayout: { hideOverlap: true }, // the tooltip has what is hidden
    };
  });
  const points = panel.series.flatMap((series, n) => {
    const { style, role, along, low, high, width } = series;
    const paint = colour(role);
    const shift = along === "x" ? { y: series.offset } : { x: series.offset };
    const opacity = (i) => (series.faint[i] ? FAINT : 1);
    const items = series.x.map((x, i) => ({ i, x, y: series.y[i], link: series.links[i] }));
    const findInterval = ({ i, x, y }) =>
      [low[i], high[i]].map((end) => (along === "x" ? [end ?? x, y] : [x, end ?? y]));
    const whisker = (ends, { i }) =>
      ({ ...drawLine(ends, { stroke: paint, lineWidth: 2, opacity: opacity(i) }), ...shift });
    const band = (ends, { i }, coord) => {
      if (items.length === 1) return whisker(ends, { i });
      if (i) return null; // the first item is the whole band
      const sides = [0, 1].map((k) => items.map((item) => coord(at(findInterval(item)[k]))));
      const points = [...sides[0], ...sides[1].reverse()];
      return { type: "polygon", shape: { points }, style: { fill: paint, opacity: 0.15 } };
    };
    const findBar = ({ x, y }) => [[x - width / 2, y], [x + width / 2, Math.max(0, panel.y.low)]];
    const bar = (ends, { i }) => ({
      ...drawBox(ends, { fill: paint }), ...shift, ...drawLabel(series.labels[i], "top", colour),
    });
    const shapes = {
      bars: { ...draw(items, findBar, bar), tooltip: {} },
      curve: {
        type: "line", showSymbol: items.length <= MANY, showAllSymbol: true,
        symbol: symbolOf(series), symbolSize: items.length === 1 ? 6 : 4,
        lineStyle: { width: 2, type: DASHES[role] ?? "solid", opacity: isHollow(series) ? 0.5 : 1 },
      },
      dots: {
        type: "scatter", symbol: symbolOf(series), symbolSize: items.length > MANY ? 5 : 9,
        symbolOffset: [shift.x ?? 0, shift.y ?? 0],
      },
    };
    const fill = isHollow(series) && style !== "curve" ? colour("paper") : paint;
    const ring = { color: fill, borderColor: paint, borderWidth: fill === paint ? 0 : 2 };
    const data = items.map(({ i, x, y, link }) => ({
      value: at([x, y]), link, itemStyle: { ...ring, opacity: opacity(i) },
    }));
    const common = { name: series.name || undefined, color: paint };
    const interval = draw(items, findInterval, style === "curve" ? band : whisker);
    return [
      ...(low.length ? [{ ...interval, ...common, z: 2, silent: true }] : []),
      { ...common, ...(shapes[style] ?? shapes.dots), data, z: 4, id: String(n) },
    ];
  });
  return [...marks, ...points];
}

const drawLine = ([[x1, y1], [x2, y2]], style) =>
  ({ type: "line", shape: { x1, y1, x2, y2 }, style });

const drawBox = ([[x1, y1], [x2, y2]], style) =>
  ({ type: "polygon", shape: { points: [[x1, y1], [x2, y1], [x2, y2], [x1, y2]] }, style });

function drawLabel(text, position, colour, align) {
  if (!text) return {};
  const look = { fontSize: 11, lineHeight: 13, fill: colour("muted"), align };
  const style = { ...look, text: text.replaceAll(", ", "\n"), verticalAlign: align && "top" };
  return { textContent: { type: "text", style }, textConfig: { position } };
}

function drawMark({ style, role, label }, corners, colour, { x, width }) {
  if (style === "word")
    return { ...drawBox(corners, { opacity: 0 }), ...drawLabel(label, "inside", colour) };
  if (style === "band")
    return drawBox(corners, { fill: colour(role), opacity: role === "today" ? 0.75 : 0.14 });
  const pointed = { emphasis: { style: { opacity: 0.2 } } };
  if (style === "area")
    return { ...drawBox(corners, { fill: colour("muted"), opacity: 0 }), ...pointed };
  const look = { stroke: colour(role), lineWidth: 1.5, lineDash: DASHES[role] };
  const longest = Math.max(...label.split(", ").map((words) => words.length));
  const hasRoom = corners[0][0] + CHARACTER * longest < x + width;
  const [shift, align] = hasRoom ? [4, "left"] : [-4, "right"];
  return { ...drawLine(corners, look), ...drawLabel(label, [shift, 2], colour, align) };
}
