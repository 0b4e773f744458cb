// Which page this is: that of a run, or the list of all.

import { h } from "./build.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";

const content = document.getElementById("content");
const link = document.getElementById("link");

/** Say how the page is connected: `live`, `stale`, `past` or `lost`, and in words. */
function status(kind, words) {
  if (link.dataset.kind === kind && link.textContent === words) return;
  link.dataset.kind = kind;
  link.replaceChildren(h("span", { class: "dot", "aria-hidden": "true" }), words);
}

const named = /^\/run\/([^/]+)$/.exec(location.pathname);
if (named) runPage(content, decodeURIComponent(named[1]), status);
else runsPage(content, status);
