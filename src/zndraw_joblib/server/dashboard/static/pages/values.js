// A payload or a result: JSON as text or as a tree, with the tables, arrays and structures in it shown below.
import { bytes, count, plural } from "../format.js";
import { Exact, stringify } from "../json.js";
import { html, useEffect, useMemo, useSignal } from "../lib.js";
import { Facts, Failure, Json, Loading, Parts } from "../ui.js";
import { ArrayView, fromTagged, hasNumbers, isArray, isLength, short } from "./arrays.js";

const MAX_VIEWS = 8;
const PART = 100;
const isObject = (value) => value !== null && typeof value === "object" && value.constructor === Object;
const hasTag = (value, tag) => isObject(value) && value.$zndraw === tag;
// The length of a list or of an array of one dimension; undefined for other values.
const lengthOf = (values) => (Array.isArray(values) ? values.length : isArray(values) && values.shape.length === 1 ? values.shape[0] : undefined);
// A payload or a result may have a tag without the fields: such values are JSON like any other.
const isColumn = (value, rows) => isObject(value) && typeof value.dtype === "string" && isLength(rows) && lengthOf(value.values) === rows;
const hasIndex = ({ index }, rows) => (index ?? null) === null || isColumn(index, rows);
const isFrame = (value) => hasTag(value, "pandas.DataFrame") && isLength(value.rows) && hasIndex(value, value.rows) && Array.isArray(value.columns) && value.columns.every((column) => isColumn(column, value.rows));
const isSeries = (value) => hasTag(value, "pandas.Series") && isColumn(value, lengthOf(value.values)) && hasIndex(value, lengthOf(value.values));
const isTable = (value) => isFrame(value) || isSeries(value);

function isAtoms(value) {
  if (!hasTag(value, "ase.Atoms") || !isObject(value.atoms)) return false;
  const { numbers, positions } = value.atoms;
  return hasNumbers(numbers) && hasNumbers(positions) && numbers.shape.length === 1 && positions.shape.join() === `${numbers.shape[0]},3`;
}

// The structures of a value: one, or a list of them.
const structuresOf = (value) => (isAtoms(value) ? [value] : Array.isArray(value) && value.length > 0 && value.every(isAtoms) ? value : null);
const isShown = (value) => isArray(value) || isTable(value) || structuresOf(value) !== null;

// The parts of a value that have a view of their own, with the path to each: ["forces", {…}].
function viewsIn(value, path = "", views = []) {
  if (isShown(value)) views.push([path, value]);
  else if (value !== null && typeof value === "object") {
    for (const [key, item] of Object.entries(value)) if (views.length < MAX_VIEWS) viewsIn(item, path ? `${path}.${key}` : key, views);
  }
  return views;
}

// What stands for a tagged value in the JSON; undefined for other values.
export function summary(value) {
  const structures = structuresOf(value);
  if (structures) return `${structures.length > 1 ? `${count(structures.length)} structures, the first of ` : ""}${plural(Number(structures[0].atoms.numbers.shape[0]), "atom")}`;
  if (isArray(value)) return `${value.dtype} array, ${value.shape.join(" × ") || "scalar"}`;
  if (isSeries(value)) return `series of ${value.dtype}, ${plural(lengthOf(value.values), "value")}`;
  if (isFrame(value)) return `table, ${count(value.rows)} × ${count(value.columns.length)}`;
  if (hasTag(value, "float") && !isObject(value.value)) return short(value.value);
  if (hasTag(value, "complex") && !isObject(value.real) && !isObject(value.imag)) return `${value.real} + ${value.imag}i`;
  if (hasTag(value, "bytes") && typeof value.data === "string") return bytes(Math.floor(value.data.length * 0.75));
  return undefined;
}

// The contents of arrays, tables and bytes say nothing to a reader as JSON.
function shortened(value) {
  const text = summary(value);
  if (text !== undefined) return new Exact(`‹${text}›`);
  if (Array.isArray(value)) return value.map(shortened);
  return isObject(value) ? Object.fromEntries(Object.entries(value).map(([key, item]) => [key, shortened(item)])) : value;
}

export function Value({ value, label }) {
  const [json, views] = useMemo(() => [isShown(value) ? null : shortened(value), viewsIn(value)], [value]);
  return html`${json !== null || value === null ? html`<${Json} value=${json} label=${label} />` : ""}
    <${Parts}>${views.map(([path, part]) => html`<${View} key=${path} name=${path} value=${part} label=${label} />`)}<//>`;
}

