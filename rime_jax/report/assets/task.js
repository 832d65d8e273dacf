"use strict";
// One task of a rollout as an article. Texts of the policy only ever become text nodes.
const CRITERIA = ["new discoveries", "corrected beliefs", "leads for later", "non-redundant"];

// A status as a class name of the style sheet.
function statusKind(row) {
  if (!row) return "absent";
  if (row.status === "solved") return "solved";
  if (row.reward === undefined) return "lost";
  return row.status === "failed" ? "failed" : "cut";
}

function taskArticle(dump, row, id, memoryView) {
  const article = element("article", { id, tabindex: "-1", class: "task", "aria-label": `Task ${row.position}: ${row.status ?? UNKNOWN}` });
  article.append(element("header", {},
    element("h3", {}, `Task ${row.position}`),
    element("span", { class: `status ${statusKind(row)}` }, (row.status ?? UNKNOWN).replaceAll("_", " ")),
    element("span", { class: "sub", dir: "auto" }, String(row.task ?? ""))));
  if (row.reward === undefined) {
    article.append(element("p", { class: "note" },
      "Lost to a failure of the infrastructure: not trained, never counted as reward 0."));
    return article;
  }
  article.append(numbers(row), memory(dump, row, memoryView), conversation(dump, row));
  if (row.metrics && Object.keys(row.metrics).length) article.append(measured(row));
  return article;
}

// ------------------------------------------------------------------ numbers
function numbers(row) {
  const judged = Array.isArray(row.criteria);
  const score = judged ? row.criteria.reduce((a, b) => a + b, 0) / 8 : row.criteria;
  const actor = element("dl", { class: "numbers" },
    ...pair("reward r", shown(row.reward)),
    ...pair("performance", shown(row.performance)),
    ...pair("exploration e", row.judge_status ? String(row.judge_status).replaceAll("_", " ") : shown(score)),
    ...pair("advantage", advantage(row.act_advantage, row.act_weight)),
    ...formatErrors(row));
  const writer = element("dl", { class: "numbers" },
    ...pair("improvement", shown(row.improvement, 3, true)),
    ...pair("reward w", shown(row.writer_reward, 3, true)),
    ...pair("memory", row.malformed ? `malformed: ${row.malformed}` : row.malformed === null ? "well-formed" : UNKNOWN),
    ...pair("advantage", advantage(row.write_advantage, row.write_weight)));
  return element("div", { class: "roles" },
    element("section", { "aria-label": "Actor" }, element("h4", {}, "ACT"), actor),
    element("section", { "aria-label": "Writer" }, element("h4", {}, "WRITE"), writer),
    element("section", { "aria-label": "Judge" }, element("h4", {}, "Judge"), criteria(row)));
}

// Replies without an action, by reason; nothing where there were none.
function formatErrors(row) {
  return Object.entries(row.format_errors || {}).flatMap(
    ([reason, n]) => pair(reason.replaceAll("_", " "), `${n} ×`));
}

function pair(name, value) {
  return [element("dt", {}, name), element("dd", {}, value)];
}

// The number and a bar from the middle, ±3 wide.
function advantage(value, weight) {
  const box = element("span", { class: "advantage" }, shown(value, 2, true));
  if (typeof value === "number") {
    const bar = element("i", { class: value < 0 ? "bar negative" : "bar" });
    bar.style.setProperty("--size", Math.min(Math.abs(value) / 3, 1));
    box.append(bar);
  }
  if (weight === 0) box.append(element("span", { class: "sub" }, "not trained"));
  return box;
}

function criteria(row) {
  if (!Array.isArray(row.criteria)) {
    return element("p", { class: "note" }, row.criteria === undefined ? UNKNOWN : "no verdict");
  }
  return element("dl", { class: "criteria" }, ...CRITERIA.flatMap((name, i) => {
    const points = row.criteria[i];
    const pips = element("dd", { "aria-label": `${points} of 2` },
      ...[1, 2].map((n) => element("i", { class: points >= n ? "pip on" : "pip" })), ` ${points}`);
    return [element("dt", {}, name), pips];
  }));
}

function measured(row) {
  const list = element("dl", { class: "numbers" }, ...Object.entries(row.metrics).flatMap(
    ([name, value]) => pair(name.replaceAll("_", " "), shown(value))));
  const title = `Measured by the environment · ${Object.keys(row.metrics).length}`;
  return element("details", {}, element("summary", {}, title), list);
}

// ------------------------------------------------------------------ texts
function joinedText(text) {
  return Array.isArray(text) ? `${text[0]} […] ${text[2]}` : text;
}

// A text of the policy, whole or with what was left out said in the middle.
function textBlock(text) {
  const block = element("div", { class: "text", dir: "auto" });
  if (!Array.isArray(text)) block.append(text || element("span", { class: "none" }, "(empty)"));
  else block.append(text[0], element("span", { class: "cut" }, `${text[1].toLocaleString("en")} characters left out; samples/ has them`), text[2]);
  return block;
}

function memory(dump, row, view) {
  const box = element("section", { class: "memory", "aria-label": "Memory" }, element("h4", {}, "Memory"));
  if (row.memory_after === undefined || row.memory_before === undefined) {
    box.append(element("p", { class: "note" }, UNKNOWN));
    return box;
  }
  const before = dump.text(row.memory_before), after = dump.text(row.memory_after);
  if (view !== "differences") box.append(textBlock(view === "before" ? before : after));
  else if (row.memory_before === row.memory_after) {
    box.append(element("p", { class: "note" }, "unchanged"), textBlock(after));
  } else box.append(differences(joinedText(before), joinedText(after)));
  return box;
}

function differences(before, after) {
  const tags = { same: "span", removed: "del", added: "ins" };
  return element("div", { class: "text", dir: "auto" },
    ...wordDiff(before, after).map(([kind, text]) => element(tags[kind], {}, text)));
}

// Folded, and only made when it is opened.
function conversation(dump, row) {
  if (!Array.isArray(row.transcript)) return element("p", { class: "note" }, `Conversation: ${UNKNOWN}`);
  const turns = shown(row.turns) === UNKNOWN ? "" : ` · ${row.turns} turns`;
  const details = element("details", { class: "conversation" },
    element("summary", {}, `Conversation · ${row.transcript.length} messages${turns}`));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(...row.transcript.map(([speaker, text]) => element("div", { class: `message ${/^[a-z]+$/.test(speaker) ? speaker : ""}` },
        element("span", { class: "speaker" }, speaker), textBlock(dump.text(text)))));
    }
  });
  return details;
}
