// NumPy arrays, as .npy files and as tagged JSON: their shape, range, and a picture or a table.
import { count } from "../format.js";
import { stringify } from "../json.js";
import { html, useEffect, useRef, useSignal } from "../lib.js";
import { Plot } from "../plots.js";
import { Facts } from "../ui.js";

const KINDS = {
  f8: Float64Array, f4: Float32Array, i8: BigInt64Array, u8: BigUint64Array, i4: Int32Array, u4: Uint32Array,
  i2: Int16Array, u2: Uint16Array, i1: Int8Array, u1: Uint8Array, b1: Uint8Array,
};
const NAMES = {
  float64: "f8", float32: "f4", int64: "i8", uint64: "u8", int32: "i4", uint32: "u4", int16: "i2", uint16: "u2", int8: "i1", uint8: "u1", bool: "b1",
};

function swapped(bytes, size) {
  for (let at = 0; at < bytes.length; at += size) bytes.subarray(at, at + size).reverse();
  return bytes;
}

function numbers(kind, bytes, isBig) {
  const Kind = KINDS[kind];
  if (!Kind) return null;
  const size = Kind.BYTES_PER_ELEMENT;
  const own = bytes.slice(0, bytes.length - (bytes.length % size));
  return new Kind((isBig && size > 1 ? swapped(own, size) : own).buffer);
}

// Return { dtype, shape, data } of a .npy file; `data` is null for kinds that JavaScript has not.
export function fromNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  const isLong = bytes[6] > 1;
  const length = isLong ? new DataView(buffer).getUint32(8, true) : new DataView(buffer).getUint16(8, true);
  const start = isLong ? 12 : 10;
  const header = new TextDecoder().decode(bytes.subarray(start, start + length));
  const [, order, kind] = /'descr': '([<>|=])(\w+)'/.exec(header) ?? [];
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "").split(",").map((size) => size.trim()).filter(Boolean).map(Number);
  const isFortran = /'fortran_order': True/.test(header);
  const data = isFortran && shape.length > 1 ? null : numbers(kind, bytes.subarray(start + length), order === ">");
  return { dtype: Object.keys(NAMES).find((name) => NAMES[name] === kind) ?? kind ?? "?", shape, data };
}

export const isLength = (value) => Number.isSafeInteger(value) && value >= 0;
const MAX_DIMENSIONS = 64;
const checked = new WeakMap();

// Whether a value is an array as the SDK encodes it. A payload or a result may have the tag without the fields.
export function isArray(value) {
  if (value?.$zndraw !== "ndarray") return false;
  if (!checked.has(value)) checked.set(value, hasShape(value));
  return checked.get(value);
}

export const hasNumbers = (value) => isArray(value) && typeof value.data === "string" && Object.hasOwn(NAMES, value.dtype);

function hasShape({ dtype, shape, data }) {
  if (typeof dtype !== "string" || !Array.isArray(shape) || shape.length > MAX_DIMENSIONS || !shape.every(isLength)) return false;
  const size = shape.reduce((product, length) => product * length, 1);
  if (Array.isArray(data)) return data.length === size;
  if (typeof data !== "string" || data.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(data)) return false;
  const padding = data.endsWith("==") ? 2 : data.endsWith("=") ? 1 : 0;
  return !Object.hasOwn(NAMES, dtype) || (data.length / 4) * 3 - padding === size * KINDS[NAMES[dtype]].BYTES_PER_ELEMENT;
}

// Return { dtype, shape, data } of a tagged array.
export function fromTagged({ dtype, shape, data }) {
  const lengths = shape.map(Number);
  if (typeof data !== "string") return { dtype, shape: lengths, data };
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return { dtype, shape: lengths, data: numbers(NAMES[dtype], bytes, false) };
}

// The range of the values that are numbers, and how many are not (NaN, infinite).
function rangeOf(data) {
  let [low, high, sum, size] = [Infinity, -Infinity, 0, 0];
  for (const item of data) {
    const value = Number(item);
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    sum += value;
    size += 1;
  }
  return size ? { low, high, mean: sum / size, others: data.length - size } : null;
}

export function short(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(5)));
  return typeof value === "object" ? stringify(value) : String(value);
}

