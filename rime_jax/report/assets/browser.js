"use strict";
// The browser of rollouts: what is shown follows from `state`, which is also the page's fragment.
(() => {
  const at = (id) => document.getElementById(id);
  const VIEWS = ["differences", "before", "after"];
  const state = { run: 0, step: null, group: null, sibling: 0, task: 1, other: null, otherSibling: null, view: "differences" };
  let current = null;  // the loaded dump
  let drawing = 0;     // so that a slow load cannot overtake a later one

  const dumpsOf = (run) => rimeStore.runs()[run].dumps;
  const dumpAt = (run, step) => dumpsOf(run).find((dump) => dump.step === step);

  document.addEventListener("indexready", start);

  function start() {
    readFragment();
    const runs = rimeStore.runs();
    fill(at("run"), runs.map((run, i) => [i, run.name]), state.run);
    fill(at("other"), [["", "nothing"], ...runs.map((run, i) => [i, run.name])], state.other ?? "");
    listen();
    showRun();
  }

  // ---------------------------------------------------------------- what is chosen
  function readFragment() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (name, otherwise) => (/^\d+$/.test(given.get(name) || "") ? Number(given.get(name)) : otherwise);
    state.run = number("run", 0) < rimeStore.runs().length ? number("run", 0) : 0;
    state.step = number("step", null);
    state.group = number("group", null);
    state.sibling = number("sibling", 0);
    state.task = number("task", 1);
    const other = number("beside", null);
    state.other = other !== null && other < rimeStore.runs().length ? other : null;
    state.otherSibling = number("besideSibling", null);
  }

  function writeFragment() {
    const given = new URLSearchParams({ run: state.run, step: state.step, group: state.group, sibling: state.sibling, task: state.task });
    if (state.other !== null) {
      given.set("beside", state.other);
      if (state.otherSibling !== null) given.set("besideSibling", state.otherSibling);
    }
    history.replaceState(null, "", `#${given}`);
  }

  // ---------------------------------------------------------------- run, dump, rollout
  function showRun() {
    const dumps = dumpsOf(state.run);
    document.title = `${rimeStore.runs()[state.run].name} · rollouts`;
    if (!dumps.length) {
      at("map").replaceChildren();
      at("summary").textContent = "";
      at("dump").replaceChildren();
      return say("This run dumped no rollouts (track.samples_every).");
    }
    if (!dumpAt(state.run, state.step)) state.step = dumps[dumps.length - 1].step;
    fill(at("dump"), dumps.map((dump) => [dump.step, dump.step]), state.step);
    rimeFilter.offer(dumps, refilter);
    return showDump();
  }

  async function showDump() {
    const dump = dumpAt(state.run, state.step), turn = ++drawing;
    at("dump").value = String(state.step);
    at("main").setAttribute("aria-busy", "true");
    try {
      const loaded = await rimeStore.load(state.run, dump);
      if (turn !== drawing) return;
      current = loaded;
    } catch (error) {
      if (turn === drawing) say(`The rollouts of iteration ${state.step} cannot be shown: ${error.message}`);
      return;
    }
    const groups = dump.streams.map((stream) => stream.group);
    if (!groups.length) return void say("This dump has no rollouts.");
    if (!groups.includes(state.group)) state.group = groups[0];
    const siblings = current.siblings(state.group);
    if (!siblings.includes(state.sibling)) state.sibling = siblings[0];
    showSummary(dump);
    showMap(dump);
    tellMatches();
    await showRollout();
  }

  function showSummary(dump) {
    const parts = [["reward", dump.reward], ["exploration", dump.exploration], ["improvement", dump.improvement]];
    at("summary").textContent = [`Iteration ${dump.step}`, ...parts.filter(([, v]) => v !== null).map(
      ([name, v]) => `${name} ${shown(v)}`)].join(" · ");
  }

  function say(text) {
    at("rollout").replaceChildren(element("p", { class: "note" }, text));
    at("main").removeAttribute("aria-busy");
  }

  async function showRollout() {
    const turn = drawing, stream = dumpAt(state.run, state.step).streams.find((s) => s.group === state.group);
    const columns = [{ run: state.run, dump: current, stream, group: state.group, sibling: state.sibling, step: state.step }];
    at("other-sibling-label").hidden = state.other === null;
    if (state.other !== null) {
      const counterpart = await besideIt(stream);
      if (turn !== drawing) return;
      columns.push(counterpart);
    }
    const grid = element("div", { class: columns.length > 1 ? "columns two" : "columns" });
    grid.append(...columns.map(columnHead));
    const positions = [...new Set(columns.flatMap((c) => (c.dump ? c.dump.positions(c.group) : [])))].sort((a, b) => a - b);
    for (const position of positions) {
      columns.forEach((column, i) => {
        const row = column.dump && column.dump.row(column.group, column.sibling, position);
        grid.append(row ? taskArticle(column.dump, row, i ? `beside-${position}` : `task-${position}`, state.view)
          : element("article", { class: "task absent" }, element("p", { class: "note" }, `Task ${position}: not here`)));
      });
    }
    at("rollout").replaceChildren(viewChoice(), grid);
    at("main").removeAttribute("aria-busy");
    mark();
    writeFragment();
  }

  // The same stream in the other run: at the same iteration, or at the first that has it.
  async function besideIt(stream) {
    const run = state.other, has = (dump) => dump && dump.streams.some((s) => s.id === stream.id);
    const same = dumpAt(run, state.step);
    const dump = has(same) ? same : dumpsOf(run).find(has);
    if (!dump) return { run, missing: `${rimeStore.runs()[run].name} has no dump with the stream ${stream.id}.` };
    try {
      const loaded = await rimeStore.load(run, dump);
      const own = dump.streams.find((s) => s.id === stream.id);
      const siblings = loaded.siblings(own.group);
      const wanted = state.otherSibling ?? (run === state.run ? siblings.find((s) => s !== state.sibling) : state.sibling);
      const sibling = siblings.includes(wanted) ? wanted : siblings[0];
      fill(at("other-sibling"), siblings.map((s) => [s, s + 1]), sibling);
      return { run, dump: loaded, stream: own, group: own.group, sibling, step: dump.step };
    } catch (error) {
      return { run, missing: `It cannot be shown: ${error.message}` };
    }
  }

  function columnHead(column) {
    const name = rimeStore.runs()[column.run].name;
    if (column.missing) return element("header", { class: "column-head" }, element("h2", { dir: "auto" }, name), element("p", { class: "note" }, column.missing));
    const info = Object.entries(column.stream.info).map(([k, v]) => `${k} ${Array.isArray(v) ? v.join(", ") : v}`);
    return element("header", { class: "column-head" },
      element("h2", { dir: "auto" }, column.stream.id),
      element("p", { class: "note", dir: "auto" }, [name, `iteration ${column.step}`, `sibling ${column.sibling + 1}`, ...info].join(" · ")));
  }

  function viewChoice() {
    const group = element("div", { class: "views", role: "group", "aria-label": "Memory" });
    for (const view of VIEWS) {
      const button = element("button", { type: "button", "aria-pressed": String(view === state.view) }, view);
      button.addEventListener("click", () => setView(view));
      group.append(button);
    }
    return element("p", { class: "note" }, "Memory: ", group);
  }

  function setView(view) {
    state.view = view;
    showRollout();
  }

  // ---------------------------------------------------------------- map and matches
  function showMap(dump) {
    at("map").replaceChildren(...taskMap(dump.streams, current, choose));
  }

  async function choose(group, sibling, position, focusMap = true) {
    const moved = group !== state.group || sibling !== state.sibling;
    Object.assign(state, { group, sibling, task: position });
    if (moved) await showRollout();
    else { mark(); writeFragment(); }
    document.getElementById(`task-${position}`)?.scrollIntoView({ block: "start" });
    if (focusMap) at("map").querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  const mark = () => markInMap(at("map"), state);

  function refilter() {
    if (current) showMap(dumpAt(state.run, state.step));
    mark();
    tellMatches();
  }

  function tellMatches() {
    const dumps = dumpsOf(state.run), here = current ? current.rows.filter(rimeFilter.matches).length : 0;
    const holding = dumps.filter((dump) => rimeFilter.countIn(dump) > 0).length;
    at("matches").textContent = `${here} tasks here, in ${holding} of ${dumps.length} dumps`;
  }

  // The next task that the filter lets through: in this dump, then in the others, round and round.
  async function nextMatch(direction) {
    const dumps = dumpsOf(state.run), order = (row) => row.group * 1e8 + row.sibling * 1e4 + row.position;
    const here = order({ group: state.group, sibling: state.sibling, position: state.task });
    const inDump = () => current.rows.filter(rimeFilter.matches).sort((a, b) => order(a) - order(b));
    let rows = inDump().filter((row) => (direction > 0 ? order(row) > here : order(row) < here));
    const first = dumps.findIndex((dump) => dump.step === state.step);
    for (let i = 1; !rows.length && i <= dumps.length; i++) {
      const dump = dumps[(first + direction * i + dumps.length * 2) % dumps.length];
      if (rimeFilter.countIn(dump) > 0) {
        state.step = dump.step;
        await showDump();
        rows = inDump();
      }
    }
    if (rows.length) {
      const row = direction > 0 ? rows[0] : rows[rows.length - 1];
      await choose(row.group, row.sibling, row.position);
    }
  }

  // ---------------------------------------------------------------- controls and keys
  function listen() {
    at("run").addEventListener("change", () => { state.run = Number(at("run").value); current = null; showRun(); });
    at("dump").addEventListener("change", () => goTo(Number(at("dump").value)));
    at("earlier").addEventListener("click", () => step(-1));
    at("later").addEventListener("click", () => step(1));
    at("other").addEventListener("change", () => {
      state.other = at("other").value === "" ? null : Number(at("other").value);
      state.otherSibling = null;
      showRollout();
    });
    at("other-sibling").addEventListener("change", () => { state.otherSibling = Number(at("other-sibling").value); showRollout(); });
    at("previous-match").addEventListener("click", () => nextMatch(-1));
    at("next-match").addEventListener("click", () => nextMatch(1));
    at("help").addEventListener("click", () => at("keys").showModal());
    at("map").addEventListener("keydown", arrows);
    document.addEventListener("keydown", keys);
  }

  function goTo(number) {
    state.step = number;
    return showDump();
  }

  function step(direction) {
    const dumps = dumpsOf(state.run), i = dumps.findIndex((dump) => dump.step === state.step) + direction;
    if (dumps[i]) goTo(dumps[i].step);
  }

  function arrows(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !current) return;
    event.preventDefault();
    const siblings = current.siblings(state.group), row = siblings.indexOf(state.sibling) + move[0];
    const position = state.task + move[1];
    if (row in siblings) {
      if (current.row(state.group, siblings[row], position)) choose(state.group, siblings[row], position);
      return;
    }
    const groups = dumpAt(state.run, state.step).streams.map((stream) => stream.group);
    const group = groups[groups.indexOf(state.group) + move[0]];
    if (group === undefined) return;
    const there = current.siblings(group);
    choose(group, move[0] < 0 ? there[there.length - 1] : there[0], position);
  }

  function keys(event) {
    const typing = /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || typing || at("keys").open || !current) return;
    const actions = {
      j: () => toTask(1), k: () => toTask(-1), n: () => nextMatch(1), p: () => nextMatch(-1),
      "[": () => step(-1), "]": () => step(1), "?": () => at("keys").showModal(),
      o: () => { const own = document.getElementById(`task-${state.task}`)?.querySelector(".conversation"); if (own) own.open = !own.open; },
      d: () => setView(VIEWS[(VIEWS.indexOf(state.view) + 1) % VIEWS.length]),
    };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  function toTask(direction) {
    if (current.row(state.group, state.sibling, state.task + direction)) {
      choose(state.group, state.sibling, state.task + direction, false);
      document.getElementById(`task-${state.task}`).focus({ preventScroll: true });
    }
  }
})();
