// Translates a chart record (rlhf_pipeline/reports/chart.py) into options of ECharts.

const DAY = 86_400_000; // milliseconds
const NARROW = 640; // pixels: below, panels stand one above the other
const LINE = 18; // pixels between lines of text
const CHARACTER = 7.2; // pixels of an average character of 12 px
const BOLD = 8; // and of a bold one of 13 px
const MANY = 60; // points of a curve beyond which they get no symbol
const NEAR = 20; // pixels
const LONG = 14; // days beyond which a chart can be zoomed
const SYMBOLS = { group2: "rect", group3: "triangle", group4: "diamond", group5: "pin" };
const DASHES = {
  ceiling: [6, 4], perfect: [5, 4], model: [7, 3, 2, 3],
  group2: [8, 3], group3: [2, 3], group4: [8, 3, 2, 3], group5: [12, 4], group6: [4, 4],
};
const DAY_LABELS = { year: "{MMM} {yyyy}", month: "{MMM} {yyyy}", day: "{d} {MMM}", hour: "" };

const place = (value, axis) => (axis.scale === "day" ? value * DAY : value);
export const isoDay = (value) => new Date(value * DAY).toISOString().slice(0, 10);

// A value in words: the label of its tick, its day, a percentage, or a number with its unit.
export function words(value, axis) {
  if (axis.scale === "day") return isoDay(value);
  const tick = axis.ticks.find((one) => one.value === value);
  if (axis.unit === "share") return `${(value * 100).toFixed(1)} %`;
  if (tick && hasNames(axis)) return tick.label;
  const number = value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return axis.unit ? `${number} ${axis.unit}` : number;
}

function pointWords(series, i, panel) {
  const measured = series.along === "x" ? panel.x : panel.y;
  const parts = [words(series.along === "x" ? series.x[i] : series.y[i], measured)];
  if (series.low.length) {
    parts.push(`(${words(series.low[i], measured)} to ${words(series.high[i], measured)})`);
  }
  return parts.join(" ");
}

const countWords = (series, i) =>
  series.n.length ? `, n = ${series.n[i].toLocaleString("en")}` : "";

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
    top += 14 + LINE * Math.max(...shown.map((p) => hasTicks(p.x) + Boolean(p.x.label)));
  }
  const names = options.series.map((one) => one.name).filter(Boolean);
  options.legend.data = [...new Set(names)];
  addTooltip(options, chart, colour);
  if (canZoom(chart)) top = addZoom(options, { top, zoom, colour });
  return { options, height: top };
}

const titleOf = (panel) => panel.title || panel.y.label;
const headerOf = (panel, cell) =>
  [titleOf(panel), ...panel.notes].filter(Boolean).flatMap((text) => wrap(text, cell));
const heightOf = (panel) => Math.max(panel.height, 60);
const isName = (label) => Number.isNaN(Number.parseFloat(label));
export const hasNames = (axis) =>
  axis.unit !== "share" && axis.ticks.some((tick) => isName(tick.label));
const hasTicks = (axis) => axis.ticks.length > 0;

// Room for the labels of the vertical axes, so that the panels of a column are aligned.
function marginOf(panels, cell) {
  const lengths = panels.flatMap((panel) => panel.y.ticks.map((tick) => tick.label.length));
  return Math.min(14 + CHARACTER * Math.max(0, ...lengths), cell * 0.4);
}

