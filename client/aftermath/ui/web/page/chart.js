// A chart of lines by tier over the steps of a run: drawn, pointed at, walked through by keys, its lines switched off
// and on by the legend.

import { h, s, say } from "./build.js";
import { count } from "./words.js";

const SIZE = { width: 1200, left: 52, right: 14, top: 14, bottom: 34 };
const MOST_EPOCHS = 40;

/** Round numbers between two, about as many as asked for. */
function ticks(low, high, about) {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough) ?? rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

/** `shown` writes a value, for a scale of some range; `zero`: the scale begins at 0. Gives the element, and what draws new lines into it. */
export function chart(title, { shown, zero = false, height: tallest = 220, nothing }) {
  const legend = h("div", { class: "legend", role: "group", "aria-label": `${title}: tiers shown` });
  const tip = h("div", { class: "tip", hidden: true });
  const drawing = s("svg", { class: "chart", role: "img", tabindex: 0 });
  const spoken = h("p", { class: "spoken", "aria-live": "polite" });
  const empty = h("p", { class: "nothing" }, nothing);
  const element = h("div", { class: "plot" }, legend, h("div", { class: "frame" }, drawing, tip), empty, spoken);
  const off = new Set();
  let [drawn, scales, pointed] = [{ lines: {}, epochs: {}, marks: [], until: null }, null, null];
  const cross = s("g", { class: "cross" });

  function visible() {
    const { lines, until } = drawn;
    const kept = Object.entries(lines).map(([tier, points]) => {
      const some = points.filter(([step, value]) => value !== null && (until === null || step <= until));
      return [tier, some];
    });
    return kept.filter(([, points]) => points.length);
  }

  function draw(given) {
    drawn = { ...drawn, ...given };
    const all = visible();
    const some = all.filter(([tier]) => !off.has(tier));
    empty.hidden = all.length > 0;
    legend.hidden = drawing.parentElement.hidden = !all.length;
    drawLegend(all);
    drawing.replaceChildren();
    scales = null;
    if (!all.length) return;
    const width = Math.max(280, Math.min(SIZE.width, drawing.parentElement.clientWidth || SIZE.width));
    const height = Math.min(tallest, Math.round(width * 0.75));
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = some.flatMap(([, points]) => points);
    const steps = values.map(([step]) => step);
    const heights = values.map(([, value]) => value);
    const [first, last] = [Math.min(...steps, Infinity), Math.max(...steps, -Infinity)];
    if (!values.length) return;
    const [lowest, highest] = [zero ? 0 : Math.min(...heights), Math.max(...heights)];
    const margin = (highest - lowest) * 0.06 || Math.abs(highest) * 0.1 || 1;
    const [low, high] = [zero ? 0 : lowest - margin, highest + margin];
    const [from, to] = [first, last > first ? last : first + 1];
    const named = ticks(low, high, 5).map((value) => [value, shown(value, high - low)]);
    const left = Math.max(SIZE.left, 12 + 7 * Math.max(0, ...named.map(([, text]) => text.length)));
    const x = (step) => left + ((step - from) / (to - from)) * (width - left - SIZE.right);
    const y = (value) => height - SIZE.bottom - ((value - low) / (high - low)) * (height - SIZE.top - SIZE.bottom);
    scales = { x, y, some, width, height, all: [...new Set(steps)].sort((a, b) => a - b) };
    const [right, floor] = [width - SIZE.right, height - SIZE.bottom];
    for (const [value, text] of named) {
      drawing.append(s("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }));
      drawing.append(s("text", { x: left - 8, y: y(value) + 4, class: "tick end" }, text));
    }
    for (const step of ticks(from, to, width / 90).filter(Number.isInteger)) {
      drawing.append(s("text", { x: x(step), y: floor + 25, class: "tick" }, count(step)));
    }
    const epochs = Object.entries(drawn.epochs).filter(([, step]) => step > from && step <= last);
    for (const [epoch, step] of epochs.slice(-MOST_EPOCHS)) {
      const line = s("line", { x1: x(step), x2: x(step), y1: SIZE.top, y2: floor, class: "epoch" });
      drawing.append(s("g", {}, s("title", {}, `epoch ${epoch} begins at step ${step}`), line));
    }
    for (const [tier, points] of some) {
      const d = points.map(([step, value], place) => `${place ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      drawing.append(s("path", { d, class: `line tier-${tier}` }));
      if (points.length === 1) drawing.append(s("circle", { cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: `point tier-${tier}` }));
    }
    for (const [step, text] of drawn.marks.filter(([at]) => at >= from && at <= last)) {
      const at = x(step);
      drawing.append(s("path", { d: `M${at} ${floor}l-5 8h10z`, class: "mark" }, s("title", {}, `step ${step}: ${text}`)));
    }
    drawing.append(cross);
    const newest = some.map(([tier, points]) => `tier ${tier} ${shown(points.at(-1)[1], high - low)}`);
    drawing.setAttribute("aria-label", `${title}, steps ${count(first)} to ${count(last)}; newest: ${newest.join(", ")}. Arrow keys walk through the steps.`);
    point(pointed === null ? null : nearest(pointed));
  }

  function drawLegend(all) {
    const tiers = all.map(([tier]) => tier);
    const there = [...legend.children].map((button) => button.dataset.tier);
    if (tiers.join() !== there.join()) {
      legend.replaceChildren(
        ...tiers.map((tier) => {
          const toggle = () => {
            if (off.has(tier)) off.delete(tier);
            else off.add(tier);
            draw({});
          };
          const label = [h("span", { class: `swatch tier-${tier}`, "aria-hidden": "true" }), h("span", {}, `tier ${tier}`), h("b", {})];
          return h("button", { type: "button", "data-tier": tier, onclick: toggle }, label);
        }),
      );
    }
    all.forEach(([tier, points], place) => {
      const button = legend.children[place];
      button.setAttribute("aria-pressed", String(!off.has(tier)));
      say(button.lastChild, shown(points.at(-1)[1], 1));
    });
  }

  function nearest(step) {
    return scales.all.reduce((best, at) => (Math.abs(at - step) < Math.abs(best - step) ? at : best), scales.all[0]);
  }

  /** Point at a step, or at none. */
  function point(step) {
    pointed = step;
    cross.replaceChildren();
    tip.hidden = step === null || scales === null;
    if (tip.hidden) return;
    const { x, y, some, width, height } = scales;
    cross.append(s("line", { x1: x(step), x2: x(step), y1: SIZE.top, y2: height - SIZE.bottom, class: "at" }));
    const rows = [];
    for (const [tier, points] of some) {
      const before = points.filter(([at]) => at <= step).at(-1);
      if (!before) continue;
      cross.append(s("circle", { cx: x(before[0]), cy: y(before[1]), r: 4, class: `point tier-${tier}` }));
      const swatch = h("span", { class: `swatch tier-${tier}`, "aria-hidden": "true" });
      rows.push(h("li", {}, swatch, `tier ${tier}`, h("b", {}, shown(before[1], 0))));
    }
    const what = drawn.marks.filter(([at]) => at === step).map(([, text]) => h("li", { class: "what" }, text));
    tip.replaceChildren(h("strong", {}, `step ${count(step)}`), h("ul", {}, rows, what.slice(0, 4)));
    const share = x(step) / width;
    tip.style.left = share > 0.6 ? "auto" : `calc(${share * 100}% + 12px)`;
    tip.style.right = share > 0.6 ? `calc(${(1 - share) * 100}% + 12px)` : "auto";
  }

  drawing.addEventListener("pointermove", (event) => {
    if (!scales) return;
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * scales.width;
    point(scales.all.reduce((best, step) => (Math.abs(scales.x(step) - at) < Math.abs(scales.x(best) - at) ? step : best), scales.all[0]));
  });
  drawing.addEventListener("pointerleave", () => point(null));
  drawing.addEventListener("blur", () => point(null));
  drawing.addEventListener("keydown", (event) => {
    if (!scales) return;
    const steps = scales.all;
    const place = pointed === null ? steps.length : steps.indexOf(nearest(pointed));
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: steps.length - 1, PageUp: place - 10, PageDown: place + 10 };
    if (event.key === "Escape") point(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(steps[Math.max(0, Math.min(steps.length - 1, moves[event.key]))]);
    say(spoken, [...tip.querySelectorAll("strong, li")].map((part) => part.textContent).join(", "));
  });
  let wide = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - wide) < 1) return;
    wide = entry.contentRect.width;
    draw({});
  }).observe(element);
  return { element, draw };
}
