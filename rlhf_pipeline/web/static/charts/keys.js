// Draws the key of a legend entry as its series or mark is drawn, on a page and in a PNG.

import { dashOf, isHollow, isPoints, symbolOf } from "./shapes.js";

const KEY = 14; // pixels: width and height
const MIDDLE = KEY / 2;
const RADIUS = 4;
const OUTLINES = {
  triangle: [[0, -1.2], [1.2, 1], [-1.2, 1]],
  diamond: [[0, -1.3], [1, 0], [0, 1.3], [-1, 0]],
  rect: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
};

// As the address of a picture.
export function drawKey(entry, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 2 * KEY;
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  drawKeyAt(pen, entry, colour, [0, 0]);
  return canvas.toDataURL();
}

// With its upper left corner at a place.
export function drawKeyAt(pen, entry, colour, [x, y]) {
  const { style, role } = entry;
  pen.save();
  pen.translate(x, y);
  pen.fillStyle = pen.strokeStyle = colour(role);
  pen.lineWidth = 2;
  if (style === "curve" || style === "line") {
    pen.setLineDash(dashOf(entry).map((part) => Math.min(part, 4)));
    pen.beginPath();
    pen.moveTo(0, MIDDLE);
    pen.lineTo(KEY, MIDDLE);
    pen.stroke();
  } else if (isPoints(entry)) {
    outline(pen, symbolOf(entry));
    if (isHollow(entry)) pen.fillStyle = colour("paper");
    if (entry.faint?.every(Boolean) && entry.faint.length) pen.globalAlpha = 0.45;
    pen.fill();
    if (isHollow(entry)) pen.stroke();
  } else {
    if (style === "band") pen.globalAlpha = 0.4;
    pen.fillRect(0, 2, KEY, KEY - 4);
  }
  pen.restore();
}

function outline(pen, symbol) {
  pen.beginPath();
  const corners = OUTLINES[symbol];
  if (!corners) pen.arc(MIDDLE, MIDDLE, RADIUS, 0, 2 * Math.PI);
  for (const [dx, dy] of corners ?? []) pen.lineTo(MIDDLE + RADIUS * dx, MIDDLE + RADIUS * dy);
  pen.closePath();
}
