// vegaEmbed is put before this by the bundler.
{
  const { config, specs } = JSON.parse(document.getElementById("charts").textContent);
  // ast: expressions are interpreted, not compiled, so that the page can forbid eval.
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config };
  const views = new Map();
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    vegaEmbed(place, spec, options).then(
      ({ view }) => views.set(place, view),
      (error) => { place.textContent = `This chart could not be drawn: ${error.message}`; },
    );
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const figure = button.closest("figure");
      const picked = button.getAttribute("aria-pressed") === "true" ? null : button;
      for (const other of figure.querySelectorAll(".legend button")) other.setAttribute("aria-pressed", other === picked);
      for (const place of figure.querySelectorAll(".chart")) {
        views.get(place)?.signal("picked", picked && picked.dataset.label).runAsync();
      }
    });
  }
}
