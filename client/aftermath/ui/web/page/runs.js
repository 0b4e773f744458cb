// The list of runs.

import { h, say } from "./build.js";
import { got, live } from "./live.js";
import { count, counted } from "./words.js";

export async function runsPage(content, status) {
  document.title = "Runs · aftermath";
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const list = h("ul", { class: "runs" });
  const nothing = h("p", { class: "nothing", hidden: true });
  content.append(h("h1", {}, "Runs"), trouble, nothing, list);
  const rows = new Map();
  let states = {};

  function show({ runs, trouble: why, more }) {
    trouble.hidden = !why;
    say(trouble, why ? `The chain does not answer: ${why}` : "");
    nothing.hidden = runs.length > 0;
    say(nothing, why ? "Nothing is known of any run yet." : "There is no run on this cluster yet. Create one with aftermath-solana create-run.");
    for (const name of [...rows.keys()]) {
      if (!runs.some((run) => run.run_id === name)) {
        rows.get(name).item.remove();
        rows.delete(name);
      }
    }
    for (const run of runs) {
      if (!rows.has(run.run_id)) rows.set(run.run_id, row(run));
      fill(rows.get(run.run_id), run);
    }
    list.append(...runs.map((run) => rows.get(run.run_id).item).filter((item, place) => list.children[place] !== item));
    const some = counted(runs.length + more, "run");
    status(why ? "stale" : "live", why ? (runs.length ? `${some}, as last seen` : "the chain does not answer") : some);
  }

  function row(run) {
    const parts = {
      name: h("strong", {}),
      id: h("span", { class: "id" }),
      state: h("span", { class: "pill" }),
      where: h("span", { class: "where" }),
      bar: h("progress", { max: 1, value: 0, "aria-label": "steps trained" }),
    };
    const lines = [h("span", { class: "names" }, parts.name, parts.id), parts.state, parts.where, parts.bar];
    const anchor = h("a", { href: `/run/${encodeURIComponent(run.run_id)}` }, lines);
    return { ...parts, item: h("li", {}, anchor) };
  }

  function fill(parts, run) {
    say(parts.name, run.name || run.run_id);
    say(parts.id, run.name ? run.run_id : "");
    parts.state.dataset.state = run.state;
    say(parts.state, run.on_chain ? states[run.state] ?? run.state : "from events");
    const steps = run.total_steps ? `step ${count(run.step)} of ${count(run.total_steps)}` : "not configured";
    const where = [`epoch ${count(run.epoch)}`, steps, counted(run.members, "member"), counted(run.tiers, "tier")];
    say(parts.where, run.on_chain ? where.join(" · ") : "not on this cluster; known from events");
    parts.bar.hidden = !run.on_chain;
    parts.bar.value = run.total_steps ? run.step / run.total_steps : 0;
  }

  status("lost", "connecting");
  live(
    "/live",
    (message) => show(message.list),
    (connected) => connected || status("lost", "not connected to the observer"),
  );
  try {
    const first = await got("/api/runs");
    states = first.states;
    show(first.list);
  } catch (error) {
    status("lost", error.message);
  }
}
