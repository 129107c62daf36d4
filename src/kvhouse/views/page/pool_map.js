// The memory map: who holds which block over time, drawn pixel by pixel.

const OWNERS = 8;
const KIND = Object.fromEntries(data.classes.map((name, place) => [name, place]));

/** The colours of a map, for the scheme that is in force. */
function mapColours() {
  return {
    owners: Array.from({ length: OWNERS }, (_, place) => rgb(colour(`owner-${place}`))),
    panel: rgb(colour("panel")),
    cached: rgb(colour("cached")),
    shared: rgb(colour("shared-block")),
    scattered: rgb(colour("scattered")),
  };
}

const mix = (one, other, share) => one.map((value, at) => value * share + other[at] * (1 - share));

/** Three colours for each owner: of blocks with tokens, of blocks to be filled, and hatching. */
function shades(colours) {
  return colours.owners.map((owner) => [
    owner,
    mix(owner, colours.panel, 0.45),
    mix(owner, colours.panel, 0.2),
  ]);
}

/** For each pixel of a line, the moment that it shows; -1 after the end. */
function momentsOf(width, times, end) {
  const moments = new Int32Array(width);
  let at = 0;
  for (let pixel = 0; pixel < width; pixel++) {
    const time = ((pixel + 0.5) / width) * (data.end || 1);
    while (at + 1 < times.length && times[at + 1] <= time) at++;
    moments[pixel] = time <= end && times.length ? at : -1;
  }
  return moments;
}

/** The colour of one pixel of a cell. */
function paint(kind, owner, x, y, colours, tones) {
  const tone = owner ? tones[(owner - 1) % OWNERS] : null;
  if (kind === KIND.used) return tone[0];
  if (kind === KIND.reserved) return tone[1];
  if (kind === KIND.internal) return (x + y) % 6 < 1 ? tone[1] : tone[2];
  if (kind === KIND.shared) return (x - y + 6000) % 6 < 2 ? tone[0] : colours.shared;
  if (kind === KIND.cached) return colours.cached;
  if (kind === KIND.external) return (x - y + 6000) % 6 < 1 ? colours.scattered : colours.panel;
  return colours.panel;
}

function drawMap(canvas, map, end) {
  const colours = mapColours();
  const tones = shades(colours);
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const moments = momentsOf(width, map.times, end);
  const dot = Math.max(1, Math.round(devicePixelRatio));
  for (let y = 0, at = 0; y < height; y++) {
    const row = Math.floor((y * map.rows) / height);
    for (let x = 0; x < width; x++, at += 4) {
      if (moments[x] < 0) continue;
      const cell = moments[x] * map.rows + row;
      const pixel = paint(
        map.kinds[cell], map.numbers[cell], Math.floor(x / dot), Math.floor(y / dot), colours, tones,
      );
      image.data[at] = pixel[0];
      image.data[at + 1] = pixel[1];
      image.data[at + 2] = pixel[2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

/** What a legend's swatch looks like: the same pixels as the map's. */
function mapSwatch(kind) {
  const canvas = html("canvas", "swatch");
  const colours = mapColours();
  const tones = shades(colours);
  [canvas.width, canvas.height] = [36, 16];
  const context = canvas.getContext("2d");
  const image = context.createImageData(36, 16);
  for (let y = 0, at = 0; y < 16; y++)
    for (let x = 0; x < 36; x++, at += 4) {
      const pixel = paint(kind, 1 + Math.floor(x / 12), x, y, colours, tones);
      image.data.set([pixel[0], pixel[1], pixel[2], 255], at);
    }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** What a cell is, in words. */
function describeCell(map, requests, moment, row) {
  const cell = moment * map.rows + row;
  const kind = data.classes[map.kinds[cell]];
  const lines = [say("block", NUMBERS.format(map.blocks[row]), duration(map.times[moment])), texts[kind]];
  const owner = map.owners[cell];
  if (kind === "shared") lines.push(texts.several);
  else if (owner) {
    const at = owner - 1;
    lines.push(
      say("request", NUMBERS.format(requests.number[at])),
      say("tokens", NUMBERS.format(requests.prompt[at]), NUMBERS.format(requests.output[at])),
      say("bytes", gib(requests.bytes[at])),
      say("span", duration(requests.arrival[at]), duration(requests.finished[at])),
    );
  }
  return lines;
}

/** As many pixels for each row of cells, so that none looks larger than another. */
function mapHeight(rows, width) {
  const wanted = Math.max(220, Math.min(400, width * 0.42));
  return rows * Math.max(1, Math.round(wanted / rows));
}

/** Put a map into its place; returns what draws it anew. */
function makeMap(place, drive) {
  const map = drive.map;
  const canvas = html("canvas", "");
  const holder = html("div", "holder");
  hover(canvas, (x, y) => {
    const moments = momentsOf(Math.max(1, Math.round(canvas.clientWidth)), map.times, drive.end);
    const moment = moments[Math.min(Math.max(0, Math.floor(x)), moments.length - 1)];
    if (moment < 0) return null;
    const row = Math.floor((Math.max(0, y) / canvas.clientHeight) * map.rows);
    return describeCell(map, drive.requests, moment, Math.min(row, map.rows - 1));
  });
  return () => {
    const width = place.clientWidth;
    const axis = timeAxis();
    const height = mapHeight(map.rows, width) + MARGIN.top + MARGIN.bottom;
    const { root, scaleX, inner } = frame(width, height, {
      ...axis,
      y: { low: drive.pool_blocks, high: 0, whole: true },
      yLabel: texts.blocks,
    });
    holder.replaceChildren(root, canvas);
    canvas.style.left = `${inner.left}px`;
    canvas.style.top = `${inner.top}px`;
    canvas.style.width = `${inner.right - inner.left}px`;
    canvas.style.height = `${inner.bottom - inner.top}px`;
    canvas.width = Math.max(1, Math.round((inner.right - inner.left) * devicePixelRatio));
    canvas.height = Math.max(1, Math.round((inner.bottom - inner.top) * devicePixelRatio));
    drawMap(canvas, map, drive.end);
    if (!holder.parentNode) place.append(holder);
    if (drive.end < data.end * 0.9) {
      const left = scaleX(drive.end / axis.unit.seconds) + 6;
      const y = (inner.top + inner.bottom) / 2;
      const fits = inner.right - left > 90;
      if (fits) root.append(svg("text", { class: "ended", x: left, y }, say("ended", duration(drive.end))));
    }
    const kinds = data.classes.filter((_, kind) => map.kinds.includes(kind));
    legend(place.nextElementSibling, kinds.map((kind) => [mapSwatch(KIND[kind]), texts[kind]]));
  };
}
