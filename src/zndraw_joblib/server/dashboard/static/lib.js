// The libraries, by one name each. Pages import from here, not from vendor/.
import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useId, useCallback, useErrorBoundary } from "./vendor/preact-hooks.js";
import { signal, computed, effect, batch, useSignal, useComputed } from "./vendor/signals.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { Fragment, render, signal, computed, effect, batch, useSignal, useComputed };
export { useEffect, useLayoutEffect, useMemo, useRef, useState, useId, useCallback, useErrorBoundary };
