// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti::detail {

// The program of the page of loggers/dashboard.hpp, in two parts. It asks its own server, or reads
// what is embedded in a report, and nobody else. What a run calls itself reaches the page as text
// nodes only, never as HTML.
inline constexpr std::string_view dashboard_charts = R"tutti_js('use strict';
const colours =
    ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#b58900', '#56b4e9', '#8c564b', '#7f7f7f'];
const view = {
  picked: new Set(),
  tab: 'curves',
  smooth: 0,
  from: null,
  to: null,
  axis: 'step',
  log: false,
  filter: '',
  closed: new Map()
};
const isNumber = v => typeof v === 'number' && Number.isFinite(v);

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in node)
      node[key] = value;
    else
      node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child !== null));
  return node;
}
function number(v) {
  if (!isNumber(v)) return v === null || v === undefined ? '-' : String(v);
  if (v === 0) return '0';
  const size = Math.abs(v);
  if (Number.isInteger(v) && size < 1e9) return v.toLocaleString('en');
  return size >= 1e6 || size < 1e-3 ? v.toExponential(3) : String(+v.toPrecision(5));
}
function duration(seconds) {
  const s = Math.max(0, Math.round(seconds)), two = n => String(n).padStart(2, '0');
  return (s >= 3600 ? Math.floor(s / 3600) + ':' + two(Math.floor(s / 60) % 60) :
                      String(Math.floor(s / 60))) +
      ':' + two(s % 60);
}
const day = seconds => new Date(seconds * 1000).toLocaleString();
const bytes = n => n > 1e9 ? (n / 1e9).toFixed(1) + ' GB' :
    n > 1e6                ? (n / 1e6).toFixed(1) + ' MB' :
                             Math.ceil(n / 1e3) + ' kB';

// Round numbers between two, some `most` of them; powers of ten on a logarithmic scale.
function ticks(low, high, most, log) {
  if (log) {
    const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((to - from + 1) / most)), out = [];
    for (let p = from; p <= to; p += step) out.push(10 ** p);
    if (out.length > 1) return out;
  }
  const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find(f => f * unit >= rough), out = [];
  for (let i = Math.ceil(low / step); i * step <= high && out.length < 50; ++i) out.push(i * step);
  return out;
}

// An exponential average without its bias towards 0; what is no number leaves it as it is.
function smoothed(values, weight) {
  let average = 0, sum = 0;
  return values.map(v => {
    if (!isNumber(v)) return null;
    average = weight * average + (1 - weight) * v;
    sum = weight * sum + (1 - weight);
    return average / sum;
  });
}

