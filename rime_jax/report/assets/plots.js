"use strict";
// Draws each figure when it comes near the screen, in the colours of the page. The library, most of
// what the page weighs, is loaded for the first of them.
(() => {
  const drawn = new Map();  // element → its panel

  // "var(--name)" → the colour it has now, anywhere in a figure.
  function resolved(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolved(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolved(v, style)]));
    }
    return value;
  }

  function layoutOf(panel) {
    const axis = {
      gridcolor: "var(--line)", linecolor: "var(--line)", zerolinecolor: "var(--grey)",
      tickfont: { color: "var(--muted)", size: 11.5 }, fixedrange: true,
    };
    const layout = {
      margin: { l: 46, r: 14, t: 10, b: 44 }, showlegend: false, hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "var(--ink)" },
      hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--line)",
                    font: { color: "var(--ink)", size: 12 } },
      ...panel.layout,
    };
    for (const key of new Set(["xaxis", "yaxis", ...Object.keys(panel.layout)])) {
      if (/^[xy]axis\d*$/.test(key)) {
        const own = panel.layout[key] || {};
        layout[key] = { ...axis, ...own };
        if (own.title) layout[key].title = { font: { size: 12, color: "var(--muted)" }, standoff: 8, ...own.title };
      }
    }
    return layout;
  }

  let loading = null;
  function library() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = "assets/plotly.js";
      script.onload = resolve;
      script.onerror = () => reject(new Error("assets/plotly.js cannot be read; is the report whole?"));
      document.head.append(script);
    });
    return loading;
  }

  // One figure a frame, so that the first is seen before the last is drawn.
  let queue = Promise.resolve();
  function firstDraw(element) {
    queue = queue.then(library).then(() => new Promise(requestAnimationFrame)).then(() => draw(element))
      .catch((error) => { element.textContent = `This figure cannot be drawn: ${error.message}`; });
  }

  function draw(element) {
    const panel = drawn.get(element);
    const style = getComputedStyle(document.documentElement);
    Plotly.react(element, resolved(panel.data, style), resolved(layoutOf(panel), style),
                 { displayModeBar: false, responsive: true });
  }

  const isDrawn = (element) => element.querySelector(".main-svg") !== null;

  // One legend for all panels of a figure; a name that is pressed hides or shows its lines.
  function legend(figure, panels) {
    const names = new Map();
    for (const trace of panels.flatMap((panel) => panel.data)) {
      // Bands and raw curves go with the line of their name.
      if (trace.hoverinfo !== "skip" && !names.has(trace.name)) names.set(trace.name, trace);
    }
    if (names.size < 2) return;
    const box = figure.querySelector(".legend");
    for (const [name, trace] of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const swatch = document.createElement("i");
      swatch.style.setProperty("--swatch", (trace.line || trace.marker).color);
      swatch.className = trace.line ? trace.line.dash || "solid"
        : trace.type === "bar" ? "block" : trace.marker.symbol;
      button.append(swatch, name);
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        figure.querySelectorAll(".plot").forEach((element, i) => {
          panels[i].data.forEach((own) => { if (own.name === name) own.visible = shown; });
          if (isDrawn(element)) draw(element);
        });
      });
      box.append(button);
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        near.unobserve(target);
        firstDraw(target);
      }
    }
  }, { rootMargin: "400px" });

  for (const figure of document.querySelectorAll("figure")) {
    const panels = JSON.parse(figure.querySelector("script").textContent);
    legend(figure, panels);
    figure.querySelectorAll(".plot").forEach((element, i) => {
      drawn.set(element, panels[i]);
      near.observe(element);
    });
  }
  document.addEventListener("themechange", () => {
    for (const element of drawn.keys()) if (isDrawn(element)) draw(element);
  });
})();
