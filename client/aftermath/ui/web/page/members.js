// Who is in a run, as a table whose rows are cards on a narrow window; and who holds which level of the model.

import { h, say } from "./build.js";
import { brief, bytes, count, counted, short } from "./words.js";

const COLUMNS = [
  ["seat", (member) => (member.seat === undefined ? "–" : String(member.seat)), "number"],
  ["wallet", null, ""],
  ["tier", null, ""],
  ["standing", null, ""],
  ["last seen", (member) => member.seen || "–", ""],
  ["weight", (member) => count(member.weight), "number"],
  ["points", (member) => count(member.points) + (member.slashed ? ` (−${count(member.slashed)})` : ""), "number"],
  ["loss", (member) => (member.figures?.loss === undefined ? "–" : member.figures.loss.toFixed(3)), "number"],
  ["tokens/s", (member) => brief(member.figures?.tokens_per_second), "number"],
  ["sent", (member) => sent(member.figures ?? {}), "number"],
];

function sent({ sent: all, bytes_per_second: rate }) {
  return all === undefined && rate !== undefined ? `${bytes(rate)}/s` : bytes(all);
}

function kind(member) {
  if (member.takes_part) return "in";
  return /dropped|ejected|barred|failed|removed/.test(member.standing) ? "out" : "away";
}

export function membersTable() {
  const heads = COLUMNS.map(([name, , align]) => h("th", { scope: "col", class: align }, name));
  const body = h("tbody");
  const table = h("table", { class: "members" }, h("thead", {}, h("tr", {}, heads)), body);
  const nothing = h("p", { class: "nothing" }, "No member has joined yet.");
  const rows = new Map();

  function row() {
    const parts = {
      wallet: h("code"),
      tier: h("span", {}),
      swatch: h("span", { class: "swatch", "aria-hidden": "true" }),
      dot: h("span", { class: "dot", "aria-hidden": "true" }),
      standing: h("span", {}),
      cells: [],
    };
    const own = { wallet: [parts.wallet], tier: [parts.swatch, parts.tier], standing: [parts.dot, parts.standing] };
    for (const [name, , align] of COLUMNS) {
      parts.cells.push(h("td", { class: `${align} ${name.replace(/\W/g, "-")}`, "data-label": name }, own[name] ?? []));
    }
    return { ...parts, item: h("tr", {}, parts.cells) };
  }

  function show(members) {
    nothing.hidden = members.length > 0;
    table.hidden = !members.length;
    const keys = members.map((member) => `${member.seat ?? ""}/${member.wallet}`);
    for (const key of [...rows.keys()].filter((known) => !keys.includes(known))) {
      rows.get(key).item.remove();
      rows.delete(key);
    }
    members.forEach((member, place) => {
      if (!rows.has(keys[place])) rows.set(keys[place], row());
      const parts = rows.get(keys[place]);
      parts.item.dataset.kind = kind(member);
      say(parts.wallet, short(member.wallet));
      parts.wallet.title = member.wallet;
      say(parts.tier, String(member.tier));
      parts.swatch.className = `swatch tier-${member.tier}`;
      say(parts.standing, member.standing + (member.witness ? ", witness" : ""));
      COLUMNS.forEach(([, text], column) => text && say(parts.cells[column], text(member)));
      if (body.children[place] !== parts.item) body.insertBefore(parts.item, body.children[place] ?? null);
    });
  }

  return { element: h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Members" }, table, nothing), show };
}

export function levelsList() {
  const list = h("ul", { class: "levels" });
  let last = "";

  function show(levels, members) {
    const now = JSON.stringify([levels, members.map((member) => [member.seat, member.tier])]);
    if (now === last) return;
    last = now;
    const tiers = new Map(members.map((member) => [member.seat, member.tier]));
    list.replaceChildren(
      ...levels.map(({ level, holders, attested, lost }) => {
        const chips = holders.slice(0, 64).map((seat) => h("span", { class: `chip tier-${tiers.get(seat)}` }, String(seat)));
        if (holders.length > 64) chips.push(`and ${count(holders.length - 64)} more`);
        const fact = lost ? "lost: the run falls back to an older one" : attested ? "hash attested" : "";
        const words = holders.length ? `${counted(holders.length, "member")}` : "nobody";
        return h("li", {}, h("b", {}, `level ${level}`), h("span", { class: "how-many" }, words), h("span", { class: "chips" }, chips), h("span", { class: lost ? "fact bad" : "fact" }, fact));
      }),
    );
  }

  return { element: list, show };
}
