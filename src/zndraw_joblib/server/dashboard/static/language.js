// A browser in the POSIX locale reports a language such as "en-US@posix", which is no language tag. uPlot passes it to Intl
// when it is imported, and would fail. So this module is imported before uPlot.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en", configurable: true });
}
