// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <tutti/config.hpp>
#include <tutti/loggers/detail/dashboard_app.hpp>
#include <tutti/loggers/detail/dashboard_script.hpp>

namespace tutti::detail {

inline constexpr std::string_view dashboard_style = R"tutti_css(
:root { color-scheme: light dark; --text: #1d2329; --quiet: #68727d; --back: #ffffff;
        --panel: #f5f6f8;
        --grid: #e3e6ea; --bad: #c62828; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --quiet: #98a2ad; --back: #15191d; --panel: #1f252b; --grid: #343c44;
          --bad: #ff6b60;
          --accent: #56b4e9; }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; display: grid; grid-template-columns: 230px 1fr; min-height: 100vh;
       color: var(--text);
       background: var(--back); font: 13px/1.45 system-ui, -apple-system, "Segoe UI",
       "DejaVu Sans", sans-serif; }
aside { background: var(--panel); padding: 14px; display: flex; flex-direction: column; gap: 14px; }
aside > div { position: sticky; top: 14px; display: flex; flex-direction: column; gap: 12px; }
main { padding: 14px 18px 40px; min-width: 0; }
h1 { font-size: 18px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 22px 0 6px; overflow-wrap: anywhere; }
h3 { font-size: 13px; margin: 16px 0 4px; overflow-wrap: anywhere; }
#facts, .quiet { color: var(--quiet); }
#notes p { margin: 6px 0 0; padding: 6px 10px; border-left: 3px solid var(--accent);
           background: var(--panel);
           overflow-wrap: anywhere; white-space: pre-wrap; }
#notes p.bad { border-color: var(--bad); }
nav { display: flex; gap: 4px; margin: 12px 0; border-bottom: 1px solid var(--grid); }
nav button { border: 0; background: none; color: inherit; font: inherit; padding: 5px 12px;
             cursor: pointer; }
nav button.now { border-bottom: 2px solid var(--accent); font-weight: 600; }
#runs { display: flex; flex-direction: column; gap: 3px; max-height: 50vh; overflow: auto; }
.run { display: flex; align-items: center; gap: 5px; cursor: pointer; }
.run span { flex: 1; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.run em { font-size: 11px; color: var(--quiet); font-style: normal; }
.run em.failed, .run em.died { color: var(--bad); }
i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 4px;
    flex: none; }
.field { display: flex; flex-direction: column; gap: 2px; color: var(--quiet); }
.field span { float: right; }
input[type=text], select { font: inherit; width: 100%; padding: 3px 5px; color: var(--text);
                           background: var(--back);
                           border: 1px solid var(--grid); border-radius: 3px; }
input.bad { border-color: var(--bad); }
details > summary { cursor: pointer; font-weight: 600; margin: 8px 0; }
#curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr));
          column-gap: 14px; }
#curves > * { grid-column: 1 / -1; min-width: 0; }
#curves > .one { grid-column: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 14px; }
figure { margin: 0; min-width: 0; }
.grid figcaption { font-weight: 600; overflow: hidden; text-overflow: ellipsis;
                   white-space: nowrap; direction: ltr; }
.plot { position: relative; height: 190px; cursor: crosshair; touch-action: none; }
canvas { position: absolute; inset: 0; width: 100%; height: 100%; }
.mark { position: absolute; top: 0; bottom: 18px; width: 1px; background: var(--quiet);
        pointer-events: none; }
.band { position: absolute; top: 0; bottom: 18px; background: var(--accent); opacity: .2;
        pointer-events: none; }
.hint { position: absolute; top: 4px; z-index: 2; padding: 5px 8px; background: var(--panel);
        pointer-events: none;
        border: 1px solid var(--grid); border-radius: 4px; font-size: 12px; max-width: 300px;
        overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 12px; font-size: 12px; color: var(--quiet); }
.legend span { max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.legend b, .hint b { color: var(--text); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--grid);
         vertical-align: top;
         white-space: pre-wrap; overflow-wrap: anywhere; max-width: 560px; }
tr.differs td { color: var(--accent); font-weight: 600; }
pre { background: var(--panel); padding: 10px; overflow: auto;
      font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
.pictures { display: flex; flex-wrap: wrap; gap: 14px; }
.pictures img { max-width: 420px; min-width: 96px; image-rendering: pixelated; display: block; }
@media (max-width: 720px) { body { grid-template-columns: 1fr; } aside > div { position: static; } }
)tutti_css";

inline constexpr std::string_view dashboard_body = R"tutti_html(
<aside><div>
  <div id="runs"></div>
  <label class="field"><div>smoothing <span id="smooth-value"></span></div>
    <input id="smooth" type="range" min="0" max="0.99" step="0.01"></label>
  <label class="field">horizontal axis
    <select id="axis"><option value="step">batches</option>
      <option value="time">time</option></select></label>
  <label><input id="log" type="checkbox"> logarithmic</label>
  <label class="field">metrics (a regular expression)
    <input id="filter" type="text" spellcheck="false"></label>
  <button id="whole" hidden>whole run</button>
  <div class="quiet">Drag in a chart to zoom into it, double-click for the whole run; the wheel
    zooms with Ctrl.</div>
</div></aside>
<main>
  <h1 id="title"></h1>
  <div id="facts"></div>
  <div id="notes"></div>
  <nav><button id="to-curves">Curves</button><button id="to-samples">Samples</button>
    <button id="to-run">Run</button></nav>
  <section id="curves"></section>
  <section id="samples" hidden></section>
  <section id="run" hidden></section>
</main>
<noscript>This page draws its curves with JavaScript.</noscript>
)tutti_html";

// The page, which may load nothing from another host. data: of a report, as JSON; empty: it asks
// the server that it came from.
std::string dashboard_page(std::string_view data);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE std::string dashboard_page(std::string_view data) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>tutti</title>"
      "<meta name=\"referrer\" content=\"no-referrer\"><link rel=\"icon\" href=\"data:,\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; img-src "
      "data:";
  page += data.empty() ? " 'self'; connect-src 'self'" : "";
  page += "\"><style>";
  page.append(dashboard_style).append("</style></head><body>").append(dashboard_body);
  page += "<script id=\"data\" type=\"application/json\">";
  for (const char c : data) {  // nothing in it ends the element
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  page += "</script><script>";
  page.append(dashboard_charts).append(dashboard_app);
  return page + "</script></body></html>\n";
}

}  // namespace tutti::detail

#endif
