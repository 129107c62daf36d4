// The warehouse: one cell for each block, in the order of their numbers, line by line.

const SMALLEST = 4;
const LARGEST = 26;

/** How large cells are and how many stand in a line, so that all are seen in about this space. */
function shelving(cells, width) {
  const height = Math.max(220, Math.min(440, width * 0.34));
  let size = Math.floor(Math.sqrt((width * height) / Math.max(1, cells)));
  size = Math.max(SMALLEST, Math.min(LARGEST, size));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, lines: Math.ceil(cells / columns) };
}

/** Small pictures of cells, each drawn once: kind, colour of the request and size decide it. */
class Tiles {
  constructor() {
    this.colours = mapColours();
    this.tones = shades(this.colours);
    this.made = new Map();
  }

  get(kind, owner, size) {
    const name = `${kind} ${owner % OWNERS} ${size} ${owner > 0}`;
    if (!this.made.has(name)) this.made.set(name, this.draw(kind, owner, size));
    return this.made.get(name);
  }

  draw(kind, owner, size) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const context = tile.getContext("2d");
    const image = context.createImageData(size, size);
    for (let y = 0, at = 0; y < size; y++)
      for (let x = 0; x < size; x++, at += 4)
        image.data.set([...paint(kind, owner, x, y, this.colours, this.tones), 255], at);
    context.putImageData(image, 0, 0);
    return tile;
  }
}

/** Runs of the map as one class and one owner, plus one, for each cell. */
function cellsOf(state) {
  const kinds = new Uint8Array(state.cells);
  const owners = new Float64Array(state.cells);
  for (const run of state.map) {
    kinds.fill(KIND[run.class], run.first, run.first + run.count);
    owners.fill(run.request === null ? 0 : run.request + 1, run.first, run.first + run.count);
  }
  return { kinds, owners };
}

/** Draw the warehouse; returns how it was laid out, in pixels of the style sheet. */
function drawShelves(canvas, cells, tiles) {
  const { size, columns, lines } = shelving(cells.kinds.length, canvas.clientWidth);
  const ratio = Math.max(1, Math.round(devicePixelRatio));
  const gap = size >= 6 ? 1 : 0;
  canvas.style.height = `${lines * size}px`;
  canvas.width = columns * size * ratio;
  canvas.height = lines * size * ratio;
  canvas.style.width = `${columns * size}px`;
  const context = canvas.getContext("2d");
  for (let cell = 0; cell < cells.kinds.length; cell++) {
    const tile = tiles.get(cells.kinds[cell], cells.owners[cell], (size - gap) * ratio);
    const line = Math.floor(cell / columns);
    context.drawImage(tile, (cell - line * columns) * size * ratio, line * size * ratio);
  }
  return { size, columns };
}
