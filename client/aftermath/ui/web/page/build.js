// Makes elements. Text only ever becomes text: nothing that a run says of itself is read as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** An element of HTML; strings among its children are text. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an element's text, if it is another one: what is read aloud or selected stays as it is. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A card of the page with a heading. */
export function card(title, name, ...children) {
  const heading = h("h2", { id: `${name}-title` }, title);
  return h("section", { class: `card ${name}`, "aria-labelledby": `${name}-title` }, heading, ...children);
}
