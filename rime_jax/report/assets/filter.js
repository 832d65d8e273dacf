"use strict";
// Which tasks are looked for: by status and position.
const rimeFilter = (() => {
  const MALFORMED = "malformed memory";
  const chosen = { statuses: new Set(), from: 1, to: 1 };
  const at = (id) => document.getElementById(id);

  const labelsOf = (row) => [row.status ?? UNKNOWN, ...(row.malformed ? [MALFORMED] : [])];
  const isOn = (labels) => !chosen.statuses.size || labels.some((label) => chosen.statuses.has(label));
  const within = (position) => position >= chosen.from && position <= chosen.to;
  const matches = (row) => within(row.position) && isOn(labelsOf(row));

  // As far as the index tells. Without a choice a malformed memory is counted by its task's status.
  function countIn(dump) {
    const wanted = chosen.statuses.size ? [...chosen.statuses] : Object.keys(dump.counts).filter((label) => label !== MALFORMED);
    let n = 0;
    for (const label of wanted) {
      for (const [position, own] of Object.entries(dump.counts[label] || {})) {
        if (within(Number(position))) n += own;
      }
    }
    return n;
  }

  // The controls for what a run's dumps hold; `changed` is called when the reader chooses.
  function offer(dumps, changed) {
    const labels = new Map();
    let last = 1;
    for (const dump of dumps) {
      for (const [label, own] of Object.entries(dump.counts)) {
        for (const [position, n] of Object.entries(own)) {
          labels.set(label, (labels.get(label) || 0) + n);
          last = Math.max(last, Number(position));
        }
      }
    }
    chosen.statuses = new Set([...chosen.statuses].filter((label) => labels.has(label)));
    at("statuses").replaceChildren(...[...labels].sort((a, b) => b[1] - a[1]).map(([label, n]) => choice(label, n, changed)));
    const all = Array.from({ length: last }, (_, i) => [i + 1, i + 1]);
    chosen.from = Math.min(chosen.from, last);
    chosen.to = last;
    for (const end of ["from", "to"]) {
      fill(at(end), all, chosen[end]);
      at(end).onchange = () => { chosen[end] = Number(at(end).value); changed(); };
    }
  }

  function choice(label, n, changed) {
    const box = element("input", { type: "checkbox", value: label });
    box.checked = chosen.statuses.has(label);
    box.addEventListener("change", () => {
      if (box.checked) chosen.statuses.add(label);
      else chosen.statuses.delete(label);
      changed();
    });
    return element("label", {}, box, ` ${label.replaceAll("_", " ")} `, element("span", { class: "sub" }, n.toLocaleString("en")));
  }

  return { matches, countIn, offer };
})();
