// Unpacks the data and draws every picture, each in a frame of its own so that the page stays awake.

for (const drive of data.drives) {
  const { map, requests, curves } = drive;
  for (const name of ["times", "blocks", "owners", "kinds"]) map[name] = unpack(map[name]);
  for (const name of Object.keys(requests)) requests[name] = unpack(requests[name]);
  // Neighbours in time get different colours: a request's goes by its number.
  map.numbers = map.owners.map((owner) => (owner ? 1 + (requests.number[owner - 1] % OWNERS) : 0));
  for (const name of ["running", "waiting"]) drive[name] = unpack(drive[name]);
  for (const name of data.classes) drive.ledger[name] = unpack(drive.ledger[name]);
  for (const curve of Object.values(curves))
    for (const name of ["quantiles", "p50", "p99"]) curve[name] = unpack(curve[name]);
}

const pictures = [];
for (const place of document.querySelectorAll(".plot.map"))
  pictures.push(makeMap(place, data.drives[place.dataset.drive]));
for (const place of document.querySelectorAll(".plot.ledger"))
  pictures.push(makeAreas(place, data.drives[place.dataset.drive]));
const charts = document.getElementById("charts");
for (const name of TIMES) {
  pictures.push(makeDistribution(charts, name));
  pictures.push(makeOverTime(charts, name));
}
for (const name of ["running", "waiting"]) pictures.push(makeCounts(charts, name));

function drawLegend() {
  const entries = data.drives.map((drive, at) => [lineSwatch(at), drive.name]);
  legend(document.getElementById("drive-legend"), entries);
}

let round = 0;
function drawAll() {
  const mine = ++round; // a later call stops this one
  drawLegend();
  const rest = [...pictures];
  const next = () => {
    if (mine !== round) return;
    const draw = rest.shift();
    if (draw) {
      draw();
      requestAnimationFrame(next);
    } else document.documentElement.dataset.drawn = round;
  };
  next();
}

let width = 0;
new ResizeObserver(() => {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  drawAll();
}).observe(document.documentElement);
dark.addEventListener("change", drawAll);
