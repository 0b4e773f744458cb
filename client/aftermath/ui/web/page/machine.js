// The states of a run, drawn with the one it is in: a ring of those that come again and again, and next to it those in
// which nothing happens.

import { s } from "./build.js";

const CENTRE = { x: 238, y: 158 };
const RADIUS = 116;
const RING = ["waiting_for_members", "warmup", "round_train", "round_witness", "cooldown"];
const OUTSIDE = { uninitialized: { x: 388, y: 26 }, paused: { x: 52, y: 42 }, finished: { x: 52, y: 208 } };
const HALF = { width: 52, height: 15 };
const ARROWS = [
  ["uninitialized", "waiting_for_members"],
  ["paused", "waiting_for_members"],
  ["cooldown", "paused"],
  ["cooldown", "finished"],
];

const places = { ...OUTSIDE };
RING.forEach((state, place) => {
  const angle = ((place * 72 - 90) * Math.PI) / 180;
  places[state] = { x: CENTRE.x + RADIUS * 1.12 * Math.cos(angle), y: CENTRE.y + RADIUS * Math.sin(angle) };
});

/** Where a line from the middle of a box to a point leaves it. */
function border(from, to, halfWidth) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const out = Math.min((halfWidth + 5) / Math.abs(dx || 1e-9), (HALF.height + 5) / Math.abs(dy || 1e-9));
  return { x: from.x + dx * out, y: from.y + dy * out };
}

function halfWidth(words) {
  return Math.max(34, words.length * 3.9 + 12);
}

/** Draws it; gives what marks the state that a run is in, with a line or two in the middle. */
export function machine(states) {
  const width = (state) => halfWidth(labels[state]);
  const labels = { ...states, waiting_for_members: "waiting" };
  const lines = [];
  const line = (from, to, bend = 0) => {
    const [a, b] = [places[from], places[to]];
    const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    const control = {
      x: middle.x + ((middle.x - CENTRE.x) * bend || 0),
      y: middle.y + ((middle.y - CENTRE.y) * bend || 0),
    };
    const [begin, end] = [border(a, control, width(from)), border(b, control, width(to))];
    const d = `M${begin.x} ${begin.y}Q${control.x} ${control.y} ${end.x} ${end.y}`;
    lines.push(s("path", { d, class: "arrow", "marker-end": "url(#head)" }));
  };
  RING.forEach((state, place) => line(state, RING[(place + 1) % RING.length], 0.28));
  line("round_witness", "round_train", -0.22);
  line("round_train", "cooldown", 0.08);
  ARROWS.forEach(([from, to]) => line(from, to));

  const nodes = {};
  for (const state of Object.keys(places)) {
    const [half, { x, y }] = [width(state), places[state]];
    const box = { x: x - half, y: y - HALF.height, width: 2 * half, height: 2 * HALF.height, rx: HALF.height };
    nodes[state] = s("g", { class: "state" }, s("rect", box), s("text", { x, y: y + 4.5 }, labels[state] ?? state));
  }
  const middle = [-34, -13].map((down) => s("text", { x: CENTRE.x + 4, y: CENTRE.y + down, class: "middle" }));
  const head = s("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8z", class: "head" }));
  const title = s("title", {}, "the states of a run");
  const drawing = s("svg", { viewBox: "0 0 440 282", class: "machine", role: "img" }, title, s("defs", {}, head), lines, Object.values(nodes), middle);

  return {
    drawing,
    /** The run is in this state. */
    show(state, words) {
      for (const [name, node] of Object.entries(nodes)) node.classList.toggle("here", name === state);
      words.forEach((text, place) => (middle[place].textContent = text));
      title.textContent = `the states of a run; it is ${[states[state] ?? state, ...words].join(", ")}`;
    },
  };
}
