"""The page of a report as a Jinja template: Flower packs no HTML, style sheets or scripts into an app."""

MACROS = r"""{%- macro section(name, heading) -%}
<section id="{{ name }}" aria-labelledby="{{ name }}-heading">
<h2 id="{{ name }}-heading">{{ heading }}</h2>{{ caller() }}</section>
{%- endmacro %}

{%- macro notes(texts) %}{% for text in texts %}<p class="note">{{ text }}</p>{% endfor %}{% endmacro %}

{%- macro table(content) %}
{%- set numeric = content.numeric %}
<div class="scroll" role="region" aria-label="Table" tabindex="0"><table><thead><tr>
{%- for text in content.headings -%}
<th scope="col"{% if numeric[loop.index0] %} class="number"{% endif %}>{{ text }}</th>
{%- endfor %}</tr></thead><tbody>
{%- for row in content.rows %}{% set i = loop.index0 %}<tr>
{%- for text in row %}<td{% if numeric[loop.index0] %} class="number"{% endif %}>
{%- if (i, loop.index0) in content.bold %}<b>{{ text }}</b>{% else %}{{ text }}{% endif %}</td>{% endfor -%}
</tr>{% endfor %}</tbody></table></div>
{%- endmacro %}

{%- macro choice(name, toggle) %}
{%- if toggle.is_long -%}
<label><span class="name">{{ toggle.name }}</span><select name="{{ name }}">
{%- for key, text in toggle.options.items() %}<option value="{{ key }}">{{ text }}</option>{% endfor -%}
</select></label>
{%- else -%}
<fieldset><legend>{{ toggle.name }}</legend>
{%- for key, text in toggle.options.items() -%}
<label><input type="radio" name="{{ name }}" value="{{ key }}"{% if loop.first %} checked{% endif -%}
><span>{{ text }}</span></label>
{%- endfor %}</fieldset>
{%- endif %}
{%- endmacro %}

{%- macro switches(names) %}
{%- if names -%}
<fieldset><legend>Show</legend>
{%- for key, text in names.items() -%}
<label><input type="checkbox" value="{{ key }}"><span>{{ text }}</span></label>
{%- endfor %}</fieldset>
{%- endif %}
{%- endmacro %}

{%- macro legend(entries, kind, label) %}
{%- for entry in entries %}
{%- if loop.first %}<div class="legend {{ kind }}" role="group" aria-label="{{ label }}">{% endif %}
{%- if entry.group -%}
<button type="button" aria-pressed="true" data-group="{{ entry.group }}">
{{- swatch(entry) }}{{ entry.name }}</button>
{%- else -%}
<span>{{ swatch(entry) }}{{ entry.name }}</span>
{%- endif %}
{%- if loop.last %}</div>{% endif %}
{%- endfor %}
{%- endmacro %}

{%- macro swatch(entry) %}
{%- set colour = entry.colour if entry.colour.startswith("#") else "var(--" ~ entry.colour ~ ")" %}
{%- if entry.is_area -%}
<svg width="16" height="14" aria-hidden="true">
<rect x="1" y="1" width="14" height="12" style="fill:{{ colour }};stroke:var(--faint)"/></svg>
{%- else -%}
<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" stroke="{{ colour }}"
stroke-width="3" stroke-dasharray="{{ dashes[entry.dash] }}"/></svg>
{%- endif %}
{%- endmacro -%}
"""