function View({ name, value, label }) {
  if (isArray(value)) return html`<${ArrayView} name=${name} array=${decoded(value)} />`;
  return html`<div class="array">${name && html`<h3>${name}</h3>`}
    ${isTable(value) ? html`<${Frame} value=${value} label=${name || label} />` : html`<${Structures} items=${structuresOf(value)} />`}</div>`;
}

function decoded(array) {
  try {
    return fromTagged(array);
  } catch {
    return { dtype: array.dtype, shape: array.shape ?? [], data: null };
  }
}

// --- Tables ---------------------------------------------------------------------------------------------------------

const ROWS = 10;
const MAX_COLUMNS = 50;

function cell(value) {
  if (value === null || value === undefined) return "–";
  return summary(value) ?? (typeof value === "object" && !(value instanceof Exact) ? stringify(value) : typeof value === "number" ? short(value) : String(value));
}

// The first rows of a data frame or a series, with the types of its columns.
function Frame({ value, label }) {
  const shown = useSignal(ROWS);
  const columns = useMemo(() => {
    const all = isFrame(value) ? value.columns : [value];
    const index = value.index ? [{ ...value.index, isIndex: true }] : [];
    return [...index, ...all.slice(0, MAX_COLUMNS)].map((column) => ({ ...column, data: isArray(column.values) ? (decoded(column.values).data ?? []) : column.values }));
  }, [value]);
  const total = isFrame(value) ? value.rows : lengthOf(value.values);
  const width = isFrame(value) ? value.columns.length : 1;
  const rows = Math.min(shown.value, total);
  const isNumber = (column) => /^(u?int|float|complex)/i.test(column.dtype);
  return html`<p class="help">${plural(total, "row")}, ${plural(width, "column")}${width > MAX_COLUMNS ? `, the first ${MAX_COLUMNS} of them` : ""}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Table ${label}`}><table class="cells"><thead><tr>${!value.index && html`<td></td>`}
      ${columns.map((column, at) => html`<th key=${at} scope="col" class=${isNumber(column) ? "number" : ""}>${cell(column.name ?? (column.isIndex ? "index" : ""))}<span class="type">${column.dtype}</span></th>`)}</tr></thead>
      <tbody>${Array.from({ length: rows }, (_, row) => html`<tr key=${row}>${!value.index && html`<th scope="row">${row}</th>`}
        ${columns.map((column, at) => html`<td key=${at} class=${isNumber(column) ? "number" : "text"}>${cell(column.data[row])}</td>`)}</tr>`)}</tbody></table></div>
    ${total > rows && html`<p><button type="button" class="small" onClick=${() => (shown.value += PART)}>${count(Math.min(PART, total - rows))} more rows</button></p>`}`;
}

// --- Structures -----------------------------------------------------------------------------------------------------

// Structures of atoms: one is drawn, by a module that is loaded for it.
function Structures({ items }) {
  const index = useSignal(0);
  const viewer = useSignal(null);
  const failed = useSignal(null);
  useEffect(() => void import("./atoms.js").then((module) => (viewer.value = module), (error) => (failed.value = error)), []);
  const fields = items[index.value].atoms;
  const arrays = Object.entries(fields).filter(([name, value]) => isArray(value) && !["numbers", "pbc"].includes(name));
  const { energy } = fields.results ?? {};
  const { Structure, formulaOf } = viewer.value ?? {};
  const periodic = Array.from(isArray(fields.pbc) ? (decoded(fields.pbc).data ?? []) : []);
  return html`<${Facts} items=${[Structure && ["Formula", formulaOf(decoded(fields.numbers).data ?? [])], ["Atoms", count(Number(fields.numbers.shape[0]))],
      ["Periodic", periodic.some(Boolean) ? ["a", "b", "c"].filter((_, axis) => periodic[axis]).join(", ") : "no"], items.length > 1 && ["Structures", count(items.length)],
      energy !== undefined && ["Energy", summary(energy) ?? short(energy)]].filter(Boolean)} />
    ${items.length > 1 && html`<label class="field">Structure ${count(index.value + 1)} of ${count(items.length)}
      <input type="range" min="0" max=${items.length - 1} value=${index.value} onInput=${(event) => (index.value = Number(event.target.value))} /></label>`}
    ${failed.value ? html`<${Failure} error=${failed.value} />` : Structure ? html`<${Structure} numbers=${decoded(fields.numbers)} positions=${decoded(fields.positions)} cell=${hasNumbers(fields.cell) && decoded(fields.cell)} />` : html`<${Loading} />`}
    <details class="more"><summary>Arrays</summary><div class="stack">${[...arrays, ...Object.entries(fields.results ?? {}).filter(([, value]) => isArray(value))]
      .map(([name, value]) => html`<${ArrayView} key=${name} name=${name} array=${decoded(value)} />`)}</div></details>`;
}
