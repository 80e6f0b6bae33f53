// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti::detail {

// The second part of the page's program: where the data comes from, and what stands around the
// charts.
inline constexpr std::string_view dashboard_app = R"tutti_js(
// In a report all data is embedded; live it comes from the server.
const embedded = document.getElementById('data').textContent.trim();
const report = embedded ? JSON.parse(embedded) : null;
const ask = async path => {
  const reply = await fetch(path, {cache: 'no-store'});
  if (!reply.ok) throw new Error(await reply.text() || reply.statusText);
  return reply.json();
};
const source = report ? {
  runs: async () => ({
    mine: 0,
    runs:
        report.runs.map((run, id) => ({id, folder: run.name, status: run.status, start: run.start}))
  }),
  run: async id => report.runs[id],
  curves: async id => report.runs[id].curves,
  image: (id, file) => report.runs[id].pictures[file] || '',
} :
                        {
                          runs: () => ask('runs'),
                          run: id => ask('run?id=' + id),
                          curves: (id, which, from, to, n) =>
                              ask('curves?id=' + id + '&s=' + which.join(',') + '&n=' + n +
                                  (from === null ? '' : '&from=' + from + '&to=' + to)),
                          image: (id, file) => 'image?id=' + id + '&file=' + file,
                        };

let runs = [], details = new Map(), charts = new Map(), version = 0, lost = '';
const $ = id => document.getElementById(id);
const seen = new Set();
const watch = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (entry.isIntersecting)
      seen.add(entry.target.chart);
    else
      seen.delete(entry.target.chart);
  }
  later();
}, {rootMargin: '200px'});

// ---- What is looked at, which the address keeps ----
function remember() {
  const words = new URLSearchParams();
  for (const run of runs) {
    if (view.picked.has(run.id)) words.append('run', run.folder);
  }
  if (view.tab !== 'curves') words.set('tab', view.tab);
  if (view.smooth) words.set('smooth', view.smooth);
  if (view.from !== null) {
    words.set('from', view.from);
    words.set('to', view.to);
  }
  if (view.axis !== 'step') words.set('axis', view.axis);
  if (view.log) words.set('log', 1);
  if (view.filter) words.set('filter', view.filter);
  history.replaceState(null, '', '#' + words);
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const range = [parseFloat(words.get('from')), parseFloat(words.get('to'))];
  view.tab = ['samples', 'run'].includes(words.get('tab')) ? words.get('tab') : 'curves';
  view.smooth = Math.min(0.99, Math.max(0, parseFloat(words.get('smooth')) || 0));
  [view.from, view.to] = isNumber(range[0]) && range[1] > range[0] ? range : [null, null];
  view.axis = words.get('axis') === 'time' ? 'time' : 'step';
  view.log = words.has('log');
  view.filter = words.get('filter') || '';
  return words.getAll('run');
}
function zoom(from, to) {
  [view.from, view.to] = [from, to];
  remember();
  for (const chart of seen) chart.draw();
  controls();
  later();
}

// ---- What there is to see ----
const ranks = ['loss', 'metrics', 'lr', 'l2_norm', 'grad', 'throughput', 'system', 'memory'];
const place = group => {
  const at = ranks.findIndex(word => group.startsWith(word));
  return group === 'time' ? 99 : at < 0 ? 50 : at;
};
const groupOf = name => name.startsWith('lr-') ? 'lr' :
    name.includes('/')                         ? name.slice(0, name.indexOf('/')) :
                                                 'other';
const colourOf = index =>
    index < colours.length ? colours[index] : 'hsl(' + index * 47 % 360 + ' 60% 45%)';