export function ArrayView({ name, array }) {
  const { dtype, shape, data } = array;
  const isNumeric = data && typeof data[0] !== "string" && data.length > 0 && !Array.isArray(data);
  const range = isNumeric ? rangeOf(data) : null;
  const isColoured = shape.length === 3 && dtype === "uint8" && [3, 4].includes(shape[2]);
  const isImage = range && ((shape.length === 2 && shape[0] > 8 && shape[1] > 8) || isColoured);
  const facts = [["Shape", shape.join(" × ") || "scalar"], ["Type", dtype], range && ["Range", `${short(range.low)} … ${short(range.high)}`], range && ["Mean", short(range.mean)],
    range?.others > 0 && ["NaN or infinite", count(range.others)]].filter(Boolean);
  return html`<div class="array">${name && html`<h3>${name}</h3>`}<${Facts} items=${facts} />
    ${isImage && html`<${Picture} shape=${shape} data=${data} range=${range} />`}
    ${isNumeric && shape.length === 1 && data.length > 8 && html`<${Line} data=${data} />`}
    ${data && !isImage && html`<${Cells} shape=${shape} data=${data} />`}
    ${!data && html`<p class="help">The page cannot show this kind of array. Download it.</p>`}</div>`;
}

const Line = ({ data }) => {
  const step = Math.max(1, Math.floor(data.length / 2000));
  const indices = Array.from({ length: Math.ceil(data.length / step) }, (_, index) => index * step);
  const values = indices.map((index) => Number(data[index]));
  return html`<${Plot} times=${indices} isIndex series=${[{ label: "value", colour: "accent", values }]} format=${short} summary=${`${count(data.length)} values in order`} />`;
};

function Cells({ shape, data }) {
  const columns = shape.at(-1) ?? 1;
  const rows = Math.min(8, Math.ceil(data.length / columns));
  const shown = Math.min(8, columns);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="The first values"><table class="cells"><tbody>${Array.from({ length: rows }, (_, row) => html`<tr key=${row}>
    ${Array.from({ length: shown }, (_, column) => html`<td key=${column} class="number">${short(data[row * columns + column] ?? "")}</td>`)}
    ${columns > shown && html`<td>…</td>`}</tr>`)}</tbody></table></div>`;
}

// Colours from the least to the greatest value, which also readers who confuse red and green tell apart.
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const CSS_COLOURS = COLOURS.map((colour) => `rgb(${colour})`).join(", ");

function shade(part, channel) {
  const at = Math.min(COLOURS.length - 1.001, Math.max(0, part * (COLOURS.length - 1)));
  const below = Math.floor(at);
  return COLOURS[below][channel] + (at - below) * (COLOURS[below + 1][channel] - COLOURS[below][channel]);
}

// A matrix as a heat map, or an array of RGB as it is. What is no number is transparent.
function Picture({ shape, data, range }) {
  const canvas = useRef();
  const point = useSignal(null);
  const [height, width, channels = 1] = shape;
  const isTooLarge = width * height > 4_000_000;
  useEffect(() => {
    if (isTooLarge) return;
    const context = canvas.current.getContext("2d");
    const image = context.createImageData(width, height);
    const scale = range.high > range.low ? 1 / (range.high - range.low) : 0;
    for (let at = 0; at < width * height; at += 1) {
      const value = Number(data[at * channels]);
      if (!Number.isFinite(value)) continue;
      for (let channel = 0; channel < 3; channel += 1) {
        image.data[at * 4 + channel] = channels > 1 ? data[at * channels + channel] : shade((value - range.low) * scale, channel);
      }
      image.data[at * 4 + 3] = channels === 4 ? data[at * 4 + 3] : 255;
    }
    context.putImageData(image, 0, 0);
  }, [data]);
  if (isTooLarge) return html`<p class="help">The array is too large for a picture. Download it.</p>`;
  const show = ({ offsetX, offsetY, target }) => {
    const [row, column] = [Math.floor((offsetY / target.clientHeight) * height), Math.floor((offsetX / target.clientWidth) * width)];
    if (row >= 0 && column >= 0 && row < height && column < width) point.value = [row, column];
  };
  const at = point.value && point.value[0] * width + point.value[1];
  const values = point.value && Array.from({ length: channels }, (_, channel) => short(data[at * channels + channel])).join(", ");
  return html`<div class="heat"><canvas ref=${canvas} class="picture" width=${width} height=${height} role="img" aria-label=${`The array as a picture of ${width} by ${height}`}
      onPointerMove=${show} onPointerLeave=${() => (point.value = null)}></canvas>
    ${channels === 1 && html`<div class="scale"><span>${short(range.low)}</span><span class="colours" style=${{ background: `linear-gradient(to right, ${CSS_COLOURS})` }}></span><span>${short(range.high)}</span></div>`}
    <p class="help">${point.value ? `row ${point.value[0]}, column ${point.value[1]}: ${values}` : "\u00a0"}</p></div>`;
}
