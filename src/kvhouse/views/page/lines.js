// How long requests took, and how many there were: one line for each drive.

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2"];
const TIMES = ["first_token_seconds", "per_token_seconds", "latency_seconds"];

const lineColour = (at) => colour(`line-${at % DASHES.length}`);

function stroke(at, d, thin) {
  return svg("path", {
    class: thin ? "line thin" : "line",
    d,
    stroke: lineColour(at),
    "stroke-dasharray": DASHES[at % DASHES.length],
  });
}

/** A chart's place, with its heading; returns the element to draw into. */
function chartPlace(parent, heading) {
  const place = html("div", "plot chart");
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", heading);
  parent.append(html("figure", "", html("figcaption", "", html("h3", "", heading)), place));
  return place;
}

/** A label of a logarithmic axis of times. */
const timeTick = (seconds) =>
  seconds >= 1 ? `${number(seconds)} s` : seconds >= 1e-3 ? `${number(seconds * 1e3)} ms` : `${number(seconds * 1e6)} µs`;

/** Which share of the requests took at most how long. */
function makeDistribution(parent, name) {
  const place = chartPlace(parent, say("distribution", texts[name], texts.timing));
  const curves = data.drives.map((drive) => drive.curves[name].quantiles);
  const [low, high] = logRange(curves.flatMap((values) => [...values]));
  let scale = null;
  hover(place, (x) => {
    if (!scale) return null;
    const value = scale.invert(x);
    const within = (values) => values.filter((one) => one <= value).length / (values.length || 1);
    const line = (drive, at) => [lineColour(at), `${drive.name}: ${number(100 * within(curves[at]))} %`];
    return [`≤ ${duration(value)}`, ...data.drives.map(line)];
  });
  return () => {
    const { root, marks, scaleX, scaleY } = frame(place.clientWidth, CHART_HEIGHT, {
      x: { low, high, log: true },
      y: { low: 0, high: 100 },
      xLabel: `${texts[name]} (${texts.timing})`,
      yLabel: "%",
      xText: timeTick,
    });
    scale = scaleX;
    curves.forEach((values, at) => {
      const y = (place) => scaleY((100 * place) / (values.length - 1));
      marks.append(stroke(at, path(values.length, (place) => scaleX(values[place]), y)));
    });
    place.replaceChildren(root);
  };
}

/** The median and the 99th percentile of the requests that finished at each time. */
function makeOverTime(parent, name) {
  const place = chartPlace(parent, say("over_time", texts[name], texts.timing));
  const curves = data.drives.map((drive) => drive.curves[name]);
  const [low, high] = logRange(curves.flatMap(({ p50, p99 }) => [...p50, ...p99]));
  const drawn = hoverTime(place, (seconds) => {
    const line = (drive, at) => {
      const { p50, p99 } = curves[at];
      const bin = Math.floor((seconds / drive.end) * p50.length);
      if (!(bin >= 0 && bin < p50.length) || Number.isNaN(p50[bin])) return null;
      const both = `${texts.median} ${duration(p50[bin])}, ${texts.tail} ${duration(p99[bin])}`;
      return [lineColour(at), `${drive.name}: ${both}`];
    };
    return [say("at", duration(Math.max(0, seconds))), ...data.drives.map(line).filter(Boolean)];
  });
  return () => {
    const axis = timeAxis();
    const { root, marks, scaleX, scaleY } = frame(place.clientWidth, CHART_HEIGHT, {
      ...axis,
      y: { low, high, log: true },
      yText: timeTick,
    });
    drawn(scaleX, axis.unit);
    data.drives.forEach((drive, at) => {
      for (const values of [curves[at].p99, curves[at].p50]) {
        const x = (bin) => scaleX((((bin + 0.5) / values.length) * drive.end) / axis.unit.seconds);
        const d = path(values.length, x, (bin) => scaleY(values[bin]));
        marks.append(stroke(at, d, values === curves[at].p99));
      }
    });
    place.replaceChildren(root);
  };
}

/** How many requests ran, or waited, over time. */
function makeCounts(parent, name) {
  const place = chartPlace(parent, texts[name]);
  let most = 1;
  for (const drive of data.drives) for (const value of drive[name]) most = Math.max(most, value);
  const drawn = hoverTime(place, (seconds) => {
    const line = (drive, at) => {
      const value = drive[name][Math.floor(seconds / drive.bin_seconds)];
      return value === undefined ? null : [lineColour(at), `${drive.name}: ${number(value)}`];
    };
    return [say("at", duration(Math.max(0, seconds))), ...data.drives.map(line).filter(Boolean)];
  });
  return () => {
    const axis = timeAxis();
    const { root, marks, scaleX, scaleY } = frame(place.clientWidth, CHART_HEIGHT, {
      ...axis,
      y: { low: 0, high: most, whole: true },
      yLabel: texts.requests,
    });
    drawn(scaleX, axis.unit);
    data.drives.forEach((drive, at) => {
      const values = drive[name];
      const x = (bin) => scaleX(((bin + 0.5) * drive.bin_seconds) / axis.unit.seconds);
      marks.append(stroke(at, path(values.length, x, (bin) => scaleY(values[bin]))));
    });
    place.replaceChildren(root);
  };
}

/** A legend's sample of a drive's line. */
function lineSwatch(at) {
  const sample = svg("svg", { class: "swatch", width: 30, height: 10, "aria-hidden": "true" });
  sample.append(stroke(at, "M1 5L29 5"));
  return sample;
}
