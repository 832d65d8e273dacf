"use strict";
// The dumps of rollouts. A dump is a script of its own, loaded when it is first looked at; the
// newest few stay in memory.
const rimeStore = (() => {
  const KEPT = 6;
  const dumps = new Map();    // "run/step" → promise of {texts, rows}
  const waiting = new Map();  // "run/step" → resolve
  let index = null;

  async function decoded(base64) {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser cannot unpack rollouts; it takes Chrome 80, Firefox 113 or Safari 16.4");
    }
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function load(run, dump) {
    const key = `${run}/${dump.step}`;
    if (!dumps.has(key)) {
      dumps.set(key, new Promise((resolve, reject) => {
        waiting.set(key, resolve);
        const script = document.createElement("script");
        script.src = dump.file;
        script.onerror = () => { dumps.delete(key); reject(new Error(`${dump.file} cannot be read; is the report whole?`)); };
        script.onload = () => script.remove();
        document.head.append(script);
      }).then(decoded).then(byPlace));
      for (const old of [...dumps.keys()].slice(0, -KEPT)) dumps.delete(old);
    }
    return dumps.get(key);
  }

  function byPlace(dump) {
    const places = new Map(dump.rows.map((row) => [`${row.group}/${row.sibling}/${row.position}`, row]));
    const axis = (name, rows) => [...new Set(rows.map((row) => row[name]))].sort((a, b) => a - b);
    return {
      ...dump,
      row: (group, sibling, position) => places.get(`${group}/${sibling}/${position}`),
      siblings: (group) => axis("sibling", dump.rows.filter((row) => row.group === group)),
      positions: (group) => axis("position", dump.rows.filter((row) => row.group === group)),
      // A text is whole, or [beginning, characters left out, end].
      text: (i) => dump.texts[i],
    };
  }

  return {
    load,
    runs: () => index.runs,
    setIndex(found) { index = found; document.dispatchEvent(new Event("indexready")); },
    setDump(run, step, base64) { waiting.get(`${run}/${step}`)(base64); waiting.delete(`${run}/${step}`); },
  };
})();

// What the scripts under data/ call.
function rimeIndex(index) { rimeStore.setIndex(index); }
function rimeShard(run, step, base64) { rimeStore.setDump(run, step, base64); }