// One metric: a line for each run and rank.
class Chart {
  constructor(name) {
    this.name = name;
    this.lines = [];
    this.data = new Map();  // by the line's key: what series_json() says
    this.asked = '';        // of which part and state that is
    this.canvas = el('canvas');
    this.mark = el('div', {className: 'mark', hidden: true});
    this.band = el('div', {className: 'band', hidden: true});
    this.hint = el('div', {className: 'hint', hidden: true});
    this.legend = el('div', {className: 'legend'});
    this.plot = el('div', {className: 'plot'}, this.canvas, this.mark, this.band, this.hint);
    this.node = el(
        'figure', {}, el('figcaption', {textContent: name, title: name}), this.plot, this.legend);
    this.node.chart = this;
    this.listen();
  }
  get count() {  // buckets of a line that are asked for
    const width = this.plot.clientWidth || 400;
    return Math.max(60, Math.min(width, Math.floor(40000 / Math.max(1, this.lines.length))));
  }
  // The picture's borders in its own units.
  layout() {
    const times = view.axis === 'time';
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    const shown = [];
    for (const line of this.lines) {
      const data = this.data.get(line.key);
      if (!data || data.x.length === 0) continue;
      const x = times ? data.t : data.x;
      shown.push({line, data, x, y: view.smooth > 0 ? smoothed(data.m, view.smooth) : data.m});
      x0 = Math.min(x0, x[0]);
      x1 = Math.max(x1, x[x.length - 1]);
    }
    if (view.from !== null) [x0, x1] = [view.from, view.to];
    if (!(x1 > x0)) [x0, x1] = [x0 - 0.5, x0 + 0.5];
    const see = v => {
      if (isNumber(v) && (!view.log || v > 0)) {
        y0 = Math.min(y0, v);
        y1 = Math.max(y1, v);
      }
    };
    for (const outside of [false, true]) {  // where no point is within, its neighbours are
      if (y0 <= y1) break;
      for (const one of shown) {
        for (let i = 0; i < one.x.length; ++i) {
          if (!outside && (one.x[i] < x0 || one.x[i] > x1)) continue;
          see(one.y[i]);
          if (!one.data.lo) see(one.data.m[i]);
          if (one.data.lo && view.smooth === 0) {
            see(one.data.lo[i]);
            see(one.data.hi[i]);
          }
        }
      }
    }
    if (y0 > y1) [y0, y1] = view.log ? [0.1, 1] : [0, 1];
    if (view.log) {
      y0 /= 1.2;
      y1 *= 1.2;
    } else {
      const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
      y0 -= room;
      y1 += room;
    }
    return {shown, x0, x1, y0, y1};
  }
  draw() {
    const ratio = window.devicePixelRatio || 1, width = this.plot.clientWidth,
          height = this.plot.clientHeight;
    if (width === 0) return;
    if (this.canvas.width !== Math.round(width * ratio) ||
        this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const to = this.canvas.getContext('2d'), style = getComputedStyle(document.body);
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    to.clearRect(0, 0, width, height);
    const box = this.box = this.layout(), left = 58, right = 8, top = 6, bottom = 18;
    const scale = view.log ? Math.log : v => v;
    const low = scale(box.y0), high = scale(box.y1);
    box.px = x => left + (x - box.x0) / (box.x1 - box.x0) * (width - left - right);
    box.step = px => box.x0 + (px - left) / (width - left - right) * (box.x1 - box.x0);
    const py = y => height - bottom - (scale(y) - low) / (high - low) * (height - top - bottom);
    to.font = '10px system-ui, sans-serif';
    to.lineWidth = 1;
    to.strokeStyle = style.getPropertyValue('--grid');
    to.fillStyle = style.getPropertyValue('--quiet');
    to.textAlign = 'right';
    for (const y of ticks(box.y0, box.y1, 5, view.log)) {
      to.beginPath();
      to.moveTo(left, py(y));
      to.lineTo(width - right, py(y));
      to.stroke();
      to.fillText(number(+y.toPrecision(6)), left - 4, py(y) + 3);
    }
    to.textAlign = 'center';
    for (const x of ticks(box.x0, box.x1, Math.max(2, width / 90), false)) {
      to.fillText(
          view.axis === 'time' ? duration(x) : number(+x.toPrecision(9)), box.px(x), height - 5);
    }
    to.save();
    to.beginPath();
    to.rect(left, 0, width - left - right, height - bottom + 1);
    to.clip();
    const many = box.shown.length > 12;
    const path = (one, values) => {
      let open = false;
      to.beginPath();
      for (let i = 0; i < values.length; ++i) {
        const y = values[i];
        if (!isNumber(y) || (view.log && y <= 0)) {
          open = false;
          continue;
        }
        open ? to.lineTo(box.px(one.x[i]), py(y)) : to.moveTo(box.px(one.x[i]), py(y));
        if (!open && !isNumber(values[i + 1])) to.arc(box.px(one.x[i]), py(y), 1.5, 0, 7);
        open = true;
      }
      to.stroke();
    };
    for (const one of box.shown) {
      to.strokeStyle = to.fillStyle = one.line.colour;
      if (one.data.lo && !many) {
        to.globalAlpha = 0.22;
        for (let i = 0; i < one.x.length; ++i) {
          const lo = one.data.lo[i], hi = one.data.hi[i];
          if (!isNumber(lo) || (view.log && lo <= 0)) continue;
          const from = box.px((one.x[i] + one.x[Math.max(0, i - 1)]) / 2);
          const next = box.px((one.x[i] + one.x[Math.min(one.x.length - 1, i + 1)]) / 2);
          to.fillRect(from, py(hi), Math.max(1, next - from), Math.max(1, py(lo) - py(hi)));
        }
      }
      if (view.smooth > 0 && !many) {
        to.globalAlpha = 0.25;
        path(one, one.data.m);
      }
      to.globalAlpha = many ? 0.6 : 1;
      to.lineWidth = many ? 0.8 : 1.5;
      path(one, one.y);
      to.globalAlpha = 1;
      to.fillStyle = style.getPropertyValue('--bad');
      for (const [place, nan, above, below] of one.data.odd || []) {
        const x = box.px(one.x[place]);
        if (nan) to.fillText('\u00d7', x, height - bottom - 2);
        if (above) to.fillText('\u25b2', x, top + 8);
        if (below) to.fillText('\u25bc', x, height - bottom - 2);
      }
    }
    to.restore();
    this.tell();
  }
  tell() {
    const row = line =>
        el('span', {title: line.label}, el('i', {style: 'background:' + line.colour}),
           line.label + ' ', el('b', {textContent: number(line.latest)}));
    this.legend.replaceChildren(...this.lines.slice(0, 4).map(row));
    const more = this.lines.length - 4;
    if (more > 0) this.legend.append(el('span', {textContent: 'and ' + more + ' more'}));
  }
  point(event) {
    const at = event.clientX - this.plot.getBoundingClientRect().left;
    if (!this.box || this.box.shown.length === 0) return;
    const x = this.box.step(at), found = [];
    let nearest = null;
    for (const one of this.box.shown) {
      let low = 0, high = one.x.length - 1;
      while (high - low > 1) {
        const mid = (low + high) >> 1;
        if (one.x[mid] < x)
          low = mid;
        else
          high = mid;
      }
      const i = x - one.x[low] < one.x[high] - x ? low : high;
      const odd = (one.data.odd || []).find(o => o[0] === i);
      const value = odd ?
          [odd[1] && 'NaN', odd[2] && 'Infinity', odd[3] && '-Infinity'].filter(v => v).join(', ') :
          one.y[i];
      const wide = one.data.lo && one.data.lo[i] !== one.data.hi[i] ?
          [one.data.lo[i], one.data.hi[i]] :
          null;
      found.push({line: one.line, value, wide});
      if (nearest === null || Math.abs(one.x[i] - x) < Math.abs(nearest - x)) nearest = one.x[i];
    }
    found.sort(
        (a, b) =>
            (isNumber(b.value) ? b.value : Infinity) - (isNumber(a.value) ? a.value : Infinity));
    this.mark.hidden = this.hint.hidden = false;
    this.mark.style.left = this.box.px(nearest) + 'px';
    this.hint.replaceChildren(
        el('div',
           {textContent: view.axis === 'time' ? duration(nearest) : 'step ' + number(nearest)}),
        ...found.slice(0, 10).map(
            ({line, value, wide}) =>
                el('div', {}, el('i', {style: 'background:' + line.colour}), line.label + ' ',
                   el('b', {textContent: number(value)}),
                   wide ? ' (' + number(wide[0]) + ' to ' + number(wide[1]) + ')' : '')),
        found.length > 10 ? el('div', {textContent: 'and ' + (found.length - 10) + ' more'}) : '');
    const right = at > this.plot.clientWidth / 2;
    this.hint.style.left = right ? '' : at + 14 + 'px';
    this.hint.style.right = right ? this.plot.clientWidth - at + 14 + 'px' : '';
  }
  listen() {
    let began = null;
    const at = event => event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.addEventListener('pointerdown', event => {
      if (event.button !== 0) return;
      began = at(event);
      this.plot.setPointerCapture(event.pointerId);
    });
    this.plot.addEventListener('pointermove', event => {
      this.point(event);
      if (began === null) return;
      this.band.hidden = false;
      this.band.style.left = Math.min(began, at(event)) + 'px';
      this.band.style.width = Math.abs(at(event) - began) + 'px';
    });
    this.plot.addEventListener('pointerup', event => {
      const ends = began === null ? [0, 0] : [began, at(event)].sort((a, b) => a - b);
      began = null;
      this.band.hidden = true;
      if (ends[1] - ends[0] > 5 && this.box) zoom(this.box.step(ends[0]), this.box.step(ends[1]));
    });
    this.plot.addEventListener('pointerleave', () => {
      this.mark.hidden = this.hint.hidden = true;
    });
    this.plot.addEventListener('dblclick', () => zoom(null, null));
    this.plot.addEventListener('wheel', event => {
      if (!event.ctrlKey || !this.box) return;
      event.preventDefault();
      const centre = this.box.step(at(event)), factor = event.deltaY > 0 ? 1.25 : 0.8;
      zoom(centre - (centre - this.box.x0) * factor, centre + (this.box.x1 - centre) * factor);
    }, {passive: false});
  }
}
)tutti_js";

}  // namespace tutti::detail