CSS = r""":root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1c1e21; --faint: #5b6168; --line: #d8dbe0; --grid: #e8eaed; --panel: #f5f6f8;
  --accent: #0064a0; --warning: #8a3b00;
  {% for name, light, _ in states %}--state-{{ loop.index0 }}: {{ light }}; {% endfor %}
}
@media screen and (prefers-color-scheme: dark) {
  :root:not(.printing) {
    --page: #16181c; --text: #e6e8eb; --faint: #a3a9b1; --line: #3a3f46; --grid: #2b2f35; --panel: #1f2227;
    --accent: #6cb8ee; --warning: #ffb27a;
    {% for name, _, dark in states %}--state-{{ loop.index0 }}: {{ dark }}; {% endfor %}
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1080px; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
section { margin-top: 2.2rem; border-top: 1px solid var(--line); padding-top: 1.2rem; }
a { color: var(--accent); }
.subtitle { color: var(--faint); margin: .3rem 0 1rem; overflow-wrap: anywhere; }
.warning { color: var(--warning); font-weight: 600; margin: .3rem 0; overflow-wrap: anywhere; }
.note { color: var(--faint); font-size: .88rem; margin: .25rem 0; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; margin: 0 0 1rem; }
.facts div { background: var(--panel); border-radius: .5rem; padding: .5rem .9rem; min-width: 6.5rem; }
.facts dt { color: var(--faint); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .92rem; }
fieldset { border: 0; margin: 0; padding: 0;
  display: flex; flex-wrap: wrap; gap: .3rem; align-items: center; }
.toggles { display: flex; flex-wrap: wrap; gap: .5rem 1.6rem; margin-bottom: .6rem; font-size: .9rem; }
legend, .toggles .name { float: left; padding: 0; margin-right: .5rem; color: var(--faint); }
fieldset label { position: relative; overflow-wrap: anywhere; }
fieldset input { position: absolute; opacity: 0; inset: 0; width: 100%; height: 100%; margin: 0;
  cursor: pointer; }
fieldset span { display: block; border: 1px solid var(--line); border-radius: 1rem; padding: .15rem .8rem; }
fieldset input:checked + span { background: var(--accent); border-color: var(--accent); color: var(--page); }
.toggles > label { min-width: 0; max-width: 100%; }
select { font: inherit; max-width: 100%; padding: .2rem .4rem; color: inherit; background: var(--panel);
  border: 1px solid var(--line); border-radius: .4rem; }
.legend { display: flex; flex-wrap: wrap; gap: .15rem .9rem; margin: 0 0 .3rem; font-size: .88rem; }
.legend[hidden] { display: none; }
.legend > span { display: inline-flex; align-items: center; gap: .4rem; }
.legend button, .copy button { font: inherit; color: inherit; background: none; cursor: pointer; }
.legend button { display: inline-flex; align-items: center; gap: .4rem; border: 0; border-radius: .3rem;
  padding: .1rem .2rem; text-align: left; overflow-wrap: anywhere; }
.legend button[aria-pressed="false"] { opacity: .45; text-decoration: line-through; }
.legend svg { flex: none; }
.copy { margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; font-size: .9rem; }
.copy button { border: 1px solid var(--line); border-radius: .4rem; padding: .25rem .8rem; }
:focus-visible, fieldset input:focus-visible + span { outline: 3px solid var(--accent); outline-offset: 2px; }
.plot { width: 100%; overflow: hidden; }
.scroll { overflow-x: auto; }
details .scroll { max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { white-space: nowrap; text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
#settings td, [id^="text-"] td { white-space: normal; }
#settings td:last-child, [id^="text-"] td:last-child { overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: var(--page); }
td.number, th.number { text-align: right; }
summary { cursor: pointer; font-size: .92rem; padding: .3rem 0; }
pre, code { font: .88rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--panel); border-radius: .5rem; padding: .7rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
textarea { width: 100%; height: 9rem; font: .8rem/1.4 ui-monospace, "DejaVu Sans Mono", monospace;
  color: inherit; background: var(--panel); border: 1px solid var(--line); }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  nav, .toggles, .copy, details:not([open]), .modebar-container { display: none !important; }
  section { break-inside: avoid-page; margin-top: 1.2rem; padding-top: .8rem; }
  #settings { break-inside: auto; }
  .plot { min-height: 0 !important; }
  .scroll { max-height: none !important; overflow: visible; }
  table { font-size: 8pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
@page { margin: 14mm; }
"""

