// The history slider. Its positions are the moments that the observer remembers; the last one is now.

import { h, say } from "./build.js";
import { date } from "./words.js";

const MOST = 4000;

/** `choose` is told the time that is looked at, or null for now. */
export function past(choose) {
  const slider = h("input", { type: "range", id: "time", min: 0, max: 0, value: 0, step: 1 });
  const label = h("output", { for: "time" });
  const back = h("button", { type: "button", class: "now" }, "Now");
  const element = h("div", { class: "past", role: "group", "aria-label": "History" }, h("label", { for: "time" }, "History"), slider, label, back);
  let times = [];
  let chosen = null;

  function show() {
    const place = chosen === null ? times.length : Math.max(0, times.findLastIndex((at) => at <= chosen));
    slider.max = times.length;
    slider.value = place;
    slider.disabled = times.length < 2;
    back.hidden = chosen === null;
    const words = chosen === null ? "now" : date(chosen);
    say(label, words);
    slider.setAttribute("aria-valuetext", words);
  }

  function pick(at) {
    chosen = at;
    show();
    choose(at);
  }

  slider.addEventListener("input", () => pick(Number(slider.value) >= times.length ? null : times[Number(slider.value)]));
  back.addEventListener("click", () => {
    pick(null);
    slider.focus();
  });
  return {
    element,
    /** All moments that are remembered. */
    know(all) {
      times = all;
      show();
    },
    /** One more, that has just been. */
    add(at) {
      if (times.length && at <= times.at(-1)) return;
      times.push(at);
      if (times.length > MOST) times = times.filter((_, place) => place % 2 === 0 || place > times.length / 2);
      show();
    },
  };
}
