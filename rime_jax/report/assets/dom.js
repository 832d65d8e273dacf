"use strict";
// Elements, choices and numbers. Texts of the policy only ever become text nodes.
const UNKNOWN = "not recorded";

// element("p", {class: "note"}, "text", child, …)
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shown(value, decimals = 3, signed = false) {
  if (value === undefined) return UNKNOWN;
  if (value === null) return "none";
  if (typeof value !== "number") return String(value);
  const text = Number.isInteger(value) && !signed ? String(value) : value.toFixed(decimals);
  return (signed && value > 0 ? "+" : "") + text.replace("-", "−");
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));
  select.value = String(chosen);
}
