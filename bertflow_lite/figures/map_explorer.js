// The explorer of a map of sentences (maps.py): sentences of several spaces that a slider moves.
function exploreMap(name, data) {
  "use strict";
  const root = Array.from(document.querySelectorAll(`#${name}`)).find(one => !one.explorer);
  if (!root) return;
  const n = data.texts.length, last = data.steps.length - 1, small = n > 2000 ? 2 : 3;
  const BEFORE = "#D55E00", AFTER = "#0072B2", PARTNER = "#CC79A7";
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const at = { step: 0, selected: -1, pinned: false, zoom: 1, left: 0, top: 0, group: -1, found: [] };
  const sx = new Float32Array(n), sy = new Float32Array(n);
  let playing = 0, asked = false, drag = null;

  function add(parent, tag, properties, text) {
    const made = Object.assign(document.createElement(tag), properties || {});
    if (text) made.textContent = text;
    return parent.appendChild(made);
  }
  root.textContent = "";
  add(root, "style", {}, `
    .bertflow-map { color: var(--pst-color-text-base, inherit); font-size: 0.85rem; line-height: 1.4; margin: 0 0 1rem; }
    .bertflow-map .tools { display: flex; flex-wrap: wrap; gap: 0.3rem 0.6rem; align-items: center;
      margin: 0.25rem 0; }
    .bertflow-map :is(button, select, input[type=text]) { font: inherit; color: inherit;
      background: transparent; border: 1px solid #7B7F86; border-radius: 4px; padding: 0.15rem 0.5rem; }
    .bertflow-map option { color: CanvasText; background: Canvas; }
    .bertflow-map button[aria-pressed=true] { border-color: #0072B2; box-shadow: inset 0 -3px #0072B2; }
    .bertflow-map input[type=range] { flex: 1 1 8rem; accent-color: #0072B2; }
    .bertflow-map canvas { display: block; width: 100%; border: 1px solid #7B7F8660;
      border-radius: 4px; touch-action: pan-y; cursor: crosshair; }
    .bertflow-map p { margin: 0.25rem 0; }
    .bertflow-map .legend button { border-color: transparent; padding: 0 0.3rem; }
    .bertflow-map .legend i { display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.3em;
      border: 2px solid; border-radius: 50%; }
    .bertflow-map .near { display: grid; gap: 0 1rem; min-height: 15em; align-content: start;
      grid-template-columns: repeat(auto-fit, minmax(min(100%, max(15rem, 40%)), 1fr)); }
    .bertflow-map .pair { padding-left: 0.4rem; }
    .bertflow-map .near > p { grid-column: 1 / -1; }
    .bertflow-map ol { margin: 0.1rem 0; padding-left: 1.4rem; overflow-wrap: anywhere; }
    @media print { .bertflow-map .tools { display: none; } }`);
  const steps = add(root, "div", { className: "tools" });
  const play = add(steps, "button", { type: "button", className: "play" }, "Play");
  const slider = add(steps, "input", { type: "range", min: 0, max: last, step: 0.01, value: 0 });
  slider.setAttribute("aria-label", "Space");
  const names = data.steps.map((step, k) => {
    const button = add(steps, "button", { type: "button", className: "step" }, step.name);
    button.addEventListener("click", () => travel(k));
    return button;
  });
  const tools = add(root, "div", { className: "tools" });
  const color = add(add(tools, "label", {}, "Color by "), "select");
  Object.keys(data.groups).forEach(key => add(color, "option", { value: key }, key));
  color.value = data.color;
  const find = add(add(tools, "label", {}, "Find "), "input", { type: "text", size: 12 });
  const count = add(tools, "span", { className: "count" });
  count.setAttribute("role", "status");
  [["+", "Zoom in", 1.5], ["−", "Zoom out", 1 / 1.5], ["All", "Show all", 0]].forEach(one => {
    const button = add(tools, "button", { type: "button", title: one[1] }, one[0]);
    button.setAttribute("aria-label", one[1]);
    button.addEventListener("click", () => zoom(one[2], canvas.clientWidth / 2, canvas.clientHeight / 2));
  });
  const legend = add(root, "div", { className: "tools legend" });
  const canvas = add(root, "canvas", { tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Map of ${n} sentences. Arrow keys choose one after the other.`);
  const note = add(root, "p", { className: "note" });
  const near = add(root, "div", { className: "near" });
  near.setAttribute("aria-live", "polite");
  const pen = canvas.getContext("2d");

  const nearest = () => Math.round(at.step);
  const compared = () => nearest() || last; // the space that is set beside the raw one

  function place() {
    const from = data.steps[Math.floor(at.step)], to = data.steps[Math.ceil(at.step)];
    const part = at.step % 1, ease = part * part * (3 - 2 * part);
    const scale = Math.min((canvas.clientWidth - 16) / 1000, (canvas.clientHeight - 16) / data.height);
    const left = (canvas.clientWidth - 1000 * scale) / 2;
    for (let i = 0; i < n; i += 1) {
      const x = from.x[i] + ease * (to.x[i] - from.x[i]), y = from.y[i] + ease * (to.y[i] - from.y[i]);
      sx[i] = (left + x * scale) * at.zoom + at.left;
      sy[i] = (8 + y * scale) * at.zoom + at.top;
    }
  }
  function dot(i, radius) {
    pen.moveTo(sx[i] + radius, sy[i]);
    pen.arc(sx[i], sy[i], radius, 0, 7);
  }
  function links(i, step, stroke, dash, radius) {
    pen.strokeStyle = stroke;
    pen.lineWidth = 2;
    pen.beginPath();
    step.neighbors[i].forEach(k => dot(k, radius));
    pen.stroke();
    pen.beginPath();
    pen.setLineDash(dash);
    step.neighbors[i].forEach(k => { pen.moveTo(sx[i], sy[i]); pen.lineTo(sx[k], sy[k]); });
    pen.stroke();
    pen.setLineDash([]);
  }
  function draw() {
    asked = false;
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * ratio)) canvas.width = Math.round(w * ratio);
    if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, w, h);
    place();
    const ink = getComputedStyle(root).color, radius = small * Math.min(Math.sqrt(at.zoom), 2);
    const groups = data.groups[color.value], faint = at.found.length || at.selected >= 0;
    groups.names.forEach(([, paint, open], g) => {
      pen.globalAlpha = at.group >= 0 && at.group !== g ? 0.08 : faint ? 0.5 : 0.9;
      pen.beginPath();
      groups.of.forEach((one, i) => { if (one === g) dot(i, radius); });
      pen.fillStyle = pen.strokeStyle = paint;
      pen.lineWidth = 1.5;
      if (open) pen.stroke(); else pen.fill();
    });
    pen.globalAlpha = 1;
    pen.strokeStyle = ink;
    pen.lineWidth = 1.5;
    pen.beginPath();
    at.found.forEach(i => dot(i, radius + 2));
    pen.stroke();
    if (at.selected < 0) return;
    links(at.selected, data.steps[0], BEFORE, [4, 4], radius + 5);
    links(at.selected, data.steps[compared()], AFTER, [], radius + 2.5);
    pen.beginPath();
    const partner = data.partners[at.selected];
    if (partner) dot(partner[0], radius + 8);
    pen.strokeStyle = PARTNER;
    pen.stroke();
    pen.beginPath();
    dot(at.selected, radius + 3);
    pen.fillStyle = ink;
    pen.fill();
  }
  function refresh() {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  function list(step, paint, title, other) {
    const box = add(near, "div");
    add(box, "b", {}, title).style.borderBottom = `3px solid ${paint}`;
    const rows = add(box, "ol");
    step.neighbors[at.selected].forEach((i, k) => {
      const both = other.neighbors[at.selected].includes(i) ? " (in both)" : "";
      add(rows, "li", {}, `${step.cosines[at.selected][k].toFixed(2)} ${data.texts[i]}${both}`);
    });
  }
  function tell() {
    near.textContent = "";
    if (at.selected < 0) {
      add(near, "p", {}, "Point at a sentence, or find a word: its five nearest in the raw space and "
        + "after it light up, with their cosines. A click holds it, another lets it go.");
      return;
    }
    const first = data.steps[0], later = data.steps[compared()], partner = data.partners[at.selected];
    add(add(near, "p"), "b", {}, data.texts[at.selected]);
    if (partner) add(near, "p", { className: "pair" }, `Its pair (${partner[1]}): ${data.texts[partner[0]]}`)
      .style.borderLeft = `3px solid ${PARTNER}`;
    list(first, BEFORE, `nearest in ${first.name} (dashed)`, later);
    list(later, AFTER, `nearest in ${later.name}`, first);
  }
  function select(i, pinned) {
    at.pinned = Boolean(pinned) && i >= 0;
    if (i !== at.selected) {
      at.selected = i;
      tell();
    }
    refresh();
  }
  function move(step) {
    const before = compared();
    at.step = Math.min(Math.max(step, 0), last);
    slider.value = at.step;
    slider.setAttribute("aria-valuetext", data.steps[nearest()].name);
    names.forEach((button, k) => button.setAttribute("aria-pressed", k === nearest()));
    note.textContent = data.steps[nearest()].note;
    if (at.selected >= 0 && compared() !== before) tell();
    refresh();
  }
  // One space after the other up to `goal`, with a rest at each.
  function travel(goal) {
    stop();
    if (calm.matches) return move(goal);
    const start = at.step, way = goal - start, began = performance.now();
    playing = requestAnimationFrame(function frame(now) {
      const done = Math.min(Math.max((now - began) / (900 * Math.max(Math.abs(way), 0.1)), 0), 1);
      move(start + way * done);
      playing = done < 1 ? requestAnimationFrame(frame) : 0;
    });
  }
  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    play.textContent = "Play";
  }
  function run() {
    if (playing) return stop();
    if (at.step >= last) move(0);
    let rest = performance.now() + 500, goal = Math.floor(at.step) + 1, began = 0, start = at.step;
    play.textContent = "Pause";
    playing = requestAnimationFrame(function frame(now) {
      if (now >= rest) {
        began = began || now;
        const done = calm.matches ? 1 : Math.min((now - began) / 1200, 1);
        move(start + (goal - start) * done);
        if (done === 1) {
          if (goal === last) return stop();
          start = goal;
          goal += 1;
          began = 0;
          rest = now + 900;
        }
      }
      playing = requestAnimationFrame(frame);
    });
  }
  function zoom(factor, x, y) {
    const next = factor ? Math.min(Math.max(at.zoom * factor, 1), 40) : 1;
    at.left = next === 1 ? 0 : x - (x - at.left) * next / at.zoom;
    at.top = next === 1 ? 0 : y - (y - at.top) * next / at.zoom;
    at.zoom = next;
    refresh();
  }
  function search() {
    const word = find.value.trim().toLowerCase();
    at.found = [];
    if (word) data.texts.forEach((text, i) => { if (text.toLowerCase().includes(word)) at.found.push(i); });
    count.textContent = word ? `${at.found.length} found${at.found.length ? "; Enter: next" : ""}` : "";
    select(-1);
  }
  function under(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = 15 * 15;
    for (let i = 0; i < n; i += 1) {
      const far = (sx[i] - x) ** 2 + (sy[i] - y) ** 2;
      if (far < least) { least = far; best = i; }
    }
    return best;
  }
  function key(group) { // the legend of what the points are colored by
    legend.textContent = "";
    at.group = group;
    data.groups[color.value].names.forEach(([label, paint, open], g) => {
      const button = add(legend, "button", { type: "button" });
      const mark = add(button, "i");
      mark.style.borderColor = paint;
      mark.style.background = open ? "none" : paint;
      button.append(label);
      button.setAttribute("aria-pressed", g === group);
      button.addEventListener("click", () => {
        key(g === at.group ? -1 : g);
        legend.children[g].focus();
      });
    });
    refresh();
  }
  function fit() {
    const w = canvas.clientWidth;
    canvas.style.height = `${Math.round(Math.min(Math.max(w * data.height / 1000, 260), 480))}px`;
    refresh();
  }

  play.addEventListener("click", run);
  slider.addEventListener("input", () => { stop(); move(Number(slider.value)); });
  slider.addEventListener("change", () => { if (at.step % 1) travel(nearest()); });
  color.addEventListener("change", () => key(-1));
  find.addEventListener("input", search);
  find.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !at.found.length) return;
    event.preventDefault();
    select(at.found[(at.found.indexOf(at.selected) + 1) % at.found.length], true);
  });
  canvas.addEventListener("keydown", event => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") select(-1);
    if (!by) return;
    event.preventDefault();
    const order = Array.from(sx.keys()).sort((a, b) => sx[a] - sx[b]); // from left to right
    select(order[(order.indexOf(at.selected) + by + n) % n], true);
  });
  canvas.addEventListener("pointerdown", event => {
    drag = { x: event.clientX, y: event.clientY, left: at.left, top: at.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (!drag) { if (!at.pinned) select(under(event)); return; }
    const x = event.clientX - drag.x, y = event.clientY - drag.y;
    drag.moved = drag.moved || Math.hypot(x, y) > 5;
    if (!drag.moved || at.zoom === 1) return;
    at.left = drag.left + x;
    at.top = drag.top + y;
    refresh();
  });
  canvas.addEventListener("pointerup", event => {
    const one = under(event);
    if (drag && !drag.moved) select(at.pinned && one === at.selected ? -1 : one, true);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { drag = null; if (!at.pinned) select(-1); });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  new ResizeObserver(fit).observe(root);
  new MutationObserver(refresh).observe(document.documentElement, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  root.explorer = { at, select, move, sx, sy, draw };
  key(-1);
  tell();
  move(0);
  fit();
}
