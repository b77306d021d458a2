// Draws the charts in the colours of the page, and again when these change.
(function () {
  "use strict";
  const quiet = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  const MAP = 860;  // pixels across the map for which circles were moved apart
  const fine = matchMedia("(pointer: fine)").matches;

  function filled(value) {
    // "var(--ink)" → its value in the style sheet, anywhere within a chart
    if (typeof value === "string") {
      return value.replace(/^var\((--[a-z]+)\)$/, (_, name) =>
        getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    if (Array.isArray(value)) return value.map(filled);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, filled(part)]));
    }
    return value;
  }

  function draw(element) {
    const source = document.getElementById(element.dataset.shown || element.dataset.chart);
    const chart = filled(JSON.parse(source.textContent));
    if (element.id === "map" && element.clientWidth < MAP) {
      const trace = chart.data[0];
      trace.marker.sizeref *= MAP / element.clientWidth;
      trace.textfont.size = 8;
    }
    const zooms = fine && element.dataset.zooms === "yes";
    chart.layout.dragmode = zooms ? "zoom" : false;
    for (const axis of ["xaxis", "yaxis"]) chart.layout[axis].fixedrange = !zooms;
    return Plotly.react(element, chart.data, chart.layout, quiet);
  }

  const elements = [...document.querySelectorAll("[data-chart]")];
  const drawAll = () => elements.forEach(draw);
  drawAll();

  for (const button of document.querySelectorAll("[data-show]")) {
    button.addEventListener("click", () => {
      const element = document.getElementById(button.dataset.of);
      element.dataset.shown = button.dataset.show;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      draw(element);
    });
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    drawAll();
  });
  addEventListener("afterprint", () => {
    folded.forEach((part) => { part.open = false; });
    drawAll();
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach((section) => seen.observe(section));
})();