function arrange() {
  const lines = new Map();
  const several = view.picked.size > 1;
  let wanted = null;
  try {
    wanted = view.filter ? new RegExp(view.filter, 'i') : null;
  } catch (e) { wanted = null; }
  $('filter').classList.toggle('bad', view.filter !== '' && wanted === null);
  for (const id of view.picked) {
    const run = details.get(id);
    if (!run) continue;
    const wide = run.series.some(series => series[1] > 0);
    run.series.forEach(([name, rank, latest], place) => {
      if (wanted && !wanted.test(name)) return;
      if (!lines.has(name)) lines.set(name, []);
      const index = several ? runs.findIndex(r => r.id === id) : rank;
      const label =
          [several ? run.name : '', wide ? 'rank ' + rank : ''].filter(w => w).join(', ') || 'now';
      lines.get(name).push(
          {run: id, place, rank, latest, label, colour: colourOf(index), key: id + ':' + place});
    });
  }
  const groups = new Map();
  for (const name of [...lines.keys()].sort()) {
    const group = groupOf(name);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(name);
  }
  const order = [...groups.keys()].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
  const shape = JSON.stringify(order.map(group => [group, groups.get(group)]));
  for (const [name, own] of lines) {
    if (!charts.has(name)) {
      charts.set(name, new Chart(name));
      watch.observe(charts.get(name).node);
    }
    charts.get(name).lines = own.sort((a, b) => a.run - b.run || a.rank - b.rank);
  }
  if ($('curves').dataset.shape === shape) return;
  $('curves').dataset.shape = shape;
  $('curves').replaceChildren(...order.map(group => {
    const names = groups.get(group);
    const open = view.closed.has(group) ? !view.closed.get(group) : place(group) < 99;
    const section =
        el('details', {open, className: names.length === 1 ? 'one' : ''},
           el('summary', {textContent: group + ' (' + names.length + ')'}),
           el('div', {className: 'grid'}, ...names.map(name => charts.get(name).node)));
    section.addEventListener('toggle', () => {
      view.closed.set(group, !section.open);
      later();
    });
    return section;
  }));
  const none = view.filter ? 'No metric has such a name.' : 'No metrics yet.';
  if (order.length === 0) $('curves').append(el('p', {className: 'quiet', textContent: none}));
}

async function fill() {
  const wanted = new Map();  // run, buckets: the lines
  for (const chart of seen) {
    if (view.tab !== 'curves' || chart.plot.clientWidth === 0) continue;
    const part = view.axis === 'step' ? [view.from, view.to] : 0;
    const state = JSON.stringify([version, part, chart.count, chart.lines.map(line => line.key)]);
    if (chart.asked === state) continue;
    chart.asked = state;
    for (const line of chart.lines) {
      const key = line.run + ' ' + chart.count;
      if (!wanted.has(key)) wanted.set(key, []);
      wanted.get(key).push([line, chart]);
    }
  }
  const touched = new Set();
  for (const [key, lines] of wanted) {
    const [id, count] = key.split(' ').map(Number);
    for (let i = 0; i < lines.length; i += 200) {
      const part = lines.slice(i, i + 200);
      const exact = view.axis === 'step' && view.from !== null;
      const range = exact ? [Math.floor(view.from), Math.ceil(view.to)] : [null, null];
      const got = await source.curves(id, part.map(([line]) => line.place), ...range, count);
      for (const [line, chart] of part) {
        if (got[line.place]) chart.data.set(line.key, got[line.place]);
        touched.add(chart);
      }
    }
  }
  for (const chart of touched) chart.draw();
  document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + touched.size;
}