SCRIPT = r""""use strict";
const page = JSON.parse(document.getElementById("data").textContent);
const config = {
  responsive: true, displaylogo: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
};
let printing = false;

/** A colour of the style sheet, in the scheme that is shown. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The trace with what views share: the cells of a heat map; those of states get names and colours. */
function completed(figure, trace) {
  if (!trace.cells) return trace;
  const z = figure.cells[trace.cells], names = page.states;
  const shown = (value) => trace.colorscale ? `${value} % took part` : names[value];
  const text = z.map((row, i) =>
    row.map((value, j) => [trace.rows[i], trace.columns[j], shown(value)].join("<br>")));
  if (trace.colorscale) return { ...trace, z, text };
  const steps = names.flatMap((_, i) => [i, i + 1].map((end) => [end / names.length, colour(`state-${i}`)]));
  return { ...trace, z, text, zmin: -0.5, zmax: names.length - 0.5, colorscale: steps };
}

/** The options that the toggles of a section stand on. */
function keyOf(section) {
  const chosen = section.querySelectorAll(".toggles [type=radio]:checked, .toggles select");
  return Array.from(chosen, (input) => input.value).join("|");
}

/** A trace or an axis as the switches that are on change it. */
const switched = (part, on) => Object.assign(part, ...on.map((name) => part[name]));

/** A layout in the colours of the page. */
function themed(layout, height, width, on) {
  const small = printing || width < 600;
  const made = structuredClone(layout);
  const family = getComputedStyle(document.body).fontFamily;
  made.font = { color: colour("text"), size: small ? 11 : 13, family };
  made.paper_bgcolor = made.plot_bgcolor = "rgba(0,0,0,0)";
  const font = { color: colour("text") };
  made.hoverlabel = { bgcolor: colour("panel"), bordercolor: colour("line"), font };
  made.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("text") };
  if (small) Object.assign(made.margin, { l: 64, r: 10 });
  for (const [name, axis] of Object.entries(made)) {
    if (!/^[xy]axis/.test(name)) continue;
    const colours = { gridcolor: colour("grid"), linecolor: colour("line"), showline: true };
    Object.assign(switched(axis, on), colours);
    if (small && name.startsWith("x") && !axis.tickvals) axis.nticks = 6;
  }
  const size = printing ? { width: 680, height: Math.max(170, 0.66 * height) } : { height };
  return { ...made, ...size, autosize: !printing };
}

function draw(section) {
  const figure = page.figures[section.id];
  const view = figure.views[keyOf(section)];
  const plot = section.querySelector(".plot");
  const on = Array.from(section.querySelectorAll("[type=checkbox]:checked"), (input) => input.value);
  const off = Array.from(section.querySelectorAll("[aria-pressed=false]"), (button) => button.dataset.group);
  const data = view.data.map((trace) =>
    ({ ...completed(figure, switched({ ...trace }, on)), visible: !off.includes(trace.legendgroup) }));
  const states = section.querySelector(".states");
  if (states) states.hidden = !view.data.some((trace) => trace.cells && !trace.colorscale);
  const height = view.height || figure.height;
  plot.style.minHeight = `${height}px`;
  return Plotly.react(plot, data, themed(view.layout, height, plot.clientWidth, on), config);
}

const sections = Object.keys(page.figures).map((name) => document.getElementById(name));
const drawAll = () => Promise.all(sections.map(draw));

for (const section of sections) {
  section.addEventListener("change", () => draw(section));
  for (const button of section.querySelectorAll("[aria-pressed]")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
      draw(section);
    });
  }
}

function setPrinting(on) {
  if (printing === on) return;
  printing = on;
  document.documentElement.classList.toggle("printing", on);
  drawAll();
}
matchMedia("print").addEventListener("change", (event) => setPrinting(event.matches));
addEventListener("beforeprint", () => setPrinting(true));
addEventListener("afterprint", () => setPrinting(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copies);
    const status = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(source.value);
      status.textContent = "Copied.";
    } catch {
      source.closest("details").open = true;
      source.select();
      status.textContent = document.execCommand("copy") ? "Copied." : "Press Ctrl+C.";
    }
  });
}
drawAll().then(() => { document.documentElement.dataset.drawn = "yes"; });
"""

