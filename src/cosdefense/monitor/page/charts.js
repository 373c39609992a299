// Small charts over the rounds, drawn as SVG. They follow the page from light to dark by their classes.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 46, right: 10, top: 10, bottom: 22 };

function make(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function niceStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function ticks(low, high, count, smallest = 0) {
  if (!(high > low)) return [low];
  const step = Math.max(niceStep(high - low, count), smallest), found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1000 && found.length < 20; value += step) found.push(value);
  return found;
}

// A frame with axes. Returns the svg element and functions from numbers to pixels; null if there is nothing to draw.
function frame(place, xs, low, high, format) {
  const width = place.clientWidth, height = place.clientHeight;
  place.replaceChildren();
  if (!xs.length || width < 80) {
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = "Nothing to show yet.";
    place.append(note);
    return null;
  }
  const first = xs[0], last = Math.max(xs[xs.length - 1], first + 1);
  const x = (value) => MARGIN.left + (value - first) / (last - first) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => height - MARGIN.bottom - (value - low) / (high - low || 1) * (height - MARGIN.top - MARGIN.bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const value of ticks(low, high, 4)) {
    svg.append(make("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const value of ticks(first + 1, last + 1, Math.min(8, width / 70), 1)) {
    svg.append(make("text", { x: x(value - 1), y: height - 5, "text-anchor": "middle" }, String(value)));
  }
  place.append(svg);
  return { svg, x, y, width, height };
}

// Shows the value that is nearest to the pointer.
function readable(drawn, points, describe) {
  const { svg, x, width, height } = drawn;
  const rule = make("line", { class: "rule", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  const words = make("text", { class: "reading", y: MARGIN.top + 4, visibility: "hidden" });
  svg.append(rule, words);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const nearest = points.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best));
    const px = x(nearest[0]);
    rule.setAttribute("x1", px);
    rule.setAttribute("x2", px);
    words.setAttribute("x", px + (px > width / 2 ? -6 : 6));
    words.setAttribute("text-anchor", px > width / 2 ? "end" : "start");
    words.textContent = describe(nearest);
    for (const element of [rule, words]) element.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => {
    for (const element of [rule, words]) element.setAttribute("visibility", "hidden");
  });
}

// A line of [round, value] pairs. `range`: the lowest and highest value of the axis, null where the points decide.
export function drawLine(place, points, { range = [null, null], format, name }) {
  const values = points.map((point) => point[1]);
  const low = range[0] ?? Math.min(...values), high = range[1] ?? Math.max(...values, low);
  const drawn = frame(place, points.map((point) => point[0]), low, high > low ? high : low + 1, format);
  if (!drawn) return;
  const { svg, x, y } = drawn;
  const path = points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
  svg.append(make("path", { class: "line", d: path }));
  const end = points[points.length - 1];
  svg.append(make("circle", { class: "dot", cx: x(end[0]), cy: y(end[1]), r: 3.5 }));
  const describe = (point) => `round ${point[0] + 1}: ${format(point[1])}`;
  svg.setAttribute("aria-label", `${name} over the rounds; ${describe(end)}`);
  readable(drawn, points, describe);
}

// Bars of [round, accepted, others, seconds, skipped].
export function drawReplies(place, points) {
  const most = Math.max(...points.map((point) => point[1] + point[2]), 1);
  const drawn = frame(place, points.map((point) => point[0]), 0, most, (value) => (Number.isInteger(value) ? String(value) : ""));
  if (!drawn) return;
  const { svg, x, y } = drawn;
  const gap = points.length > 1 ? x(points[1][0]) - x(points[0][0]) : 40;
  const breadth = Math.max(1, Math.min(24, gap * 0.8));
  for (const [round, accepted, others, , skipped] of points) {
    const left = Math.max(MARGIN.left, x(round) - breadth / 2);
    svg.append(make("rect", { class: skipped ? "skipped" : "accepted", x: left, width: breadth, y: y(accepted), height: y(0) - y(accepted) }));
    svg.append(make("rect", { class: "rejected", x: left, width: breadth, y: y(accepted + others), height: y(accepted) - y(accepted + others) }));
  }
  const describe = ([round, accepted, others, , skipped]) => `round ${round + 1}: ${accepted} accepted, ${others} not${skipped ? ", skipped" : ""}`;
  svg.setAttribute("aria-label", `Nodes in each round; ${describe(points[points.length - 1])}`);
  readable(drawn, points, describe);
}