function header() {
  const picked = [...view.picked].map(id => details.get(id)).filter(run => run);
  $('title').textContent = picked.map(run => run.name).join(', ') || 'no run';
  document.title = (picked[0] ? picked[0].name : 'tutti') + ' - tutti';
  $('facts').textContent = picked.length !== 1 ? '' :
                                                 'step ' + number(picked[0].step) + ', ' +
          duration(picked[0].time - picked[0].start) + ', began ' + day(picked[0].start);
  const list = runs.map((run, index) => {
    const box = el('input', {type: 'checkbox', checked: view.picked.has(run.id)});
    box.addEventListener('change', () => {
      if (box.checked)
        view.picked.add(run.id);
      else
        view.picked.delete(run.id);
      remember();
      refresh();
    });
    return el(
        'label', {className: 'run', title: run.folder}, box,
        el('i', {style: 'background:' + colourOf(index)}), el('span', {textContent: run.folder}),
        el('em', {className: run.status, textContent: run.status}));
  });
  if (!$('runs').contains(document.activeElement) || $('runs').childElementCount !== list.length) {
    $('runs').replaceChildren(...list);
  }
  const notes = [];
  const note = (kind, text) => notes.push([kind, text]);
  if (lost)
    note(
        'bad',
        'The server of this page does not answer: ' + lost +
            '. What is shown is the last it said.');
  for (const run of picked) {
    const said = picked.length > 1 ? run.name + ': ' : '';
    const silent = Date.now() / 1000 - run.time;
    if (run.status === 'failed')
      note('bad', said + 'The run failed: ' + (run.error || 'it did not say why'));
    if (run.status === 'died') {
      note(
          'bad',
          said + 'The run died without a word: its process was killed or crashed, after step ' +
              number(run.step) + '.');
    }
    if (run.status === 'stopped') note('', said + 'A signal ended the run before its time.');
    if (run.status === 'empty') note('', said + 'The run has written nothing yet.');
    if (!report && silent > 120) {
      const long = said + 'No news for ' + duration(silent);
      if (run.status === 'running') note('bad', long + '.');
      if (run.status === 'quiet') note('', long + '; whether it lives is not known.');
    }
    if (run.disk_free < 1e8) {
      note(
          'bad',
          said + 'The disk of the run is full, or nearly: ' + bytes(run.disk_free) +
              ' are left, and lines may be missing.');
    }
    if (run.broken) note('', said + number(run.broken) + ' lines of its files could not be read.');
    if (run.left_out)
      note('', said + 'Only the first ' + number(run.series.length) + ' metrics are shown.');
  }
  $('notes').replaceChildren(
      ...notes.map(([kind, text]) => el('p', {className: kind, textContent: text})));
}

const table = (columns, rows, classes) =>
    el('div', {className: 'wide'},
       el('table', {},
          el('thead', {}, el('tr', {}, ...columns.map(text => el('th', {textContent: text})))),
          el('tbody', {},
             ...rows.map(
                 (row, i) =>
                     el('tr', {className: classes && classes[i] || ''},
                        ...row.map(text => el('td', {textContent: text})))))));

function samples() {
  const out = [];
  for (const id of view.picked) {
    const run = details.get(id);
    if (!run) continue;
    const newest = run.images.slice(-24).reverse();
    if (newest.length || Object.keys(run.tables).length)
      out.push(el('h2', {textContent: run.name}));
    out.push(el('div', {className: 'pictures'}, ...newest.map(image => {
      const address = source.image(id, image.file);
      return address ?
          el('figure', {}, el('img', {src: address, alt: image.name, loading: 'lazy'}),
             el('figcaption', {textContent: image.name + ', step ' + number(image.step)})) :
          '';
    })));
    for (const [name, list] of Object.entries(run.tables)) {
      const last = list[list.length - 1];
      out.push(
          el('h3', {textContent: name + ', step ' + number(last.step)}),
          table(last.columns, last.rows));
      for (const older of list.slice(0, -1).reverse()) {
        out.push(
            el('details', {}, el('summary', {textContent: 'step ' + number(older.step)}),
               table(older.columns, older.rows)));
      }
    }
  }
  fit('samples', out,
      'No images or tables yet: ImageVisualizer and Generate log some, as log_images does.');
}

