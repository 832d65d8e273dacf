"use strict";
// Light or dark: as the system has it, until the reader says otherwise.
(() => {
  const KEY = "rime_jax.theme";
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const system = matchMedia("(prefers-color-scheme: dark)");

  // A browser may forbid storage to pages opened from files.
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const store = (choice) => { try { localStorage.setItem(KEY, choice); } catch { /* not kept */ } };

  let choice = stored() in NEXT ? stored() : "system";

  function apply() {
    const dark = choice === "dark" || (choice === "system" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.dispatchEvent(new Event("themechange"));
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = { system: "◐", light: "○", dark: "●" }[choice];
      const said = choice === "system" ? "as the system" : choice;
      button.setAttribute("aria-label", `Colours: ${said}`);
      button.title = `Colours: ${said}`;
    }
  }

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      choice = NEXT[choice];
      store(choice);
      apply();
    });
    apply();
  });
  apply();
})();
