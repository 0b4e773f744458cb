// The page of one run: now, as the socket tells it, or at a moment of the past.

import { card, h, say } from "./build.js";
import { chart } from "./chart.js";
import { got, live } from "./live.js";
import { machine } from "./machine.js";
import { levelsList, membersTable } from "./members.js";
import { past } from "./past.js";
import { brief, bytes, count, counted, date, sol, span } from "./words.js";

const TICK = 500;

function sum(values) {
  return values.reduce((all, one) => all + one, 0);
}

function tile(name) {
  const value = h("b", {}, "–");
  const more = h("small", {});
  return { element: h("div", { class: "tile" }, h("span", {}, name), value, more), value, more };
}

export async function runPage(content, runId, status) {
  document.title = `${runId} · aftermath`;
  const api = `/api/runs/${encodeURIComponent(runId)}`;
  const title = h("h1", {}, runId);
  const id = h("p", { class: "id", hidden: true }, runId);
  const description = h("p", { class: "description" });
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const tiles = { steps: tile("Steps"), members: tile("Members"), speed: tile("Tokens per second"), bytes: tile("Sent between members"), costs: tile("Transactions") };
  const bar = h("progress", { max: 1, value: 0, "aria-label": "steps trained" });
  tiles.steps.element.append(bar);
  const waits = h("ul", { class: "waits" });
  const deadline = h("p", { class: "deadline" });
  const loss = chart("Loss by tier", { height: 340, shown: (value, range) => value.toFixed(range > 0 && range < 0.05 ? 4 : range < 0.5 ? 3 : 2), nothing: "No loss yet. It comes from attestations and events." });
  const sent = chart("Bytes sent by tier", { shown: bytes, zero: true, nothing: "No traffic yet. A lone member sends nothing. The bytes come from members' events (observe --events)." });
  const table = membersTable();
  const levels = levelsList();
  const levelsCard = card("Who holds which level", "levels-card", levels.element);
  let states = {};
  let ring = null;
  let [now, heard, shown, curves, connected, reason] = [null, 0, null, null, false, ""];
  const slider = past((at) => look(at));
  const stateCard = card("State", "state-card");
  const facts = h("div", { class: "facts nothing-known" }, h("h3", {}, "Waits for"), waits, deadline);

  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "/" }, "All runs")),
    h("div", { class: "title" }, title, id),
    description,
    trouble,
    h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    h("div", { class: "columns" }, stateCard, card("Loss by tier", "loss-card", loss.element)),
    card("Members", "members-card", table.element),
    h("div", { class: "columns" }, levelsCard, card("Bytes sent by tier", "sent-card", sent.element)),
    slider.element,
  );

  // --- where from ---------------------------------------------------------------------------------------------------

  let asked = 0;
  async function look(at) {
    const mine = ++asked;
    if (at === null) shown = null;
    else {
      try {
        const moment = await got(`${api}/at/${at}`);
        if (mine !== asked) return;
        shown = moment;
      } catch (error) {
        reason = error.message;
      }
    }
    draw();
    drawCurves();
  }

  function hear(message) {
    if (message.states && !ring) {
      states = message.states;
      ring = machine(states);
      stateCard.append(h("div", { class: "where" }, ring.drawing, facts));
    }
    if (message.past) slider.know(message.past);
    if (message.now) {
      const before = now?.moment;
      [now, heard] = [message.now, performance.now()];
      if (now.moment && before && changed(before, now.moment)) slider.add(now.moment.at);
      draw();
    }
    if (message.curves) {
      curves = message.curves;
      drawCurves();
    }
  }

  function changed(before, after) {
    return ["state", "epoch", "round", "step"].some((name) => before[name] !== after[name]) || before.members?.length !== after.members?.length;
  }

  // --- what is shown ------------------------------------------------------------------------------------------------

  function draw() {
    const moment = shown ?? now?.moment;
    link();
    trouble.hidden = !now?.trouble;
    say(trouble, now?.trouble ? `Not followed at the moment: ${now.trouble}` : "");
    if (!moment || !ring) return;
    document.body.classList.toggle("looking-back", shown !== null);
    document.title = `${moment.name || runId} · aftermath`;
    say(title, moment.name || now?.moment?.name || runId);
    id.hidden = title.textContent === runId;
    say(description, moment.description ?? "");
    const members = moment.members ?? [];
    const here = members.filter((member) => member.takes_part).length;
    say(tiles.steps.value, moment.total_steps ? `${count(moment.step)} of ${count(moment.total_steps)}` : count(moment.step));
    say(tiles.steps.more, moment.left === undefined ? "" : `about ${span(moment.left)} left`);
    bar.value = moment.total_steps ? moment.step / moment.total_steps : 0;
    say(tiles.members.value, count(here));
    say(tiles.members.more, `${counted(members.length, "seat")} in use`);
    const told = members.filter((member) => member.takes_part).map((member) => member.figures?.tokens_per_second ?? 0);
    say(tiles.speed.value, brief(moment.tokens_per_second));
    say(tiles.speed.more, sum(told) ? `${brief(sum(told))} tokens/s while training` : "at the pace of this epoch");
    const figures = (name) => members.map((member) => member.figures?.[name]).filter((one) => one !== undefined);
    const [traffic, rates] = [figures("sent"), figures("bytes_per_second")];
    if (traffic.length) say(tiles.bytes.value, bytes(sum(traffic)));
    else say(tiles.bytes.value, rates.length ? `${bytes(sum(rates))}/s` : "–");
    say(tiles.bytes.more, traffic.length ? `by ${counted(traffic.length, "member")} since their start` : "as attested on chain");
    if (now) {
      const { transactions, lamports, complete } = now.costs;
      say(tiles.costs.value, transactions ? count(transactions) + (complete ? "" : "+") : "–");
      say(tiles.costs.more, `${sol(lamports)} in fees${shown === null ? "" : ", until now"}`);
    }
    table.show(members);
    levelsCard.hidden = !(moment.levels ?? []).length;
    levels.show(moment.levels ?? [], members);
    const list = moment.waits ?? [];
    if ([...waits.children].map((item) => item.textContent).join("\n") !== list.join("\n")) {
      waits.replaceChildren(...list.map((text) => h("li", {}, text)));
    }
    facts.classList.toggle("nothing-known", !list.length);
    tick();
  }

  /** What changes as time passes, though nobody tells. */
  function tick() {
    const moment = shown ?? now?.moment;
    if (!moment || !ring) return;
    const silent = shown === null && Number.isFinite(now?.silent);
    const passed = shown === null && !silent ? (performance.now() - heard) / 1000 : 0;
    const where = moment.round === undefined ? `epoch ${count(moment.epoch)}` : `epoch ${count(moment.epoch)}, round ${count(moment.round)}`;
    const lines = [where, moment.since === undefined ? "" : `for ${span(moment.since + passed)}`];
    ring.show(moment.state, lines);
    const left = moment.deadline === undefined ? null : moment.deadline - passed;
    say(deadline, silent ? "No answer. This is the last known state." : left === null ? "No deadline." : left > 0 ? `The deadline is in ${span(left)}.` : `The deadline passed ${span(-left)} ago.`);
    link();
  }

  function drawCurves() {
    if (!curves) return;
    const until = shown === null ? null : shown.step;
    loss.draw({ lines: curves.loss, epochs: curves.epochs, marks: curves.marks, until });
    sent.draw({ lines: curves.sent, epochs: {}, marks: [], until });
  }

  function link() {
    const passed = (performance.now() - heard) / 1000;
    if (!connected) status("lost", reason || "not connected to the observer");
    else if (shown !== null) status("past", `looking back at ${date(shown.at)}`);
    else if (now?.silent !== null && now?.silent !== undefined) status("stale", `the chain has not answered for ${span(now.silent + passed)}`);
    else if (now?.trouble) status("stale", !now.moment ? "nothing is known yet" : now.moment.source === "events" ? "from members' events" : "as last seen");
    else status("live", "live");
  }

  setInterval(tick, TICK);
  try {
    hear(await got(api));
  } catch (error) {
    reason = error.message;
    status("lost", reason);
    trouble.hidden = false;
    say(trouble, reason);
  }
  let lost = false;
  live(`/live/${encodeURIComponent(runId)}`, hear, async (is) => {
    [connected, reason] = [is, ""];
    if (is && (lost || !ring)) hear(await got(api).catch(() => ({}))); // another observer may remember another past
    lost ||= !is;
    link();
  });
}
