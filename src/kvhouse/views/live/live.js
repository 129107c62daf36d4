// Asks for the pool every half second and shows it.

const EVERY = 500;
const AFTER_FAILURE = 2000;
const HISTORY = 120; // seconds that the chart shows
const RECENT = 3; // seconds over which rates are taken
const LISTED = 12; // requests in the table

const find = (id) => document.getElementById(id);
const history = [];
let tiles = new Tiles();
let state = null;
let cells = null;
let layout = null;
let failures = 0;

function secret() {
  return sessionStorage.getItem("kvhouse-key");
}

/** How much a total grew over the last seconds, by how much another did. */
function rate(numerator, denominator) {
  const last = history.at(-1);
  const first = history.find((one) => one.seconds >= last.seconds - RECENT) ?? last;
  const passed = denominator(last) - denominator(first);
  return passed > 0 ? (numerator(last) - numerator(first)) / passed : 0;
}

const tokensPerSecond = () => rate((one) => one.totals.generated_tokens, (one) => one.seconds);

function fact(value, name, detail) {
  return html("div", "", html("dt", "", name), html("dd", "value", value), html("dd", "", detail));
}

function showFacts() {
  const { totals, ledger, pool } = state;
  const held = ledger.used + ledger.shared + ledger.reserved + ledger.internal;
  const known = totals.admitted_tokens;
  const share = known > 0 ? `${number((100 * totals.found_tokens) / known)} %` : "–";
  const facts = [
    fact(NUMBERS.format(state.running), texts.running, say("of_most", NUMBERS.format(pool.max_running))),
    fact(NUMBERS.format(state.waiting), texts.waiting, say("preempted", NUMBERS.format(totals.preemptions))),
    fact(number(tokensPerSecond()), texts.rate, texts.measured),
    fact(`${number((100 * held) / ledger.total)} %`, texts.held, say("held_detail", gib(held), gib(ledger.total))),
    fact(NUMBERS.format(totals.found_tokens), texts.found, say("found_detail", share)),
  ];
  if (totals.decode_bytes !== null) {
    const bytes = rate((one) => one.totals.decode_bytes, (one) => one.totals.decode_seconds);
    facts.push(fact(number(bytes / 1e9), texts.bandwidth, texts.measured));
  }
  find("facts").replaceChildren(...facts);
}

function showMap() {
  const { pool } = state;
  const drawn = NUMBERS.format(state.cells);
  const all = NUMBERS.format(pool.blocks);
  const note = state.cells < pool.blocks ? say("map_note_sampled", drawn, all) : texts.map_note;
  find("map-note").textContent = state.cells ? note : texts.map_none;
  find("map").parentNode.querySelector("canvas").hidden = !state.cells;
  if (!state.cells) return;
  cells = cellsOf(state);
  find("map").style.width = "100%";
  layout = drawShelves(find("map"), cells, tiles);
  const kinds = data.classes.filter((name) => state.blocks[name]);
  legend(find("map-legend"), kinds.map((name) => [mapSwatch(KIND[name]), texts[name]]));
}

function showLedger() {
  const present = data.classes.filter((name) => state.ledger[name]);
  const bar = find("ledger");
  while (bar.children.length < data.classes.length) bar.append(html("i", ""));
  data.classes.forEach((name, at) => {
    const part = bar.children[at];
    part.style.width = `${(100 * state.ledger[name]) / (state.ledger.total || 1)}%`;
    part.style.background = colour(name);
  });
  const entry = (name) => [swatchOf(colour(name)), `${texts[name]}: ${gib(state.ledger[name])}`];
  legend(find("ledger-legend"), present.map(entry));
}