function about() {
  const picked = [...view.picked].map(id => details.get(id)).filter(run => run), out = [];
  for (const run of picked) {
    const of = picked.length > 1 ? ' of ' + run.name : '';
    if (run.plan)
      out.push(el('h2', {textContent: 'Recipe' + of}), el('pre', {textContent: run.plan}));
  }
  const names = [...new Set(picked.flatMap(run => Object.keys(run.hyperparameters)))];
  if (names.length) {
    const value = (run, name) =>
        Object.hasOwn(run.hyperparameters, name) ? String(run.hyperparameters[name]) : '-';
    const rows = names.map(name => [name, ...picked.map(run => value(run, name))]);
    out.push(
        el('h2', {textContent: 'Hyperparameters'}),
        table(
            ['', ...picked.map(run => run.name)], rows,
            rows.map(row => new Set(row.slice(1)).size > 1 ? 'differs' : '')));
  }
  for (const run of picked) {
    const of = picked.length > 1 ? ' of ' + run.name : '';
    out.push(
        el('h2', {textContent: 'Events' + of}),
        table(
            ['step', 'at', ''],
            run.events.map(
                ([step, time, text]) => [number(step), duration(time - run.start), text])));
    if (run.checkpoints.length) {
      out.push(
          el('h2', {textContent: 'Checkpoints' + of}),
          table(
              ['name', 'written', 'size'],
              run.checkpoints.map(c => [c.name, day(c.time), bytes(c.bytes)])));
    }
  }
  fit('run', out, 'Nothing is known of a run.');
}
// Puts what was made into its tab, unless it is there already: what a reader has opened stays so.
function fit(id, nodes, otherwise) {
  const whole = el('div', {}, ...nodes);
  if (!whole.textContent && !whole.querySelector('img')) {
    whole.append(el('p', {className: 'quiet', textContent: otherwise}));
  }
  const state = whole.innerHTML;
  if ($(id).state !== state) {
    $(id).state = state;
    $(id).replaceChildren(whole);
  }
}

function controls() {
  for (const tab of ['curves', 'samples', 'run']) {
    $(tab).hidden = view.tab !== tab;
    $('to-' + tab).classList.toggle('now', view.tab === tab);
  }
  $('smooth').value = view.smooth;
  $('smooth-value').textContent = view.smooth.toFixed(2);
  $('axis').value = view.axis;
  $('log').checked = view.log;
  if (document.activeElement !== $('filter')) $('filter').value = view.filter;
  $('whole').hidden = view.from === null;
}

// ---- The beat: at most one round at a time, and pauses as long as the rounds are ----
let busy = false, again = false, due = null;
function later(wait = 60) {
  if (due === null)
    due = setTimeout(() => {
      due = null;
      fill().catch(gone);
    }, wait);
}
const gone = error => {
  lost = error.message;
  header();
};
async function refresh() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  const began = performance.now();
  try {
    const all = await source.runs();
    runs = all.runs;
    if (view.picked.size === 0 && !refresh.chosen) {
      const wanted = recall();
      const found = runs.filter(run => wanted.includes(run.folder));
      const newest = [...runs].sort((a, b) => b.start - a.start)[0];
      const mine = runs.find(run => run.id === all.mine);
      for (const run of found.length ? found : mine ? [mine] : newest ? [newest] : [])
        view.picked.add(run.id);
      refresh.chosen = view.picked.size > 0;
    }
    for (const id of view.picked) details.set(id, await source.run(id));
    ++version;
    lost = '';
    arrange();
    header();
    samples();
    about();
    controls();
    await fill();
    document.body.dataset.round = version;
  } catch (error) { gone(error); }
  busy = false;
  const took = performance.now() - began;
  document.body.dataset.took = Math.round(took);
  if (again) {
    again = false;
    setTimeout(refresh, Math.max(200, 3 * took));
  }
}
function follow() {
  const events = new EventSource('events');
  events.onmessage = () => refresh();
  events.onerror = () => {
    refresh();  // says that the server has gone, or goes on by asking where it has too many readers
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}
for (const tab of ['curves', 'samples', 'run']) {
  $('to-' + tab).addEventListener('click', () => {
    view.tab = tab;
    remember();
    controls();
    later();
  });
}
const changed = () => {
  remember();
  controls();
  for (const chart of seen) chart.draw();
  later();
};
$('smooth').addEventListener('input', () => {
  view.smooth = +$('smooth').value;
  changed();
});
$('axis').addEventListener('change', () => {
  view.axis = $('axis').value;
  [view.from, view.to] = [null, null];
  changed();
});
$('log').addEventListener('change', () => {
  view.log = $('log').checked;
  changed();
});
$('filter').addEventListener('input', () => {
  view.filter = $('filter').value;
  remember();
  arrange();
  later();
});
$('whole').addEventListener('click', () => zoom(null, null));
window.addEventListener('resize', () => {
  for (const chart of seen) chart.draw();
  later(200);
});
refresh();
if (!report) {
  follow();
  setInterval(header, 10000);
}
)tutti_js";

}  // namespace tutti::detail
