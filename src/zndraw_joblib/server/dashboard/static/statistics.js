// Series of the intervals that the API returns: rates, and quantiles of durations from their histograms.

// Upper bounds of the buckets in seconds, as in wire/operators.py; the last bucket has none.
const BOUNDS = [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400];

// A quantile of a histogram, by linear interpolation in its bucket; null without durations.
export function quantile({ buckets }, q) {
  const total = buckets.reduce((sum, size) => sum + size, 0);
  if (!total) return null;
  let rank = q * total;
  for (const [index, size] of buckets.entries()) {
    if (size && rank <= size) {
      const low = BOUNDS[index - 1] ?? 0;
      const high = BOUNDS[index] ?? low;
      return low + (high - low) * (rank / size);
    }
    rank -= size;
  }
  return BOUNDS.at(-1);
}

export const sumOf = (intervals, name) => intervals.reduce((sum, interval) => sum + interval[name], 0);

export function mergedHistogram(intervals, name) {
  const buckets = BOUNDS.map(() => 0).concat(0);
  for (const interval of intervals) interval[name].buckets.forEach((size, index) => (buckets[index] += size));
  return { buckets, sum: intervals.reduce((sum, interval) => sum + interval[name].sum, 0) };
}

// How often each cause ended attempts: [[code, count], …], the most frequent first.
export function causesOf(intervals) {
  const counts = {};
  for (const { causes } of intervals) for (const [code, size] of Object.entries(causes ?? {})) counts[code] = (counts[code] ?? 0) + size;
  return Object.entries(counts).sort((a, b) => b[1] - a[1]);
}

// Every interval from `since` to `until` (in seconds): those without tasks are not in the answer.
export function filled(intervals, resolution, since, until) {
  const byStart = new Map(intervals.map((interval) => [Math.floor(new Date(interval.start) / 1000), interval]));
  const times = [];
  for (let at = Math.floor(since / resolution) * resolution; at <= until; at += resolution) times.push(at);
  return { times, at: times.map((time) => byStart.get(time)) };
}