BODY = (
    r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'{% if address %} 'self' file:{% endif %};
  style-src 'unsafe-inline'; img-src data: blob:">
<title>{{ page.title }}</title>
<style>
"""
    + CSS
    + r"""</style>
</head>
<body>
<header>
<h1>{{ page.title }}</h1>
<p class="subtitle">{{ page.subtitle }}</p>
{% for text in page.warnings %}<p class="warning">{{ text }}</p>{% endfor %}
{% if page.facts %}<dl class="facts">
{%- for name, text in page.facts %}<div><dt>{{ name }}</dt><dd>{{ text }}</dd></div>{% endfor -%}
</dl>{% endif %}
<nav aria-label="Sections">
{%- for name, heading in page.sections %}<a href="#{{ name }}">{{ heading }}</a> {% endfor -%}
</nav>
</header>
<main>
<noscript><p class="warning">Plots need JavaScript; the tables have their numbers.</p></noscript>
{% if page.results %}{% call section("results", "Results") -%}
  {% if page.results.grid %}{{ table(page.results.grid) }}{% endif -%}
  {{ table(page.results.table) }}{{ notes(page.results.notes) }}
  <div class="copy">
  {%- for name, _ in page.results.copies -%}
    <button type="button" data-copies="copy-{{ loop.index }}">Copy as {{ name }}</button>
  {%- endfor %}<span id="copied" role="status"></span></div>
  <details><summary>As text</summary>
  {%- for name, text in page.results.copies -%}
    <textarea id="copy-{{ loop.index }}" readonly aria-label="Results as {{ name }}">{{ text }}</textarea>
  {%- endfor %}</details>
{%- endcall %}{% endif %}
{% for heading, content in page.text_tables %}
{%- call section("text-" ~ loop.index, heading) %}{{ table(content) }}{% endcall %}
{% endfor %}
{%- for figure in page.figures %}{% call section(figure.name, figure.heading) -%}
  {% if figure.choices or figure.switches %}<div class="toggles">
  {%- for toggle in figure.choices %}{{ choice(figure.name ~ "-" ~ loop.index, toggle) }}{% endfor -%}
  {{ switches(figure.switches) }}</div>{% endif -%}
  {{ legend(figure.legend | rejectattr("group"), "states", "Colours") -}}
  {{ legend(figure.legend | selectattr("group"), "lines", "Show or hide") -}}
  <div class="plot" role="img" aria-label="{{ figure.heading }}. {{ figure.description }}"
    style="min-height:{{ figure.height }}px"></div>
  {{- notes(figure.notes) }}
  {%- if figure.table %}<details><summary>Table: {{ figure.heading | lower }}</summary>
  {{- table(figure.table) }}</details>{% endif %}
{%- endcall %}{% endfor %}
{%- for heading, text in page.absent %}
{%- call section("absent-" ~ loop.index, heading) %}{{ notes([text]) }}{% endcall %}{% endfor %}
{%- if page.settings or page.command %}{% call section("settings", "Settings") -%}
  {% if page.command %}<h3>Command</h3><pre><code>{{ page.command }}</code></pre>{% endif %}
  {%- for heading, content in page.settings %}<h3>{{ heading }}</h3>{{ table(content) }}{% endfor %}
{%- endcall %}{% endif %}
</main>
<script type="application/json" id="data">{{ data }}</script>
{% if address -%}
<p class="warning" id="missing" hidden>Plots need {{ address }}; the tables have their numbers.</p>
<script src="{{ address }}" onerror="document.getElementById('missing').hidden = false"></script>
{%- else -%}
<script>{{ plotly }}</script>
{%- endif %}
<script>
"""
    + SCRIPT
    + r"""</script>
</body>
</html>
"""
)

TEMPLATE = MACROS + BODY
