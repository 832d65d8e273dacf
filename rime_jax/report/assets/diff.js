"use strict";
// Word differences of two texts: [["same" | "removed" | "added", text], …].
function wordDiff(before, after) {
  const LARGEST = 1200;  // edits; beyond that the middle is shown as replaced
  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
  const a = words(before), b = words(after);
  let start = 0, endA = a.length, endB = b.length;
  while (start < endA && start < endB && a[start] === b[start]) start++;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) { endA--; endB--; }
  const middle = shortestEdit(a.slice(start, endA), b.slice(start, endB), LARGEST);
  return joined([
    ["same", a.slice(0, start)], ...middle, ["same", a.slice(endA)],
  ]);

  function joined(parts) {
    const found = [];
    for (const [kind, own] of parts) {
      const text = Array.isArray(own) ? own.join("") : own;
      if (!text) continue;
      const last = found[found.length - 1];
      if (last && last[0] === kind) last[1] += text;
      else found.push([kind, text]);
    }
    return found;
  }
}

// The greedy algorithm of Myers (1986): the furthest x on each diagonal k = x - y after d edits.
function shortestEdit(a, b, largest) {
  if (!a.length || !b.length) return [["removed", a], ["added", b]];
  const most = Math.min(a.length + b.length, largest), history = [];
  const reach = new Int32Array(2 * most + 3), zero = most + 1;
  for (let d = 0; d <= most; d++) {
    history.push(reach.slice(zero - d - 1, zero + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = isDown(reach, zero, k, d) ? reach[zero + k + 1] : reach[zero + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach[zero + k] = x;
      if (x >= a.length && x - k >= b.length) return walkedBack(a, b, history);
    }
  }
  return [["removed", a], ["added", b]];
}

// Whether the d-th edit that reaches diagonal k adds a word (else it removes one).
function isDown(reach, zero, k, d) {
  return k === -d || (k !== d && reach[zero + k - 1] < reach[zero + k + 1]);
}

function walkedBack(a, b, history) {
  const found = [];
  let x = a.length, y = b.length;
  for (let d = history.length - 1; d > 0; d--) {
    const k = x - y, zero = d + 1, down = isDown(history[d], zero, k, d);
    const start = down ? history[d][zero + k + 1] : history[d][zero + k - 1] + 1;
    while (x > start) { found.push(["same", a[--x]]); y--; }
    if (down) found.push(["added", b[--y]]);
    else found.push(["removed", a[--x]]);
  }
  while (x > 0) found.push(["same", a[--x]]);
  return grouped(found.reverse());
}

// Words that were replaced one after another read better as one removal and one addition.
function grouped(edits) {
  const found = [];
  let removed = [], added = [];
  const flush = () => {
    if (removed.length) found.push(["removed", removed]);
    if (added.length) found.push(["added", added]);
    removed = []; added = [];
  };
  edits.forEach(([kind, word], i) => {
    const between = kind === "same" && /^\s+$/.test(word) && removed.length + added.length
      && edits[i + 1] && edits[i + 1][0] !== "same";
    if (kind === "removed") removed.push(word);
    else if (kind === "added") added.push(word);
    else if (between && removed.length && added.length) { removed.push(word); added.push(word); }
    else { flush(); found.push(["same", [word]]); }
  });
  flush();
  return found;
}
