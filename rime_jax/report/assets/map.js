"use strict";
// The map of a dump: a table for each stream, in it a row a sibling and a column a task.

// `choose(group, sibling, position)` is called for the task that is pressed.
function taskMap(streams, dump, choose) {
  return streams.map((stream) => {
    const positions = dump.positions(stream.group);
    const head = element("tr", {}, element("th", { scope: "col" }, element("span", { class: "hidden" }, "sibling")),
      ...positions.map((p) => element("th", { scope: "col" }, String(p))));
    const rows = dump.siblings(stream.group).map((sibling) => element("tr", {},
      element("th", { scope: "row" }, String(sibling + 1)),
      ...positions.map((position) => element("td", {}, taskCell(dump, stream.group, sibling, position, choose)))));
    return element("section", {}, element("h3", { dir: "auto" }, stream.id),
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
  });
}

function taskCell(dump, group, sibling, position, choose) {
  const row = dump.row(group, sibling, position);
  if (!row) return element("span", { class: "cell absent" });
  const score = row.performance ?? row.reward;
  const said = [`sibling ${sibling + 1}, task ${position}: ${row.status ?? UNKNOWN}`, ...(score === undefined ? [] : [shown(score, 2)]),
    ...(row.malformed ? ["malformed memory"] : [])].join(", ");
  const classes = ["cell", statusKind(row), ...(row.malformed ? ["malformed"] : []), ...(rimeFilter.matches(row) ? [] : ["dim"])];
  const button = element("button", { type: "button", tabindex: "-1", title: said, "aria-label": said,
    class: classes.join(" "), "data-place": `${group}/${sibling}/${position}` }, typeof score === "number" ? brief(score) : "·");
  button.addEventListener("click", () => choose(group, sibling, position));
  return button;
}

// .83, 1, 12: three characters at most, so that the map stays narrow.
function brief(score) {
  if (Math.abs(score) >= 9.95) return String(Math.round(score)).replace("-", "−");
  const text = Math.abs(score) < 1 ? score.toFixed(2).replace("0.", ".") : score.toFixed(1);
  return text.replace(/\.0$/, "").replace(/^-?\.00$/, "0").replace("-", "−");
}

// The chosen task in the map is the one that Tab reaches.
function markInMap(map, { group, sibling, task }) {
  for (const old of map.querySelectorAll("[aria-current]")) {
    old.removeAttribute("aria-current");
    old.tabIndex = -1;
  }
  const now = map.querySelector(`[data-place="${group}/${sibling}/${task}"]`) || map.querySelector("[data-place]");
  if (now) {
    now.setAttribute("aria-current", "true");
    now.tabIndex = 0;
  }
}