/** The rate over the last two minutes as a line. */
function showRate() {
  const place = find("rate");
  const width = place.clientWidth;
  const height = 160;
  const end = history.at(-1).seconds;
  const points = history.slice(1).map((one, at) => {
    const before = history[Math.max(0, at - 3)];
    const made = one.totals.generated_tokens - before.totals.generated_tokens;
    return [one.seconds, made / (one.seconds - before.seconds)];
  });
  const most = Math.max(1, ...points.map(([, value]) => value));
  const x = (seconds) => 48 + ((seconds - end + HISTORY) / HISTORY) * (width - 60);
  const y = (value) => height - 20 - (value / most) * (height - 34);
  const path = points.map(([seconds, value]) => `${x(seconds).toFixed(1)} ${y(value).toFixed(1)}`);
  const root = svg("svg", { width, height, role: "img", "aria-labelledby": "rate-heading" });
  const axes = svg("g", { class: "axes" });
  for (const value of [0, most]) {
    axes.append(svg("line", { x1: 48, x2: width - 12, y1: y(value), y2: y(value) }));
    axes.append(svg("text", { x: 42, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  root.append(axes);
  if (path.length) root.append(svg("path", { class: "line", d: `M${path.join("L")}` }));
  place.replaceChildren(root);
}

function requestRow(request) {
  const own = request.blocks ? `owner-${request.id % OWNERS}` : "panel";
  const name = html("th", "", swatchOf(colour(own)), NUMBERS.format(request.id));
  name.scope = "row";
  const kept = NUMBERS.format(request.prompt_tokens + request.generated_tokens);
  const made = NUMBERS.format(request.generated_tokens);
  const most = NUMBERS.format(request.max_new_tokens);
  return html("tr", "", name,
    html("td", "", texts[`state_${request.state}`] ?? request.state),
    html("td", "", kept), html("td", "", say("of", made, most)),
    html("td", "", NUMBERS.format(request.blocks)));
}

function showRequests() {
  const { requests } = state;
  const more = requests.length - LISTED;
  find("requests").replaceChildren(...requests.slice(0, LISTED).map(requestRow));
  const note = requests.length ? "" : texts.nobody;
  find("requests-note").textContent = more > 0 ? say("others", NUMBERS.format(more)) : note;
}

function show() {
  if (!state) return;
  const { pool } = state;
  const sizes = [gib(pool.bytes), NUMBERS.format(pool.blocks), pool.block_tokens];
  find("subject").textContent = say("subject", state.model, ...sizes, pool.kv_format, pool.policy);
  find("shown").hidden = false;
  showFacts();
  showMap();
  showLedger();
  showRate();
  showRequests();
  document.documentElement.dataset.drawn = String(state.totals.steps);
}

function complain(text) {
  find("banner").textContent = text;
  find("banner").hidden = !text;
}

/** Ask once; false where a key is needed. */
async function ask() {
  const wanted = innerWidth < 600 ? 1024 : 2048;
  const headers = secret() ? { authorization: `Bearer ${secret()}` } : {};
  const response = await fetch(`kv?cells=${wanted}`, { headers, cache: "no-store" });
  if (response.status === 401) {
    complain(secret() ? texts.wrong_key : "");
    find("key").hidden = false;
    return false;
  }
  if (!response.ok) throw new Error(response.statusText);
  state = await response.json();
  if (history.length && history.at(-1).seconds > state.seconds) history.length = 0; // a new server
  history.push({ seconds: state.seconds, totals: state.totals });
  while (history[0].seconds < state.seconds - HISTORY) history.shift();
  find("key").hidden = true;
  complain("");
  show();
  return true;
}

async function goOn() {
  let wait = EVERY;
  try {
    if (!document.hidden && !(await ask())) return;
    failures = 0;
  } catch {
    failures += 1;
    if (failures > 1) complain(texts.lost);
    wait = AFTER_FAILURE;
  }
  setTimeout(goOn, wait);
}

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("kvhouse-key", find("secret").value);
  find("secret").value = "";
  goOn();
});
hover(find("map"), (x, y) => {
  if (!layout || !cells) return null;
  const column = Math.floor(x / layout.size);
  const cell = Math.floor(y / layout.size) * layout.columns + column;
  if (column >= layout.columns || cell >= cells.kinds.length) return null;
  const block = Math.floor(((2 * cell + 1) * state.pool.blocks) / (2 * state.cells));
  const lines = [say("cell", NUMBERS.format(block)), texts[data.classes[cells.kinds[cell]]]];
  if (cells.owners[cell]) lines.push(say("request", NUMBERS.format(cells.owners[cell] - 1)));
  return lines;
});
addEventListener("resize", show);
dark.addEventListener("change", () => {
  tiles = new Tiles();
  show();
});
goOn();
