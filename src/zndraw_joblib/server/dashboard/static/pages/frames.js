// Values that the SDK encodes with a tag: arrays, tables of pandas, structures of ASE. Each with a view of its own.
import { count } from "../format.js";
import { html, useEffect, useSignal } from "../lib.js";
import { Facts, Table } from "../ui.js";
import { ArrayView, fromTagged, isArray } from "./arrays.js";

const MAX_VIEWS = 8;
const [ROWS, COLUMNS] = [10, 12];
const TAGS = new Set(["ndarray", "pandas.DataFrame", "pandas.Series", "ase.Atoms"]);
export const isTagged = (value) => value !== null && typeof value === "object" && TAGS.has(value.$zndraw);

// Find the tagged values in a JSON value, with the path to each: ["forces", {…}].
export function taggedIn(value, path = "", places = []) {
  if (isTagged(value)) places.push([path || "value", value]);
  else if (value && typeof value === "object") {
    for (const [key, item] of Object.entries(value)) if (places.length < MAX_VIEWS) taggedIn(item, path ? `${path}.${key}` : key, places);
  }
  return places;
}

function decoded(array) {
  try {
    return fromTagged(array);
  } catch {
    return { dtype: array.dtype, shape: array.shape ?? [], data: null };
  }
}

// The values of an array or a list, as a plain list.
const listOf = (values) => (isArray(values) ? [...(decoded(values).data ?? [])] : values ?? []);

export function TaggedView({ name, value }) {
  if (value.$zndraw === "ndarray") return html`<${ArrayView} name=${name} array=${decoded(value)} />`;
  if (value.$zndraw === "ase.Atoms") return html`<${Atoms} name=${name} fields=${value.atoms} />`;
  const columns = value.$zndraw === "pandas.Series" ? [{ ...value, name: value.name ?? "value" }] : value.columns;
  return html`<${Frame} name=${name} columns=${columns} index=${value.index} rows=${value.rows ?? listOf(value.values).length} />`;
}

const shown = (value) => {
  if (value === null || value === undefined) return html`<span class="none">–</span>`;
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "object" && value.text === undefined ? JSON.stringify(value) : String(value);
};

function Frame({ name, columns, index, rows }) {
  const first = columns.slice(0, COLUMNS).map((column) => ({ ...column, list: listOf(column.values).slice(0, ROWS) }));
  const labels = index ? listOf(index.values).slice(0, ROWS) : null;
  const table = [
    { name: "index", label: index?.name ?? "", render: (row) => html`<span class="none">${labels ? shown(labels[row]) : row}</span>` },
    ...first.map((column, place) => ({
      name: `column-${place}`, class: /int|float|complex/.test(column.dtype) ? "number" : "", render: (row) => shown(column.list[row]),
      label: html`${String(column.name)}<br /><span class="none">${column.dtype}</span>`,
    })),
  ];
  const more = [rows > ROWS && `the first ${ROWS} of ${count(rows)} rows`, columns.length > COLUMNS && `${COLUMNS} of ${count(columns.length)} columns`].filter(Boolean);
  return html`<div class="array frame">${name && html`<h3>${name}</h3>`}
    <p class="help">${`${count(rows)} × ${count(columns.length)}`}${more.length > 0 && `: ${more.join(", ")}`}</p>
    <${Table} caption=${name || "Table"} class="plain" columns=${table} rows=${[...Array(Math.min(ROWS, rows)).keys()]} rowKey=${(row) => row} empty="The table has no rows." /></div>`;
}

function Atoms({ name, fields }) {
  const view = useSignal(null);
  useEffect(() => void import("./atoms.js").then((module) => (view.value = module)), []);
  const numbers = listOf(fields.numbers).map(Number);
  const flat = listOf(fields.positions).map(Number);
  const positions = numbers.map((_, atom) => flat.slice(3 * atom, 3 * atom + 3));
  const sides = fields.cell ? listOf(fields.cell).flat().map(Number) : [];
  const cell = sides.length === 9 ? [0, 1, 2].map((side) => sides.slice(3 * side, 3 * side + 3)) : null;
  const energy = fields.results?.energy;
  return html`<div class="array">${name && html`<h3>${name}</h3>`}
    ${view.value && html`<${Facts} items=${[["Formula", view.value.formulaOf(numbers)], ["Atoms", count(numbers.length)], ["Periodic", listOf(fields.pbc).some(Boolean) ? "yes" : "no"], ["Energy", energy !== undefined && shown(Number(energy))]]} />
      <${view.value.AtomsView} numbers=${numbers} positions=${positions} cell=${cell} />`}</div>`;
}