function wrap(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length * BOLD <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

function addPanel(options, panel, { left, top, cell, margin, colour }) {
  const index = options.grid.length;
  const title = wrap(titleOf(panel), cell);
  options.title.push({
    text: title.join("\n"), subtext: headerOf(panel, cell).slice(title.length).join("\n"),
    itemGap: 0, padding: 0, left,
    top: top - 8 - LINE * headerOf(panel, cell).length,
    textStyle: { color: colour("ink"), fontSize: 13, lineHeight: LINE },
    subtextStyle: { color: colour("muted"), fontSize: 12, lineHeight: LINE },
  });
  options.grid.push({
    left: left + margin, top, width: cell - margin - 18, height: heightOf(panel),
    outerBoundsMode: "none",
  });
  const nameTextStyle = { color: colour("muted") };
  options.xAxis.push({
    ...axisOf(panel.x, colour), gridIndex: index,
    name: panel.x.label, nameLocation: "middle", nameGap: hasTicks(panel.x) ? 24 : 8, nameTextStyle,
  });
  options.yAxis.push({ ...axisOf(panel.y, colour, margin - 10), gridIndex: index });
  const own = { xAxisIndex: index, yAxisIndex: index };
  for (const marks of groupMarks(panel.marks)) {
    options.series.push(marksOf(marks, panel, own, colour));
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

function axisOf(axis, colour, width) {
  const values = axis.ticks.map((tick) => place(tick.value, axis));
  const ends = [place(axis.low, axis), place(axis.high, axis)];
  const isDay = axis.scale === "day";
  const ticks = isDay ? {} : { customValues: values };
  const label = (value) => axis.ticks.find((tick) => tick.value === value)?.label ?? "";
  return {
    type: isDay ? "time" : "value", min: Math.min(...ends), max: Math.max(...ends),
    inverse: axis.low > axis.high, minInterval: isDay ? DAY : undefined, splitNumber: 5,
    axisLine: { show: false }, axisTick: { show: false, ...ticks }, // the grid follows the ticks
    splitLine: { show: axis.has_grid, lineStyle: { color: colour("rule") } },
    axisLabel: {
      show: hasTicks(axis), color: colour("muted"), hideOverlap: true, width, overflow: "truncate",
      formatter: isDay ? DAY_LABELS : label, ...ticks,
    },
  };
}

const POINTS = {
  dots: (series, panel, colour) => scatter(series, colour, SYMBOLS[series.role] ?? "circle"),
  triangles: (series, panel, colour) => scatter(series, colour, "triangle"),
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
      const style = { text, x: (left + right) / 2, y: up - 14, align: "center", fontSize: 11 };
      const label = { type: "text", style: { ...style, fill: colour("muted") } };
      return { type: "group", children: [rectangle, label] };
    },
  }),
};

function scatter(series, colour, symbol) {
  const isHollow = series.role === "ref" || series.role === "warned";
  const shift = series.along === "x" ? [0, series.offset] : [series.offset, 0];
  return {
    type: "scatter", z: 4, symbol, symbolOffset: shift,
    symbolSize: series.x.length > MANY && symbol === "circle" ? 5 : 9,
    itemStyle: {
      color: isHollow ? colour("paper") : colour(series.role),
      borderColor: colour(series.role), borderWidth: isHollow ? 2 : 0,
    },
  };
}

// A whisker per point, or the band of a curve.
function intervalsOf(series, panel, common, colour) {
  const isAcross = series.along === "x";
  const end = (api, i, value) =>
    isAcross
      ? api.coord([place(value, panel.x), place(series.y[i], panel.y)])
      : api.coord([place(series.x[i], panel.x), place(value, panel.y)]);
  const band = (api) => {
    const upper = series.x.map((_, i) => end(api, i, series.high[i]));
    const lower = series.x.map((_, i) => end(api, i, series.low[i]));
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
      const shape = line([end(api, i, series.low[i]), end(api, i, series.high[i])], {
        opacity: series.faint[i] ? 0.45 : 1,
      });
      return { ...shape, [isAcross ? "y" : "x"]: series.offset };
    },
  };
}

// Marks that share a name and lie on one side of the points.
function groupMarks(marks) {
  const groups = new Map();
  for (const mark of marks) {
    const key = `${mark.style === "band"}/${mark.name}`;
    groups.set(key, [...(groups.get(key) ?? []), mark]);
  }
  return groups.values();
}

function marksOf(marks, panel, own, colour) {
  const [mark] = marks;
  const labels = { end: 0 }; // pixels: where the last label ends
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
      if (params.dataIndex === 0) labels.end = 0;
      return drawMark(marks[params.dataIndex], panel, params, api, { colour, labels });
    },
  };
}

function drawMark(mark, panel, { coordSys: box }, api, { colour, labels }) {
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
    style: { text: mark.label, fontSize: 11, fill: colour("muted"), ...style },
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
  const width = CHARACTER * mark.label.length;
  const isRight = left + width > box.x + box.width;
  const x = isRight ? left - 4 - width : left + 4;
  if (!mark.label || x < labels.end) return stroke; // the tooltip has it
  labels.end = x + width;
  return { type: "group", children: [stroke, text({ x, y: high + 4 })] };
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
