"use strict";
// The timeline that moves: bars on a canvas, to be zoomed, searched, and walked through with mouse, finger or keyboard.
// Its data is the JSON of encode.py. All times are nanoseconds from the start; colours come from the page's style.
(async () => {
  const STYLES = ["compute", "matmul", "hidden", "copy", "other"]; // of a name, by number
  const [LANE, SPACE, STRIP, LOOP, HEAD, AXIS, NARROW, MANY] = [20, 4, 10, 15, 46, 30, 620, 200000];
  const section = document.getElementById("timeline");
  const $ = (selector) => section.querySelector(selector);
  const [canvas, tip, picked, search, found, keys] =
    ["canvas", ".tip", ".picked", "input", "output", ".keys"].map($);
  const pen = canvas.getContext("2d"), sheet = document.createElement("canvas");

  // ---- Sets of time: disjoint intervals in order, and how much of them lies before a time. ----
  class Times {
    constructor(start, end) {
      [this.start, this.end, this.size] = [start, end, start.length];
      this.sum = new Float64Array(this.size + 1);
      for (let i = 0; i < this.size; i++) this.sum[i + 1] = this.sum[i] + end[i] - start[i];
    }
    get total() { return this.sum[this.size]; }
    after(time) { // the first interval that ends after a time
      let [low, high] = [0, this.size];
      while (low < high) { const mid = (low + high) >> 1; if (this.end[mid] > time) high = mid; else low = mid + 1; }
      return low;
    }
    before(time, i = this.after(time)) {
      return this.sum[i] + (i < this.size ? Math.max(0, time - this.start[i]) : 0);
    }
    shares(time, step, count) { // of each of some spans of time, one after the other
      const found = new Float64Array(count);
      let i = this.after(time), before = this.before(time, i);
      for (let k = 0; k < count; k++) {
        const to = time + (k + 1) * step;
        while (i < this.size && this.end[i] <= to) i++;
        const now = this.before(to, i);
        found[k] = (now - before) / step;
        before = now;
      }
      return found;
    }
  }
  function combine(one, other, wanted) { // the times where wanted[in neither, in one, in the other, in both]
    const start = new Float64Array(one.size + other.size + 1), end = new Float64Array(start.length);
    let [i, j, size, inside, open] = [0, 0, 0, 0, false];
    while (i < one.size || j < other.size) {
      const a = i < one.size ? (inside & 1 ? one.end[i] : one.start[i]) : Infinity;
      const b = j < other.size ? (inside & 2 ? other.end[j] : other.start[j]) : Infinity;
      const time = Math.min(a, b);
      if (a === time) { if (inside & 1) i++; inside ^= 1; }
      if (b === time) { if (inside & 2) j++; inside ^= 2; }
      if (wanted[inside] && !open) { if (size && end[size - 1] === time) size--; else start[size] = time; open = true; }
      else if (!wanted[inside] && open) { end[size++] = time; open = false; }
    }
    return new Times(start.slice(0, size), end.slice(0, size));
  }
  const NONE = new Times(new Float64Array(0), new Float64Array(0));
  const [EITHER, BOTH, FIRST] = [[0, 1, 1, 1], [0, 0, 0, 1], [0, 1, 0, 0]];

  // ---- Data: unpacked, loops folded or unfolded, and what follows from it. ----
  const letters = atob(document.getElementById("timeline-data").textContent), packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = await new Response(stream).json();
  const texts = data.texts;
  const names = data.names.map(([style, sync, ...told]) => {
    const [name, kind, lhs, op, shape, source, cost, next] = told.map((number) => texts[number]);
    return { style, sync, name, kind, lhs, op, shape, source, cost, next };
  });
  const length = Math.max(1, ...data.panels.map((panel) => panel.length));
  const rows = data.panels.reduce((sum, panel) => sum + panel.rows, 0);
  const loopy = data.panels.some((panel) => panel.spans.some((span) => span.folded > 1));
  let folded = loopy && rows > MANY;

  function columns({ label, start, duration, name, count }) { // times are differences to the one before, without ends
    const found = { label, start: new Float64Array(start.length), end: new Float64Array(start.length), name: Int32Array.from(name),
                    count: count ? Float64Array.from(count) : new Float64Array(start.length).fill(1) };
    let time = 0;
    for (let i = 0; i < start.length; i++) { found.start[i] = time += start[i]; found.end[i] = time + duration[i]; }
    return found;
  }
  function unfold(lanes, spans) { // each folded iteration again as often as it runs, outer loops first
    spans = [...spans];
    for (let k = 0; k < spans.length; k++) {
      const { folded: times, foldedStart: from, foldedEnd: to, depth } = spans[k];
      if (times < 2) continue;
      const move = (time, n) => from + (time - from + n * (to - from)) / times;
      const inside = (start) => start >= from - 0.5 && start < to - 0.5;
      const numbers = Array.from({ length: times }, (_, n) => n);
      lanes = lanes.map((lane) => {
        const bars = Array.from(lane.start, (start, i) => ({ start, end: lane.end[i], name: lane.name[i], count: lane.count[i] }));
        const list = bars.flatMap((bar) => inside(bar.start) && bar.count >= times && bar.count % times === 0
          ? numbers.map((n) => ({ ...bar, start: move(bar.start, n), end: move(bar.end, n), count: bar.count / times })) : [bar]);
        list.sort((a, b) => a.start - b.start);
        const column = (kind, of) => kind.from(list, (bar) => bar[of]);
        return { label: lane.label, start: column(Float64Array, "start"), end: column(Float64Array, "end"),
                 name: column(Int32Array, "name"), count: column(Float64Array, "count") };
      });
      const later = spans.slice(k + 1), deeper = (span) => span.depth > depth && inside(span.start);
      const copies = numbers.flatMap((n) => later.filter(deeper).map((span) => ({ ...span, start: move(span.start, n),
        end: move(span.end, n), foldedStart: move(span.foldedStart, n), foldedEnd: move(span.foldedEnd, n) })));
      spans = [...spans.slice(0, k), { ...spans[k], folded: 0 }, ...copies, ...later.filter((span) => !deeper(span))];
    }
    return [lanes, spans];
  }
  function prepare(panel, number) {
    let [lanes, spans] = [panel.lanes.map(columns), panel.spans];
    if (!folded) [lanes, spans] = unfold(lanes, spans);
    lanes = lanes.map(({ label, start, end, name, count }) => {
      const sizes = STYLES.map(() => 0);
      for (const code of name) sizes[names[code].style]++;
      const parts = sizes.map((size) => [new Float64Array(size), new Float64Array(size)]);
      sizes.fill(0);
      for (let i = 0; i < name.length; i++) {
        const { style } = names[name[i]], k = sizes[style]++;
        [parts[style][0][k], parts[style][1][k]] = [start[i], end[i]];
      }
      return { label, name, count, times: new Times(start, end), styles: parts.map((part) => new Times(...part)) };
    });
    const all = (...styles) => lanes.flatMap((lane) => styles.map((style) => lane.styles[style])).filter((times) => times.size)
      .reduce((sum, times) => combine(sum, times, EITHER), NONE);
    const compute = all(0, 1), communication = all(2), exposed = combine(communication, compute, FIRST);
    const exposedCopy = combine(all(3), combine(communication, compute, EITHER), FIRST);
    for (const lane of lanes) lane.exposed = combine(lane.styles[2], exposed, BOTH);
    const named = combine(combine(compute, communication, EITHER), all(3), EITHER);
    const otherWork = combine(all(4), named, FIRST), busy = combine(named, otherWork, EITHER);
    const open = state.panels[number] ? state.panels[number].open : panel.open;
    return { ...panel, lanes, spans, compute, exposed, exposedCopy, otherWork, busy, open };
  }

  // ---- State and geometry. ----
  const steps = (data.panels.find((panel) => panel.spans.some((span) => /^step \d/.test(span.label))) || { spans: [] }).spans
    .filter((span) => span.depth === 0 && /^step \d/.test(span.label));
  const first = data.first || (steps.length > 1 ? steps[1].start : length);
  const flags = [...document.querySelectorAll("li[data-span]")].map((item) => item.dataset.span.split(" ").map((us) => us * 1e3));
  const state = { from: 0, to: Math.min(first, length), panels: [], hover: null, pick: null, match: null, hits: [], hit: -1, area: null,
                  marks: [], at: null };
  let [width, height, gutter, layout, colours, waiting, moving] = [0, 0, 0, [], {}, false, 0];
  const X = (time) => gutter + ((time - state.from) / (state.to - state.from)) * (width - gutter);
  const T = (x) => state.from + ((x - gutter) / (width - gutter)) * (state.to - state.from);

  function load() {
    state.panels = data.panels.map(prepare);
    state.hover = null;
    const words = state.panels.map((p) => `${p.label}: compute ${duration(p.compute.total)}, exposed communication ` +
      `${duration(p.exposed.total)}, exposed copies ${duration(p.exposedCopy.total)} of ${duration(p.length)}`);
    canvas.setAttribute("aria-label", `Timeline. ${words.join("; ")}. The tables below hold the figures.`);
    const button = $("[data-do=fold]");
    button.hidden = !loopy;
    button.textContent = folded ? "Unfold loops" : "Fold loops";
    place();
  }
  function place() { // where each row is
    width = section.querySelector(".stage").clientWidth;
    const narrow = width < NARROW;
    gutter = narrow ? 0 : 136;
    layout = [];
    let y = AXIS;
    const add = (row, size, gap) => { layout.push({ ...row, y, size }); y += size + gap; };
    for (const panel of state.panels) {
      add({ panel, head: true }, narrow ? HEAD + 14 : HEAD, 0);
      const depths = Math.min(2, 1 + Math.max(-1, ...panel.spans.map((span) => span.depth)));
      for (let depth = 0; panel.open && depth < depths; depth++) add({ panel, depth }, LOOP, 3);
      add({ panel, strip: true }, panel.open ? STRIP : 16, SPACE);
      for (const lane of panel.open ? panel.lanes : []) {
        if (narrow) y += 11;
        add({ panel, lane }, LANE, SPACE);
      }
      y += 10;
    }
    height = y;
    if (!width) return; // not shown: in a closed frame, or a preview
    const ratio = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(section);
    for (const name of ["paper", "ink", "soft", "line", "idle", "exposed", "in-bar", "mark", ...STYLES]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    hatch = hatched();
    redraw();
  }
  let hatch = null;
  function hatched() { // exposed and hidden differ without colour, too
    const tile = document.createElement("canvas"), paper = tile.getContext("2d");
    [tile.width, tile.height] = [8, 8];
    paper.fillStyle = colours.exposed; paper.fillRect(0, 0, 8, 8);
    paper.strokeStyle = colours.paper; paper.globalAlpha = 0.55; paper.lineWidth = 2;
    paper.beginPath();
    for (const x of [-8, 0, 8]) { paper.moveTo(x, 8); paper.lineTo(x + 8, 0); }
    paper.stroke();
    return pen.createPattern(tile, "repeat");
  }
  function show(from, to) { // the part of time to draw
    const span = Math.min(Math.max(to - from, 50), length);
    state.from = Math.min(Math.max(from, 0), length - span);
    state.to = state.from + span;
    redraw();
    remember();
  }
  function glide(from, to) { // the same, in a few frames
    cancelAnimationFrame(moving);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return show(from, to);
    const [a, b, begin] = [state.from, state.to, performance.now()];
    const step = (now) => {
      const part = Math.min((now - begin) / 180, 1), ease = 1 - (1 - part) ** 3;
      show(a + (from - a) * ease, b + (to - b) * ease);
      if (part < 1) moving = requestAnimationFrame(step);
    };
    moving = requestAnimationFrame(step);
  }
  const zoom = (factor, at = (state.from + state.to) / 2, move = show) =>
    move(at - (at - state.from) * factor, at + (state.to - at) * factor);
  const pan = (part, move = show) => {
    const step = (state.to - state.from) * part;
    move(Math.min(Math.max(state.from + step, 0), length - state.to + state.from), Math.min(Math.max(state.to + step, state.to - state.from), length));
  };

  // ---- Drawing. Bars under four pixels become a share of busy time for each pixel. ----
  function redraw() {
    if (!waiting) requestAnimationFrame(() => { waiting = false; draw(); });
    waiting = true;
  }
  function draw() {
    if (!width) return;
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, width, height);
    pen.textBaseline = "middle";
    axis();
    for (const row of layout) {
      if (row.head) header(row);
      else if (row.strip) strip(row);
      else if (row.lane) lane(row);
      else spans(row);
    }
    flows();
    overlay();
    if (state.area) {
      pen.fillStyle = colours.mark; pen.globalAlpha = 0.15;
      pen.fillRect(Math.min(...state.area), 0, Math.abs(state.area[1] - state.area[0]), height);
      pen.globalAlpha = 1;
    }
  }
  function badges() { // of each action in view: its number, its left edge, the middle of its disc; discs do not overlap
    const found = [];
    flags.forEach(([start, end], n) => {
      if (end < state.from || start > state.to) return;
      const left = Math.min(Math.max(X(start), gutter), width - 18);
      let middle = left + 8;
      while (found.some((other) => Math.abs(other.middle - middle) < 17)) middle += left > width / 2 ? -17 : 17;
      found.push({ number: n + 1, left, middle, right: Math.min(X(end), width) });
    });
    return found;
  }
  function overlay() { // the numbers of the actions, a chosen pause, and the measured span
    for (const { number, left, middle, right } of badges()) {
      pen.fillStyle = colours.mark;
      pen.fillRect(left, AXIS - 4, Math.max(right - left, 2), 3);
      pen.beginPath(); pen.arc(middle, AXIS - 14, 8, 0, 7); pen.fill();
      write(`${number}`, middle, AXIS - 13.5, colours.paper, "600 11px system-ui, sans-serif", Infinity, "center");
    }
    for (const at of [state.hover, state.pick]) {
      const row = at && at.gap && layout.find((item) => item.strip && item.panel === at.panel);
      if (!row) continue;
      const left = Math.max(X(at.gap[0]), gutter);
      pen.strokeStyle = colours.ink; pen.lineWidth = at === state.pick ? 2 : 1;
      pen.strokeRect(left - 0.5, row.y - 1, Math.max(Math.min(X(at.gap[1]), width) - left, 2), row.size + 2);
      pen.lineWidth = 1;
    }
    pen.fillStyle = colours.mark;
    for (const time of state.marks) pen.fillRect(X(time), AXIS - 6, 1.5, height);
    if (state.marks.length === 2) {
      const [from, to] = [...state.marks].sort((a, b) => a - b);
      write(duration(to - from), (X(from) + X(to)) / 2, AXIS + 6, colours.mark, "600 12px system-ui, sans-serif", Infinity, "center");
    }
  }
  function write(text, x, y, colour, font = "11.5px system-ui, sans-serif", room = Infinity, align = "left", halo = false) {
    pen.font = font; pen.fillStyle = colour; pen.textAlign = align;
    if (room < Infinity && pen.measureText(text).width > room) {
      const keep = Math.floor((text.length * room) / pen.measureText(text).width) - 1;
      if (keep < 4) return;
      text = `${text.slice(0, keep)}…`;
    }
    if (halo) { pen.strokeStyle = colours.paper; pen.lineWidth = 3; pen.strokeText(text, x, y); pen.lineWidth = 1; }
    pen.fillText(text, x, y);
  }
  function duration(ns, digits = 4) {
    const [unit, scale] = Math.abs(ns) >= 1e9 ? ["s", 1e9] : Math.abs(ns) >= 1e6 ? ["ms", 1e6] : Math.abs(ns) >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return `${Number((ns / scale).toPrecision(digits))} ${unit}`;
  }
  function axis() {
    const span = state.to - state.from;
    const rough = (span * 90) / (width - gutter), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const [unit, scale] = span >= 3e9 ? ["s", 1e9] : span >= 3e6 ? ["ms", 1e6] : span >= 3e3 ? ["µs", 1e3] : ["ns", 1];
    const base = state.from > 20 * span ? Math.floor(state.from / (10 * step)) * 10 * step : 0; // far in, ticks count from here
    if (base) write(`${duration(base, 7)} +`, gutter ? gutter - 10 : 0, 17, colours.soft, undefined, Infinity, gutter ? "right" : "left");
    const discs = badges();
    for (let k = Math.ceil(state.from / step); k * step <= state.to; k++) {
      const x = X(k * step), label = Math.max(x, gutter + 14), isFree = !discs.some(({ middle }) => Math.abs(middle - label) < 34);
      pen.fillStyle = colours.line;
      pen.fillRect(x, AXIS - 6, 1, height - AXIS);
      if (isFree && x < width - 24) write(`${Number(((k * step - base) / scale).toPrecision(7))} ${unit}`, label, 17, colours.soft, undefined, Infinity, "center");
    }
    if (span >= length) return;
    pen.fillStyle = colours.line; pen.fillRect(gutter, 2, width - gutter, 4); // where in the whole
    const whole = (width - gutter) / length;
    pen.fillStyle = colours.soft; pen.fillRect(gutter + state.from * whole, 2, Math.max((state.to - state.from) * whole, 6), 4);
  }
  function header({ panel, y, size }) {
    pen.fillStyle = colours.line; pen.fillRect(0, y + 2, width, 1);
    const sign = panel.open ? "▾" : "▸";
    write(`${sign} ${panel.label}`, 0, y + 15, colours.ink, "600 13.5px system-ui, sans-serif", size > HEAD ? width : width * 0.6);
    const right = size > HEAD ? [0, y + 49, "left"] : [width, y + 15, "right"];
    write(panel.note, right[0], right[1], colours.soft, undefined, width * (size > HEAD ? 1 : 0.38), right[2]);
    const facts = size > HEAD ? panel.facts.replace("exposed communication", "exposed") : panel.facts;
    write(facts, 0, y + 33, colours.soft, undefined, width);
  }
  function spans({ panel, depth, y, size }) {
    for (const span of panel.spans) {
      if (span.depth !== depth || span.end <= state.from || span.start >= state.to) continue;
      const [left, right] = [Math.max(X(span.start), gutter), Math.min(X(span.end), width)];
      pen.strokeStyle = colours.soft; pen.setLineDash(span.folded > 1 ? [3, 2] : []);
      pen.strokeRect(left + 0.5, y + 0.5, Math.max(right - left - 1, 1), size - 2);
      pen.setLineDash([]);
      const text = span.folded > 1 ? `${span.label}, ${span.folded} of them drawn as one, stretched` : span.label;
      write(text, left + 4, y + size / 2, colours.soft, undefined, right - left - 8);
    }
  }
  function strip({ panel, y, size }) { // what the device as a whole does: the parts of the step
    if (gutter) write("device", gutter - 10, y + size / 2, colours.soft, undefined, Infinity, "right");
    const parts = [["compute", panel.compute], ["exposed", panel.exposed], ["copy", panel.exposedCopy], ["other", panel.otherWork]];
    const end = Math.min(X(panel.length), width);
    pen.fillStyle = colours.idle;
    pen.fillRect(Math.max(X(0), gutter), y, Math.max(end - Math.max(X(0), gutter), 0), size);
    pixels(Math.max(X(0), gutter), end, parts, y, size);
  }
  function pixels(left, right, parts, y, size) { // each pixel as high as its shares, one part upon the other
    const ratio = canvas.width / width, [count, high] = [Math.round((right - left) * ratio), Math.round(size * ratio)];
    if (!(count >= 1)) return;
    const image = new ImageData(count, high), dots = new Uint32Array(image.data.buffer), foot = new Int16Array(count).fill(high);
    for (const [name, times, tall = 1] of parts) {
      if (!times.size) continue;
      const shares = times.shares(T(left), (T(left + 1) - T(left)) / ratio, count);
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colours[name].slice(at, at + 2), 16));
      const colour = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
      for (let k = 0; k < count; k++) {
        if (shares[k] < 1e-9) continue;
        const top = Math.max(foot[k] - Math.max(Math.round(shares[k] * high * tall), 1), 0);
        for (let at = top * count + k; at < foot[k] * count; at += count) dots[at] = colour;
        foot[k] = top;
      }
    }
    if (sheet.width < count) sheet.width = count;
    if (sheet.height < high) sheet.height = high;
    const paper = sheet.getContext("2d", { willReadFrequently: true });
    paper.putImageData(image, 0, 0);
    pen.drawImage(sheet, 0, 0, count, high, left, y, count / ratio, size);
  }
  function bars(times, least, parts, y, size, box) { // pixels for narrow bars, boxes for the others, which it returns by number
    const scale = (width - gutter) / (state.to - state.from), wide = [];
    let i = times.after(state.from), narrow = 0;
    for (; i < times.size && times.start[i] < state.to; i++) {
      if ((times.end[i] - times.start[i]) * scale >= least) wide.push(i); else narrow++;
    }
    if (narrow) pixels(gutter, width, parts, y, size);
    for (const k of wide) box(k, Math.max(X(times.start[k]), gutter), Math.min(X(times.end[k]), width));
    return wide;
  }
  function lane(row) {
    const { panel, lane: { times, styles, label, exposed, name }, y, size } = row;
    if (gutter) write(label, gutter - 10, y + size / 2, colours.soft, undefined, gutter - 12, "right");
    else write(label, 0, y - 5, colours.soft, "10.5px system-ui, sans-serif");
    const wide = bars(times, 4, STYLES.map((style, i) => [style, styles[i], i === 2 ? 0.5 : 1]), y, size, (i, left, right) => {
      const { style } = names[name[i]], tall = style === 2 ? size / 2 : size; // hidden communication is half as high
      pen.fillStyle = colours.paper; pen.fillRect(left, y, right - left, size);
      pen.fillStyle = colours[STYLES[style]];
      pen.fillRect(left, y + size - tall, Math.max(right - left - (right - left > 3 ? 1 : 0), 1), tall);
    });
    bars(exposed, 4, [["exposed", exposed]], y, size, (i, left, right) => {
      pen.fillStyle = hatch; pen.fillRect(left, y, right - left, size);
    });
    for (const i of wide) caption(row, i);
    if (state.match) marks(row);
    for (const at of [state.hover, state.pick]) {
      if (!at || at.panel !== panel || at.lane !== row.lane) continue;
      const left = Math.max(X(times.start[at.i]), gutter - 2), right = Math.min(X(times.end[at.i]), width + 2);
      pen.strokeStyle = colours.ink; pen.lineWidth = at === state.pick ? 2 : 1;
      pen.strokeRect(left - 0.5, y - 1, Math.max(right - left, 2), size + 2);
      pen.lineWidth = 1;
    }
  }
  const clip = (times, i) => [Math.max(X(times.start[i]), gutter), Math.min(X(times.end[i]), width)];
  function caption({ lane: { times, name, count, exposed }, y, size }, i) {
    const [left, right] = clip(times, i);
    if (right - left < 34) return;
    const { name: text, sync, style } = names[name[i]];
    const times_ = count[i] > 1 ? ` × ${count[i]}` : "";
    write(text + times_ + (sync ? " (synchronous)" : ""), left + 4, y + size / 2 + 0.5, style === 2 ? colours.ink : colours["in-bar"],
      "11px system-ui, sans-serif", right - left - 8, "left", style === 2 && exposed.size > 0);
  }
  function marks({ lane: { times, name }, y, size }) { // what the search found: a line below it
    pen.fillStyle = colours.mark;
    let last = -1;
    for (let i = times.after(state.from); i < name.length && times.start[i] < state.to; i++) {
      if (!state.match.has(name[i])) continue;
      const [left, right] = clip(times, i);
      if (right > last + 1) pen.fillRect(left, y + size, Math.max(right - left, 2), 3);
      last = Math.max(right, left + 2);
    }
  }
  function flows() { // of a transfer: from where it was started, to the first instruction that may use it
    const at = state.hover || state.pick;
    if (!at || at.gap) return;
    const { lane: own, panel, i } = at, { style, next } = names[own.name[i]];
    const place_ = (wanted) => layout.find((row) => row.lane === wanted);
    const home = panel.lanes.find((other) => other !== own && other.styles[0].size + other.styles[1].size);
    if (style < 2 || style > 3 || !home || !place_(home) || !place_(own)) return;
    const [start, end, target] = [own.times.start[i], own.times.end[i], following(panel, next, own.times.start[i])];
    const from = place_(home), to = place_(own);
    curve(X(start), from.y + from.size, X(start), to.y);
    if (target) curve(X(end), to.y, X(target.lane.times.start[target.i]), place_(target.lane).y + place_(target.lane).size);
  }
  function curve(x1, y1, x2, y2) {
    pen.strokeStyle = colours.ink; pen.fillStyle = colours.ink; pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
    pen.stroke();
    pen.beginPath(); pen.arc(x1, y1, 2.5, 0, 7); pen.arc(x2, y2, 2.5, 0, 7); pen.fill();
    pen.lineWidth = 1;
  }
  function following(panel, name, time) {
    for (const lane of name ? panel.lanes : []) {
      for (let i = lane.times.after(time); i < lane.name.length; i++) {
        if (names[lane.name[i]].name === name && lane.times.start[i] >= time) return { panel, lane, i };
      }
    }
    return null;
  }

  // ---- What the pointer is on, and its facts. ----
  function under(x, y) {
    const row = layout.find((item) => y >= item.y && y <= item.y + item.size);
    if (!row || x < gutter || row.head) return null;
    if (!row.lane) return row.strip ? pause(row.panel, T(x)) : null;
    const { times } = row.lane, reach = ((state.to - state.from) / width) * 2;
    const i = times.after(T(x));
    const near = [i, i - 1].filter((k) => k >= 0 && k < times.start.length)
      .map((k) => [Math.max(times.start[k] - T(x), T(x) - times.end[k], 0), k]).sort((a, b) => a[0] - b[0])[0];
    return near && near[0] <= reach ? { panel: row.panel, lane: row.lane, i: near[1] } : pause(row.panel, T(x));
  }
  function pause(panel, time) { // the time around this one in which the device does nothing
    const { busy } = panel, i = busy.after(time);
    if (time < 0 || time > panel.length || (i < busy.size && busy.start[i] <= time)) return null;
    return { panel, gap: [i ? busy.end[i - 1] : 0, i < busy.size ? busy.start[i] : panel.length] };
  }
  function neighbours(panel, [from, to]) { // what ends where a pause begins, and what begins where it ends
    let [before, after] = [null, null];
    for (const { times, name } of panel.lanes) {
      const i = times.after(from - 0.5);
      for (const k of [i - 1, i]) {
        if (k >= 0 && k < name.length && Math.abs(times.end[k] - from) < 1) before = names[name[k]].name;
      }
      const j = times.after(to);
      if (j < name.length && Math.abs(times.start[j] - to) < 1) after = names[name[j]].name;
    }
    return [before, after];
  }
  const median = (list) => { const sorted = [...list].sort((a, b) => a - b), n = sorted.length; return (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2; };
  function short(shape) { // a tuple by its size and its first tensor
    if (!shape.startsWith("(")) return shape;
    const tensors = shape.match(/[a-z]+\d*[a-z0-9]*\[[^\]]*\]/g) || [];
    return tensors.length > 2 ? `${tensors.length}${shape.endsWith("…") ? " or more" : ""} tensors, first ${tensors[0]}` : shape;
  }
  function facts({ panel, lane, i, gap }) {
    if (gap) {
      const [before, after] = neighbours(panel, gap), around = [before && `after ${before}`, after && `before ${after}`];
      return [["idle", `idle ${duration(gap[1] - gap[0])}`], ["where", around.filter(Boolean).join(", ") || "at the edge"],
        ["starts at", `${duration(gap[0])} in ${panel.label}`]];
    }
    const item = names[lane.name[i]], [start, end, count] = [lane.times.start[i], lane.times.end[i], lane.count[i]];
    const list = [["instruction", item.name], ["kind", item.kind + (item.sync ? ", synchronous" : "")],
      ["takes", count > 1 ? `${duration((end - start) / count)} × ${count} = ${duration(end - start)}` : duration(end - start)],
      ["starts at", `${duration(start)} in ${panel.label}, ${lane.label}`]];
    const own = [];
    for (let k = 0; k < lane.name.length; k++) if (lane.name[k] === lane.name[i]) own.push((lane.times.end[k] - lane.times.start[k]) / lane.count[k]);
    if (own.length > 1) list.push([`median of ${own.length}`, duration(median(own))]);
    if (item.style === 2) {
      const exposed = Math.min(lane.exposed.before(end) - lane.exposed.before(start), end - start);
      list.push(["exposed", `${duration(exposed)} (${Math.round((100 * exposed) / Math.max(end - start, 1e-9))} %)`]);
    }
    for (const [label, key] of [["shape", "shape"], ["name when LHS ran", "lhs"], ["op_name", "op"], ["source", "source"], ["cost", "cost"]]) {
      if (item[key]) list.push([label, key === "shape" ? short(item[key]) : item[key]]);
    }
    if (item.next) list.push(["waited for before", item.next]);
    return list;
  }
  function element(tag, text, style = "") {
    const made = document.createElement(tag);
    made.textContent = text; made.className = style;
    return made;
  }
  function hover(at, x, y) {
    state.hover = at;
    tip.hidden = !at;
    canvas.style.cursor = at ? "pointer" : "default";
    if (at) {
      tip.replaceChildren(...facts(at).slice(0, 5).map(([key, text], n) => element("div", n < 2 ? text : `${key} ${text}`, n ? "" : "name")));
      tip.style.left = `${Math.max(Math.min(x + 12, width - tip.offsetWidth - 4), 0)}px`;
      tip.style.top = `${y + 16}px`;
    }
    redraw();
  }
  function pick(at, look = false) { // choose a bar; look: bring it into sight
    state.pick = at;
    for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    if (!at) { picked.textContent = picked.dataset.none; return redraw(); }
    const item = at.gap ? null : names[at.lane.name[at.i]];
    const list = document.createElement("dl");
    for (const [key, text] of facts(at)) list.append(element("dt", key), element("dd", text));
    picked.replaceChildren(list);
    const copied = element("button", item ? "Copy name" : "Copy");
    copied.onclick = () => copy(item ? item.name : facts(at).map((row) => row.join(": ")).join("\n"), copied);
    picked.append(copied);
    const linked = item && tableRow(item);
    if (linked) {
      linked.classList.add("chosen");
      const jump = element("button", "Show in the table");
      jump.onclick = () => { const fold = linked.closest("details"); if (fold) fold.open = true; linked.scrollIntoView({ block: "center" }); linked.querySelector("button").focus(); };
      picked.append(jump);
    }
    if (look) {
      if (!at.panel.open) { at.panel.open = true; place(); }
      const [start, end] = at.gap || [at.lane.times.start[at.i], at.lane.times.end[at.i]], reach = Math.max(end - start, 100) * 2;
      glide(Math.max(start - reach, 0), Math.min(end + reach, length));
    } else redraw();
    remember();
  }
  let noted = 0;
  function remember() { // the visible part and the chosen bar, in the address: a link leads back to it
    clearTimeout(noted);
    noted = setTimeout(() => {
      const at = state.pick, chosen = at && !at.gap ? `&sel=${encodeURIComponent(names[at.lane.name[at.i]].name)}` : "";
      const whole = state.from === 0 && state.to === Math.min(first, length);
      const part = whole && !chosen ? "" : `#t=${(state.from / 1e6).toFixed(6)}-${(state.to / 1e6).toFixed(6)}ms${chosen}`;
      try { history.replaceState(null, "", part || location.pathname + location.search); } catch { /* a frame without an address */ }
    }, 300);
  }
  function recall() {
    const part = /[#&]t=([\d.]+)-([\d.]+)ms/.exec(location.hash), chosen = /[#&]sel=([^&]*)/.exec(location.hash);
    if (part && Number(part[1]) < Number(part[2])) show(part[1] * 1e6, part[2] * 1e6);
    let name = "";
    try { name = chosen ? decodeURIComponent(chosen[1]) : ""; } catch { /* a link that was cut */ }
    const hits = name ? occurrences(new Set(names.flatMap((item, i) => (item.name === name ? [i] : [])))) : [];
    if (hits.length) pick(hits.find((at) => at.lane.times.end[at.i] > state.from) || hits[0]);
  }
  function sum(from, to) { // what a part of time holds: the parts of it, and the names that take most
    const list = document.createElement("dl"), span = to - from;
    list.append(element("dt", "selected"), element("dd", `${duration(span)} from ${duration(from)}`));
    for (const panel of state.panels.filter((item) => item.open)) {
      const inside = (times) => times.before(to) - times.before(from);
      const end = Math.min(to, panel.length) - Math.min(from, panel.length);
      const parts = [["compute", inside(panel.compute)], ["exposed", inside(panel.exposed)], ["exposed copies", inside(panel.exposedCopy)],
        ["other GPU work", inside(panel.otherWork)], ["idle", end - inside(panel.busy)]].filter((part) => part[1] >= 1);
      const total = new Map();
      for (const { times, name } of panel.lanes) {
        for (let i = times.after(from); i < name.length && times.start[i] < to; i++) {
          total.set(name[i], (total.get(name[i]) || 0) + Math.min(times.end[i], to) - Math.max(times.start[i], from));
        }
      }
      const most = [...total].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([code, time]) => `${names[code].name} ${duration(time)}`);
      list.append(element("dt", panel.label), element("dd", parts.map((part) => part[0] + " " + duration(part[1])).join(", ")),
        element("dt", "most time"), element("dd", most.join(", ")));
    }
    picked.replaceChildren(list);
  }
  const tableRow = (item) => [...document.querySelectorAll("tr[data-find]")].find((row) => [item.name, item.lhs].includes(row.dataset.find));
  function occurrences(wanted) { // bars of some names, in the order of panels and time
    const list = [];
    for (const panel of state.panels) {
      for (const lane of panel.lanes) for (let i = 0; i < lane.name.length; i++) if (wanted.has(lane.name[i])) list.push({ panel, lane, i });
    }
    const order = (at) => state.panels.indexOf(at.panel);
    return list.sort((a, b) => order(a) - order(b) || a.lane.times.start[a.i] - b.lane.times.start[b.i]);
  }
  function find(text) {
    const word = text.trim().toLowerCase();
    const has = (item) => [item.name, item.lhs, item.op, item.kind, item.source].some((part) => part.toLowerCase().includes(word));
    state.match = word ? new Set(names.flatMap((item, i) => (has(item) ? [i] : []))) : null;
    state.hits = word ? occurrences(state.match) : [];
    state.hit = -1;
    found.textContent = word ? `${state.hits.length} bars of ${state.match.size} instructions` : "";
    redraw();
  }
  function step(by) { // to the next or the previous one found
    if (!state.hits.length) return;
    state.hit = (state.hit + by + state.hits.length) % state.hits.length;
    found.textContent = `${state.hit + 1} of ${state.hits.length}`;
    pick(state.hits[state.hit], true);
  }
  function along(by) { // to the neighbour of the chosen bar in its lane
    const lane = state.panels.flatMap((panel) => (panel.open ? panel.lanes.map((item) => [panel, item]) : []));
    const at = state.pick || (lane.length && { panel: lane[0][0], lane: lane[0][1], i: lane[0][1].times.after(state.from) - by });
    if (!at || at.gap || !at.lane.times.start[at.i + by] && at.lane.times.start[at.i + by] !== 0) return;
    const next = { ...at, i: at.i + by }, [start, end] = [next.lane.times.start[next.i], next.lane.times.end[next.i]];
    pick(next, X(end) - X(start) < 4 || start < state.from || end > state.to);
  }

  // ---- Mouse, finger, keyboard, tables. ----
  const pointers = new Map();
  const place_ = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place_(event);
    pointers.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    const [one, other] = [...pointers.values()], far = other ? Math.abs(one[0] - other[0]) : 0;
    state.drag = { x, y, from: state.from, to: state.to, moved: far > 0, axis: (y < AXIS || event.shiftKey) && event.pointerType === "mouse", sum: event.shiftKey, far };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place_(event), drag = state.drag;
    state.at = T(x);
    if (!pointers.has(event.pointerId)) return hover(under(x, y), x, y);
    pointers.set(event.pointerId, [x, y]);
    const [one, other] = [...pointers.values()];
    if (other) { // two fingers
      const far = Math.abs(one[0] - other[0]);
      zoom(Math.max(drag.far, 10) / Math.max(far, 10), T((one[0] + other[0]) / 2));
      drag.far = far;
      return;
    }
    drag.moved ||= Math.abs(x - drag.x) > 4;
    if (!drag.moved) return;
    tip.hidden = true;
    if (drag.axis) { state.area = [drag.x, x]; redraw(); return; }
    const shift = ((drag.x - x) / (width - gutter)) * (drag.to - drag.from);
    show(drag.from + shift, drag.to + shift);
  });
  const release = (event) => {
    const [x, y] = place_(event);
    if (!pointers.delete(event.pointerId) || pointers.size) return;
    const area = state.area;
    state.area = null;
    if (area && event.type === "pointerup" && state.drag.sum) {
      sum(Math.max(T(Math.min(...area)), 0), Math.min(T(Math.max(...area)), length));
      redraw();
    } else if (area && event.type === "pointerup") glide(T(Math.min(...area)), T(Math.max(...area)));
    else if (!state.drag.moved && event.type === "pointerup") {
      const head = layout.find((row) => row.head && y >= row.y && y <= row.y + row.size);
      if (head) { head.panel.open = !head.panel.open; place(); } else pick(under(x, y));
    }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("dblclick", (event) => { const at = under(...place_(event)); if (at) pick(at, true); });
  canvas.addEventListener("wheel", (event) => {
    const across = event.shiftKey ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) zoom(1.0025 ** event.deltaY, T(place_(event)[0]));
    else if (Math.abs(across) > Math.abs(event.deltaY) / 2) pan(across / 1000);
    else return; // the page scrolls
    event.preventDefault();
  }, { passive: false });
  const DO = {
    in: () => zoom(1 / 2, undefined, glide), out: () => zoom(2, undefined, glide), all: () => glide(0, length),
    left: () => pan(-0.25, glide), right: () => pan(0.25, glide), next: () => along(1), back: () => along(-1),
    look: () => state.pick && pick(state.pick, true), search: () => search.focus(), keys: () => (keys.hidden = !keys.hidden),
    fold: () => { if (loopy) { folded = !folded; pick(null); load(); find(search.value); } }, clear: () => { search.value = ""; state.marks = []; find(""); pick(null); },
    hit: () => step(1), unhit: () => step(-1), link: () => copy(location.href, $("[data-do=link]")),
    mark: () => { state.marks = state.marks.length < 2 ? [...state.marks, state.at ?? (state.from + state.to) / 2] : []; redraw(); },
  };
  steps.slice(0, 3).forEach((part, n) => { DO[`step${n + 1}`] = () => glide(part.start, part.end); });
  for (const button of steps.length > 1 ? section.querySelectorAll("[data-step]") : []) button.hidden = !DO[button.dataset.do];
  const KEYS = { "+": "in", "=": "in", w: "in", ArrowUp: "in", "-": "out", s: "out", ArrowDown: "out", 0: "all", Home: "all",
    ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", "]": "next", ".": "next", "[": "back", ",": "back",
    Enter: "look", f: "look", "/": "search", n: "hit", N: "unhit", l: "fold", m: "mark", 1: "step1", 2: "step2", 3: "step3", "?": "keys", Escape: "clear" };
  const SCROLL = /^(Arrow|Home|Enter|Escape)/; // these are the page's own, unless the timeline has the focus
  document.addEventListener("keydown", (event) => {
    const own = event.target === canvas;
    if (event.ctrlKey || event.metaKey || event.altKey || !DO[KEYS[event.key]] || event.defaultPrevented) return;
    if (!own && (SCROLL.test(event.key) || event.target.closest("input, textarea, select, [contenteditable]"))) return;
    event.preventDefault();
    DO[KEYS[event.key]]();
  });
  for (const button of section.querySelectorAll("[data-do]")) button.onclick = () => DO[button.dataset.do]();
  search.addEventListener("input", () => find(search.value));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { DO.clear(); canvas.focus(); }
  });
  document.addEventListener("click", (event) => { // from a table or an action to the bar
    const row = event.target.closest("[data-find], [data-span]");
    if (!row || !event.target.closest("td button, .seek")) return;
    if (row.dataset.span) {
      const [start, end] = row.dataset.span.split(" ").map((us) => us * 1e3), rim = Math.max((end - start) * 0.3, 100);
      glide(Math.max(start - rim, 0), Math.min(end + rim, length));
      section.scrollIntoView({ block: "start", behavior: "smooth" });
      return;
    }
    const wanted = new Set(names.flatMap((item, i) => ([item.name, item.lhs].includes(row.dataset.find) ? [i] : [])));
    const hits = occurrences(wanted), shown = (at) => at.lane.exposed.before(at.lane.times.end[at.i]) - at.lane.exposed.before(at.lane.times.start[at.i]);
    const best = hits.filter((at) => at.panel === hits[0].panel).sort((a, b) => shown(b) - shown(a))[0];
    if (!best) return;
    pick(best, true);
    section.scrollIntoView({ block: "start", behavior: "smooth" });
    canvas.focus({ preventScroll: true });
  });
  new ResizeObserver(() => { if (section.querySelector(".stage").clientWidth !== width) place(); }).observe($(".stage"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", place);
  load();
  pick(null);
  const known = new Set(names.flatMap((item) => [item.name, item.lhs]));
  for (const row of document.querySelectorAll("tr[data-find]")) { // no link without a bar
    const button = row.querySelector("button");
    if (button && !known.has(row.dataset.find)) button.replaceWith(button.textContent);
  }
  for (const item of document.querySelectorAll("li[data-span], li[data-find]")) {
    if (!item.dataset.span && !known.has(item.dataset.find)) continue;
    const button = element("button", "Show in the timeline", "seek");
    item.append(button);
  }
  recall();
  addEventListener("hashchange", recall);
  section.classList.add("ready");
  performance.mark("timeline");
  section.view = { show, draw, zoom, state, length, DO }; // for measurements of this page
})();
