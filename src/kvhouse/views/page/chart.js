// Axes in SVG: a frame that others draw into.

const MARGIN = { left: 52, right: 12, top: 20, bottom: 34 };
const CHART_HEIGHT = 190;

/** Round values that divide a range, about ``count`` of them; whole ones where things are counted. */
function ticks(first, last, count, whole) {
  const [low, high] = first < last ? [first, last] : [last, first];
  if (!(high > low)) return [low];
  const rough = whole ? Math.max(1, (high - low) / count) : (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [1, 2, 2.5, 5, 10].map((factor) => factor * power);
  const step = steps.find((one) => one >= rough * 0.999 && !(whole && one % 1));
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * 1.0001; at++) found.push(at * step);
  return found;
}

/** A linear scale from values to pixels. */
function linear(low, high, from, to, whole) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  scale.invert = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  const room = Math.abs(to - from) / (to > from ? 70 : 34);
  scale.ticks = ticks(low, high, Math.max(2, room), whole);
  return scale;
}

/** The same for logarithms, with a tick at each power of ten, or more where these are few. */
function logarithmic(low, high, from, to) {
  const [least, most] = [Math.log10(low), Math.log10(high)];
  const scale = linear(least, most, from, to);
  const logged = (value) => scale(Math.log10(Math.max(value, low)));
  logged.invert = (pixel) => 10 ** scale.invert(pixel);
  const factors = most - least > 3.2 ? [1] : most - least > 1.6 ? [1, 3] : [1, 2, 5];
  logged.ticks = [];
  for (let power = Math.floor(least); power <= most; power++)
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) logged.ticks.push(tick);
    }
  return logged;
}

/** The ends of a logarithmic axis that shows all of some values, as round numbers. */
function logRange(values) {
  let low = Infinity;
  let high = 0;
  for (const value of values)
    if (value > 0) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  if (!high) return [0.1, 1];
  const round = (value, up) => {
    const power = 10 ** Math.floor(Math.log10(value));
    const steps = up ? [1, 2, 5, 10] : [5, 2, 1];
    const fits = (step) => (up ? step * power >= value * 0.999 : step * power <= value * 1.001);
    return power * steps.find(fits);
  };
  low = round(low, false);
  high = round(high, true);
  return high > low ? [low, high] : [low / 2, high * 2];
}

/**
 * An SVG with axes.
 *
 * Returns the element, the scales and the group to draw into, below which the axes lie.
 */
function frame(width, height, { x, y, xLabel, yLabel, xText = number, yText = number }) {
  const inner = {
    left: MARGIN.left,
    right: width - MARGIN.right,
    top: MARGIN.top,
    bottom: height - MARGIN.bottom,
  };
  const scaleX = (x.log ? logarithmic : linear)(x.low, x.high, inner.left, inner.right);
  const scaleY = (y.log ? logarithmic : linear)(y.low, y.high, inner.bottom, inner.top, y.whole);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const axes = svg("g", { class: "axes" });
  const marks = svg("g");
  for (const tick of scaleY.ticks) {
    const at = scaleY(tick).toFixed(1);
    axes.append(svg("line", { x1: inner.left, x2: inner.right, y1: at, y2: at }));
    axes.append(svg("text", { x: inner.left - 6, y: at, dy: "0.35em", "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of scaleX.ticks) {
    const at = scaleX(tick).toFixed(1);
    axes.append(svg("line", { class: "tick", x1: at, x2: at, y1: inner.bottom, y2: inner.bottom + 4 }));
    const anchor = at > inner.right - 16 ? "end" : "middle";
    const x = anchor === "end" ? width : at;
    axes.append(svg("text", { x, y: inner.bottom + 15, "text-anchor": anchor }, xText(tick)));
  }
  axes.append(svg("text", { class: "label", x: inner.right, y: height - 4, "text-anchor": "end" }, xLabel));
  if (yLabel) axes.append(svg("text", { class: "label", x: inner.left, y: 11 }, yLabel));
  root.append(axes, marks);
  return { root, marks, scaleX, scaleY, inner };
}

/** A path through the points that are there. */
function path(count, x, y) {
  const points = [];
  for (let at = 0; at < count; at++) {
    const [left, top] = [x(at), y(at)];
    if (Number.isFinite(left) && Number.isFinite(top)) points.push(`${left.toFixed(1)} ${top.toFixed(1)}`);
  }
  // A single point is a line of no length, which its round cap makes visible.
  return points.length ? `M${points.join("L")}${points.length > 1 ? "" : "h0"}` : "";
}

/** A time axis that all drives share. */
function timeAxis() {
  const unit = timeUnit(data.end);
  return {
    x: { low: 0, high: data.end / unit.seconds || 1 },
    xLabel: say("time", unit.name, texts.timing),
    unit,
  };
}

/**
 * Show what ``describe`` says of the seconds under the pointer.
 *
 * Returns what is to be told the scale and the unit of each time axis that is drawn.
 */
function hoverTime(place, describe) {
  let secondsAt = null;
  hover(place, (x) => secondsAt && describe(secondsAt(x)));
  return (scale, unit) => (secondsAt = (x) => scale.invert(x) * unit.seconds);
}
