// The ledger as stacked areas: every byte of the pool by class.

/** The sums below and above each class of a ledger, for each bin. */
function stack(ledger) {
  const bins = ledger[data.classes[0]].length;
  let below = new Float64Array(bins);
  return data.classes.map((name) => {
    const above = below.map((sum, bin) => sum + ledger[name][bin]);
    const layer = { name, below, above, any: ledger[name].some((value) => value > 0) };
    below = above;
    return layer;
  });
}

/** Put a ledger into its place; returns what draws it anew. */
function makeAreas(place, drive) {
  const layers = stack(drive.ledger);
  const bins = drive.ledger[data.classes[0]].length;
  const shown = layers.filter((layer) => layer.any);
  const [unit, unitName] = drive.pool_bytes < 2 ** 30 ? [2 ** 20, "MiB"] : [2 ** 30, "GiB"];
  const drawn = hoverTime(place, (seconds) => {
    const bin = Math.floor(seconds / drive.bin_seconds);
    if (!(bin >= 0 && bin < bins)) return null;
    const of = (name) => `${texts[name]}: ${gib(drive.ledger[name][bin])}`;
    const lines = [...shown].reverse().map(({ name }) => [colour(name), of(name)]);
    return [say("at", duration(seconds)), ...lines, `${texts.pool}: ${gib(drive.pool_bytes)}`];
  });
  return () => {
    const axis = timeAxis();
    const { root, marks, scaleX, scaleY } = frame(place.clientWidth, CHART_HEIGHT, {
      ...axis,
      y: { low: 0, high: drive.pool_bytes / unit },
      yLabel: unitName,
    });
    drawn(scaleX, axis.unit);
    const x = (bin) => scaleX((bin * drive.bin_seconds) / axis.unit.seconds);
    const y = (bytes) => scaleY(bytes / unit);
    for (const { name, below, above } of shown) marks.append(area(name, bins, x, y, below, above));
    place.replaceChildren(root);
    const entry = ({ name }) => [swatchOf(colour(name)), texts[name]];
    legend(place.nextElementSibling, [...shown].reverse().map(entry));
  };
}

/** One layer: steps along its upper side, and back along its lower. */
function area(name, bins, x, y, below, above) {
  const points = [];
  const at = (bin, side, value) => points.push(`${x(bin + side).toFixed(1)} ${y(value).toFixed(1)}`);
  for (let bin = 0; bin < bins; bin++) for (const side of [0, 1]) at(bin, side, above[bin]);
  for (let bin = bins - 1; bin >= 0; bin--) for (const side of [1, 0]) at(bin, side, below[bin]);
  return svg("path", { class: `layer ${name}`, d: `M${points.join("L")}Z` });
}
